"""TinyBERT: its published sizes, losses as PyTorch's, which teacher fits, what starts where."""

import functools
import json
import math
import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import tinybert as configs
from t5x_like import losses, systems
from t5x_like.config import defaults
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.hf import weight_map
from t5x_like.losses import distillation
from t5x_like.nn.attention.cores import MASKED
from t5x_like.pretrained import Pretrained, from_pretrained, model
from t5x_like.systems import bert, tinybert
from tests.golden import drawn_weights

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tinybert.npz"
LABELS = 5
TEACHER = bert.SIZES["base"] | {
    "vocab_size": drawn_weights.VOCABULARY,
    "positions": 16,
    "layers": 4,
    "d_model": 24,
    "d_ff": 28,
    "heads": 3,
}
TINY = tinybert.student_of("bert", TEACHER, layers=2, d_model=12, d_ff=20)
FINE_TUNED = {"head": "classification", "labels": LABELS}


def task(folder, **changes):
    """The settings of a student and a teacher in a folder, both classifiers."""
    teacher = TINY["teacher"] | FINE_TUNED | {"folder": str(folder)}
    return TINY | FINE_TUNED | {"teacher": teacher} | changes


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


@pytest.mark.parametrize(("size", "published"), [("4l", 14_350_248), ("6l", 66_955_008)])
def test_parameters_as_published(size, published):
    """The paper rounds those of BertModel to 14.5M and 67.0M."""
    tree = shapes(systems.build("tinybert", tinybert.SIZES[size] | {"head": "features"}))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) == published
    whole = shapes(systems.build("tinybert", tinybert.SIZES[size]))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(whole["teacher"])) == 109_482_240
    width = tinybert.SIZES[size]["d_model"]
    for name in ("hidden_map", "embedding_map"):
        assert jax.tree.map(lambda leaf: leaf.shape, whole[name]) == {"kernel": (width, 768)}


def test_layers_of_the_teacher_as_in_table_4():
    maps = tinybert.LAYER_MAPS.items()
    of_twelve = {name: [one(m, 4, 12) for m in (1, 2, 3, 4)] for name, one in maps}
    assert of_twelve == {"uniform": [3, 6, 9, 12], "top": [9, 10, 11, 12], "bottom": [1, 2, 3, 4]}
    six = systems.build("tinybert", tinybert.SIZES["6l"])
    assert six.teacher_layers == (2, 4, 6, 8, 10, 12)


def write(folder, prefix, config, **more):
    """A folder of Hugging Face's BERT with drawn weights."""
    flat = flax.traverse_util.flatten_dict(shapes(systems.build("bert", config)), sep="/")
    parts = weight_map.pieces(bert.HUGGING_FACE.weights, {n: x.shape for n, x in flat.items()})
    tensors = {
        one.tensor: drawn_weights.draw(f"{prefix}.{one.tensor}", one.tensor_shape)
        for own in parts.values()
        for one in own
    }
    folder.mkdir()
    save_file(tensors | more, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(bert.HUGGING_FACE.to_config(config)))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A student with the map to a teacher's width that the authors' code keeps, and a teacher."""
    made = tmp_path_factory.mktemp("folders")
    own = {name: value for name, value in TINY.items() if name in TEACHER}
    student = TEACHER | own | FINE_TUNED
    fit = {"fit_dense.weight": np.ones((24, 12)), "fit_dense.bias": np.ones(24)}
    more = {name: value.astype(np.float32) for name, value in fit.items()}
    return (
        write(made / "student", "student", student, **more),
        write(made / "teacher", "teacher", TEACHER | FINE_TUNED),
    )


def settings(folder, model):
    """The config of a run that starts from a folder."""
    config = defaults()
    config.system = "tinybert"
    config.model = model
    config.initialize = str(folder)
    config.optimizer = {"name": "sgd", "schedule": "constant", "learning_rate": 0.1}
    config.optimizer.frozen = ("teacher",)
    return config


@pytest.fixture(scope="module")
def golden(folders):
    """A student and its teacher with the weights of the golden file, its batch and its arrays."""
    student, teacher = folders
    distilled = model_side.build(
        of_config(settings(student, task(teacher))), devices=jax.devices()[:1]
    )
    params = distilled.initial_state().params
    for name in ("hidden_map", "embedding_map"):
        params[name] = {"kernel": jnp.asarray(drawn_weights.draw(name, (12, 24)))}
    arrays = dict(np.load(GOLDEN))
    batch = model.side("encoder", arrays["batch/input_ids"], arrays["batch/attention_mask"]) | {
        "encoder_token_types": arrays["batch/token_type_ids"],
        "label": np.array([1, 4]),
    }
    return distilled.module, params, batch, arrays


ALL = {"attention": 1.0, "hidden": 1.0, "embedding": 1.0, "prediction": 1.0, "temperature": 1.7}


@functools.partial(jax.jit, static_argnames=("module",))
def _value_and_grad(module, params, batch, key):
    def mean(params):
        total, weight, metrics = tinybert.task_loss(
            "classification", module, params, batch, key, **ALL
        )
        return total / weight, metrics

    return jax.value_and_grad(mean, has_aux=True)(params)


def test_losses_and_gradients_are_those_of_pytorch(golden):
    module, params, batch, arrays = golden
    (total, metrics), gradient = _value_and_grad(module, params, batch, None)
    expected = {name: arrays[f"loss/{name}"] for name in ALL if name != "temperature"}
    names = {"prediction": "prediction/soft_cross_entropy"}
    for name, value in expected.items():
        found, weight = metrics[names.get(name, f"{name}/distance")]
        # Float32 sums of two frameworks differ in their order.
        np.testing.assert_allclose(found / weight, value, rtol=1e-4)
    np.testing.assert_allclose(total, sum(expected.values()), rtol=1e-4)
    layer = jax.tree.map(lambda leaf: leaf[0], gradient["encoder"]["layers"]["block"])
    found = {
        "query": layer["self_attention"]["query"]["kernel"].reshape(12, 12).T,
        "words": gradient["embeddings"]["token"]["embedding"],
        "hidden_map": gradient["hidden_map"]["kernel"],
        "embedding_map": gradient["embedding_map"]["kernel"],
        "classifier": gradient["head"]["classifier"]["kernel"].T,
    }
    for name, value in found.items():
        np.testing.assert_allclose(value, arrays[f"gradient/{name}"], atol=1e-4, rtol=1e-3)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient["teacher"]))


def test_the_teacher_has_no_dropout(golden):
    module, params, batch, _ = golden
    compare = jax.jit(
        functools.partial(losses.forward, module, method="compare"), static_argnames=("layers",)
    )
    (quiet, teacher), (noisy, same) = (
        compare(params, batch, key) for key in (None, jax.random.key(0))
    )
    jax.tree.map(np.testing.assert_array_equal, same, teacher)
    assert all(np.any(np.asarray(quiet[name] != noisy[name])) for name in quiet)


def test_a_loss_of_weight_0_is_left_out(golden):
    module, params, batch, _ = golden

    def names(head="classification", **weights):
        loss = functools.partial(tinybert.task_loss, head, module, **weights)
        return set(jax.eval_shape(lambda p: loss(p, batch, None), params)[2])

    first = {"attention/distance", "hidden/distance", "embedding/distance"}
    assert names() == first
    assert names(attention=0.0) == first - {"attention/distance"}
    labels = {"labels/cross_entropy", "labels/accuracy", "labels/constant_accuracy"}
    second = dict.fromkeys(("attention", "hidden", "embedding"), 0.0)
    assert names(**second, prediction=1.0) == {"prediction/soft_cross_entropy", *labels}
    assert names(**second, labels=1.0) == labels
    with pytest.raises(ValueError, match=r"loss.attention, .*, loss.labels are all 0"):
        names(**second)
    with pytest.raises(ValueError, match=r"'regression' predicts no distribution.*loss.labels=1.0"):
        names("regression", **second, prediction=1.0)
    with pytest.raises(ValueError, match=r"loss.temperature=0.0 must be above 0"):
        names(prediction=1.0, temperature=0.0)
    alone = systems.build("tinybert", task("") | {"teacher": TINY["teacher"]})
    with pytest.raises(ValueError, match=r"loss.hidden is for a student with a teacher"):
        tinybert.task_loss("classification", alone, params, batch, None, hidden=1.0)


def test_distances_are_float32_whatever_the_dtype():
    student = jnp.full((2, 1, 3, 8), 256.0, jnp.bfloat16)
    teacher = (student + 2).at[0, 0, 0, 0].set(0)
    total, weight, _ = distillation.hidden_states(student, teacher, jnp.ones((1, 3)))
    assert total.dtype == jnp.float32
    # In bfloat16, with 8 bits, the sum would stop at 65,536.
    np.testing.assert_allclose(total, 5 * 4 + (256**2 + 7 * 4) / 8, rtol=1e-6)
    assert weight == 3


def test_masked_scores_are_no_difference():
    scores = np.random.default_rng(0).standard_normal((2, 2, 1, 3, 4, 4)).astype(np.float32)
    student, teacher = jnp.asarray(scores)
    total = distillation.attention_scores(student, teacher, jnp.ones((1, 4, 4)))[0]
    one = distillation.attention_scores(
        student.at[..., 3].set(MASKED), teacher.at[..., 3].set(MASKED), jnp.ones((1, 4, 4))
    )[0]
    shown = np.square(scores[0] - scores[1]).mean(axis=2).sum(axis=0)
    np.testing.assert_allclose(total, shown.sum(), rtol=1e-5)
    np.testing.assert_allclose(one, shown[..., :3].sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "teacher", "message"),
    [
        ({"layers": 6}, {}, r"model.layers=6: the teacher .* has 4 layers, and a student at most"),
        ({"layers": 3}, {}, r"model.layers=3 does not divide the 4 layers .* one of 1, 2, 4"),
        ({"heads": 4}, {}, r"model.heads=4: the teacher .* has 3, .* head by head"),
        ({"vocab_size": 50}, {}, r"model.vocab_size=50: the teacher .* has 41, .* the same tokens"),
        ({"positions": 32}, {}, r"model.positions=32: the teacher .* has only 16"),
        ({"layer_map": "middle"}, {}, r"model.layer_map='middle' does not exist.*uniform"),
        ({"start": "teacher"}, {}, r"model.start='teacher' does not exist"),
        ({}, {"labels": 2}, r"model.labels=5: the teacher .*folder=there\) has 2"),
        ({}, {"head": "tagging"}, r"model.head='classification': the teacher .* has 'tagging'"),
        (
            {"head": "multiple_choice"},
            {},
            r"model.head='multiple_choice': a student learns .*under",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(changes, teacher, message):
    model = task("there", **changes)
    model["teacher"] |= teacher
    with pytest.raises(ValueError, match=message):
        systems.build("tinybert", model)


def test_a_student_as_deep_as_its_teacher_or_with_another_map_is_not_refused():
    assert systems.build("tinybert", TINY | {"layers": 4}).teacher_layers == (1, 2, 3, 4)
    top = systems.build("tinybert", TINY | {"layers": 3, "layer_map": "top"})
    assert top.teacher_layers == (2, 3, 4)


def test_general_distillation_starts_at_random_beside_its_teacher(folders, tmp_path):
    _, teacher = folders
    model = model_side.build(of_config(settings(teacher, TINY)), devices=jax.devices()[:1])
    params = jax.device_get(model.initial_state().params)
    weights = load_file(teacher / "model.safetensors")
    words = params["teacher"]["embeddings"]["token"]["embedding"]
    np.testing.assert_array_equal(words, weights["bert.embeddings.word_embeddings.weight"])
    assert 0.015 < np.std(params["embeddings"]["token"]["embedding"]) < 0.025
    with pytest.raises(ValueError, match="initialize is not set"):
        model_side.build(of_config(settings("", TINY)))
    model.pretrained(params).save_pretrained(tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    assert stored["architectures"] == ["BertModel"]
    kept = from_pretrained(tmp_path / "out")
    assert (kept.system, kept.config["d_ff"]) == ("bert", 20)
    assert kept.params.keys() == {"embeddings", "encoder", "head"}
    for name, part in kept.params.items():
        jax.tree.map(np.testing.assert_array_equal, part, params[name])


def test_a_student_s_folder_is_read_without_its_map_and_written_as_a_bert(
    folders, golden, tmp_path
):
    student, _ = folders
    read = from_pretrained(student)  # as the system bert
    assert from_pretrained(student, system="tinybert").params.keys() == read.params.keys()
    _, params, _, _ = golden
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], read.params["encoder"])
    jax.tree.map(np.testing.assert_array_equal, params["head"], read.params["head"])
    config = TINY | FINE_TUNED
    own = {name: params[name] for name in ("embeddings", "encoder", "head")}
    made = Pretrained(systems.build("tinybert", config), own, system="tinybert", config=config)
    made.save_pretrained(tmp_path / "out")
    written, original = (
        load_file(one / "model.safetensors") for one in (tmp_path / "out", student)
    )
    assert original.keys() - written.keys() == {"fit_dense.weight", "fit_dense.bias"}
    jax.tree.map(np.testing.assert_array_equal, written, {n: original[n] for n in written})


def test_a_random_start_reads_the_teacher_alone(folders):
    student, teacher = folders
    model = task(teacher, start="random")
    config = settings(student, model)
    params = model_side.build(of_config(config), devices=jax.devices()[:1]).initial_state().params
    words = load_file(student / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert np.abs(np.asarray(params["embeddings"]["token"]["embedding"]) - words).min() > 0


def test_a_teacher_without_the_head_is_refused(folders, tmp_path):
    student, _ = folders
    model = task(student)  # which has fewer layers than a teacher
    with pytest.raises(ValueError, match=r"student lacks .*layer.2"):
        model_side.build(of_config(settings(student, model))).initial_state()
    headless = write(tmp_path / "headless", "teacher", TEACHER | {"head": "features"})
    with pytest.raises(ValueError, match=r"headless lacks classifier.bias, classifier.weight that"):
        model_side.build(of_config(settings(student, task(headless)))).initial_state()
    with pytest.raises(ValueError, match=r"has the head 'features'; .* fine-tune it first"):
        configs.get_config(f"prediction:{headless}")
    with pytest.raises(ValueError, match=r"configs/tinybert.py:prediction lacks its teacher"):
        configs.get_config("prediction")
    with pytest.raises(ValueError, match="there is no folder"):
        configs.get_config(f"intermediate:{tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("step", "weights", "rate"),
    [
        ("intermediate", {"attention": 1, "hidden": 1, "embedding": 1, "prediction": 0}, 5e-5),
        ("prediction", {"attention": 0, "hidden": 0, "embedding": 0, "prediction": 1}, 3e-5),
    ],
)
def test_the_config_of_a_step_comes_from_the_teacher(folders, step, weights, rate):
    _, teacher = folders
    config = configs.get_config(f"{step}:{teacher}")
    config.system = "tinybert"
    config.model = TINY | config.model.to_dict() | {"dropout": 0.1, "dtype": "float32"}
    completed = completion.complete(of_config(config))
    made = completed.settings
    assert (made.model["head"], made.model["labels"]) == ("classification", LABELS)
    assert made.model["teacher"]["folder"] == str(teacher)
    assert made.optimizer["learning_rate"] == rate
    assert weights.items() <= made.loss.items()
    assert made.data.task == "labelled_files"
    assert model_side.build(completed).module.teacher_layers == (2, 4)
