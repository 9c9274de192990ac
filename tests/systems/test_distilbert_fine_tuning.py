"""DistilBERT fine-tuned with a fine-tuned teacher: its loss, a run from two folders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import distilbert as configs
from t5x_like import partitioning, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import to_dict
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import forward
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import distilbert
from tests.systems.test_distilbert import TEACHER, TINY, batch, initialized, settings, start

pytestmark = pytest.mark.usefixtures("one_device")

HEADS = {"classification": 3, "tagging": 4, "question_answering": 2}


def fine_tuned(kind, **teacher):
    """The settings of a student that learns from a teacher under the same head."""
    same = {"head": kind, "labels": HEADS[kind]}
    return TINY | same | {"teacher": TINY["teacher"] | same | {"folder": "teacher"} | teacher}


@functools.cache
def apart(head):
    """A student and its teacher that differ much, their parameters, and the student's network."""
    config = fine_tuned(head)
    params = jax.tree.map(
        lambda x: x * 10 if x.ndim > 1 else x,
        initialized(systems.build("distilbert", config), seed=2),
    )
    alone = systems.build("distilbert", config | {"teacher": TINY["teacher"]})
    return systems.build("distilbert", config), params, alone


def labelled(head):
    labels = {
        "classification": {"label": jnp.array([2, 0, 0])},
        "tagging": {"encoder_target_tokens": batch()["encoder_target_tokens"] % 4},
        "question_answering": {"answer": jnp.array([[2, 3], [0, 0], [0, 0]])},
    }
    return batch() | labels[head]


def kl(teacher, student):
    """Per row, at a temperature of 2, without the positions of -inf."""
    t, s = (np.asarray(x, np.float64) / 2 for x in (teacher, student))
    t, s = (x - np.log(np.sum(np.exp(x), -1, keepdims=True)) for x in (t, s))
    return 4 * np.sum(np.where(t > -np.inf, np.exp(t) * (t - s), 0), -1)


@pytest.mark.parametrize(
    "head",
    [
        "question_answering",
        pytest.param("classification", marks=pytest.mark.slow),
        pytest.param("tagging", marks=pytest.mark.slow),
    ],
)
def test_a_fine_tuned_teacher_adds_its_distribution_to_the_labels(head):
    module, params, alone = apart(head)
    run = distilbert.SYSTEM.tasks[head].loss
    total, weight, metrics = jax.jit(functools.partial(run, module))(params, labelled(head), None)
    own = {name: part for name, part in params.items() if name != "teacher"}
    of_labels, count, _ = jax.jit(functools.partial(run, alone))(own, labelled(head), None)
    real = np.asarray(batch()["encoder_segment_ids"]) > 0
    settings = fine_tuned(head)["teacher"] | {"system": None, "folder": None}
    settings = {name: value for name, value in settings.items() if value is not None}
    outputs = [
        jax.jit(functools.partial(forward, network))(p, labelled(head), None)
        for network, p in ((alone, own), (systems.build("bert", settings), params["teacher"]))
    ]
    if head == "question_answering":
        inside = [
            np.stack([np.where(real[:2], one[f"{end}_logits"][:2], -np.inf) for one in outputs])
            for end in ("start", "end")
        ]
        with np.errstate(invalid="ignore"):
            divergence = np.mean([kl(teacher, student) for student, teacher in inside])
    else:
        where = real[:, 0] if head == "classification" else batch()["encoder_loss_weights"] > 0
        student, teacher = (one["logits"][where] for one in outputs)
        divergence = np.mean(kl(teacher, student))
    assert divergence > 0.01
    found, number = metrics["soft_targets/divergence"]
    np.testing.assert_allclose(found / number, divergence, rtol=1e-4)
    expected = (of_labels / count + divergence) / 2
    np.testing.assert_allclose(total / weight, expected, rtol=1e-4)
    without = functools.partial(run, module, labels=1.0, soft_targets=0.0)
    weighted = jax.jit(without)(params, labelled(head), None)
    np.testing.assert_allclose(weighted[0] / weighted[1], of_labels / count, rtol=1e-5)
    with pytest.raises(ValueError, match=r"loss.soft_targets is for a student with a teacher"):
        run(alone, own, labelled(head), None, soft_targets=0.5)


def save(folder, system, module, params, config):
    Pretrained(module, params, system=system, config=config).save_pretrained(folder)


@pytest.mark.slow
def test_a_student_is_fine_tuned_beside_a_teacher_from_another_folder(tmp_path):
    """From two folders to a checkpoint, its student, and Hugging Face's format."""
    head = "classification"
    _, params, _ = apart(head)
    config = TEACHER | {"head": head, "labels": 3}
    save(tmp_path / "teacher", "bert", systems.build("bert", config), params["teacher"], config)
    config = TINY | {"head": "masked_lm"}
    begun = {name: part for name, part in start()[1].items() if name != "teacher"}
    save(tmp_path / "student", "distilbert", systems.build("distilbert", config), begun, config)

    made = configs.get_config(str(tmp_path / "teacher"))
    made.initialize = str(tmp_path / "student")
    made.data.converter = "encoder"
    made.optimizer.update({"learning_rate": 0.01, "warmup_steps": 0})
    run = completion.complete(of_config(made))
    settings = run.settings
    labels = (settings.model["head"], settings.model["labels"])
    assert (settings.system, *labels) == ("distilbert", head, 3)
    model = model_side.build(run)
    state = model.initial_state()
    before = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, before["teacher"], params["teacher"])
    jax.tree.map(np.testing.assert_array_equal, before["encoder"], begun["encoder"])
    with partitioning.layout(model.mesh):
        rows = {name: np.repeat(value, 8, axis=0) for name, value in labelled(head).items()}
        for _ in range(3):
            state, metrics = model.train_step(state, model.put(rows))
    after = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, after["teacher"], before["teacher"])
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), before["encoder"], after["encoder"])
    assert min(jax.tree.leaves(moved["layers"]["block"]["feed_forward"])) > 0
    assert "soft_targets/divergence" in metrics

    with Checkpoints(tmp_path / "run", metadata={"config": to_dict(settings)}) as saver:
        saver.save(1, state, {0: b""})
    tuned = from_pretrained(tmp_path / "run")
    tokens = batch()["encoder_input_tokens"]
    tuned.save_pretrained(tmp_path / "out")
    kept = from_pretrained(tmp_path / "out")
    assert "teacher" not in kept.params
    # Two programs for the same sums, in which the compiler may order them otherwise.
    np.testing.assert_allclose(kept(tokens).logits, tuned(tokens).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "changes", "message"),
    [
        ("classification", {"labels": 4}, r"'teacher' has labels 4, and the student 3"),
        ("classification", {"head": "tagging"}, r"has head 'tagging', and the student 'class"),
        ("tagging", {"vocab_size": 33}, r"has vocab_size 33, and the student 32"),
    ],
)
def test_a_teacher_that_was_fine_tuned_otherwise_is_refused(head, changes, message):
    with pytest.raises(ValueError, match=message):
        systems.build("distilbert", fine_tuned(head, **changes))


def test_a_number_has_no_distribution_to_learn_from():
    config = fine_tuned("classification") | {"head": "regression"}
    with pytest.raises(ValueError, match="under classification, tagging, question_answering"):
        systems.build("distilbert", config)


def test_without_a_fine_tuned_teacher_a_folder_is_read_as_for_every_encoder(tmp_path):
    config = settings(tmp_path / "student", head="classification", labels=3)
    student = TINY | {"head": "masked_lm"}
    begun = {name: part for name, part in start()[1].items() if name != "teacher"}
    save(tmp_path / "student", "distilbert", systems.build("distilbert", student), begun, student)
    config.optimizer.frozen = ()
    params = model_side.build(of_config(config)).initial_state().params
    assert "teacher" not in params
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], begun["encoder"])
    assert "classifier" in params["head"]
