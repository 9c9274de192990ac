"""DistilBERT: its published size, where the student begins, its losses, a run with a teacher."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import defaults, parse, to_dict
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import distillation, forward
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import bert, distilbert

# Of `distilbert/distilbert-base-uncased`, which the paper rounds to 66M: the encoder, and with the
# head of masked tokens.
PUBLISHED = {"features": 66_362_880, "masked_lm": 66_985_530}
VOCABULARY, LENGTH = 32, 10
TEACHER = bert.SIZES["base"] | {
    "head": "masked_lm",
    "vocab_size": VOCABULARY,
    "positions": 12,
    "layers": 4,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
}
TINY = distilbert.student_of("bert", TEACHER)


def initialized(module, seed=0):
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return init(jax.random.key(seed))


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


@pytest.mark.parametrize("head", PUBLISHED)
def test_parameters_as_published(head):
    tree = shapes(systems.build("distilbert", distilbert.SIZES["base"] | {"head": head}))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) == PUBLISHED[head]


@functools.cache
def teacher():
    """A teacher with weights so large that its layers and its predictions differ much."""
    params = initialized(systems.build("bert", TEACHER), seed=1)
    return jax.tree.map(lambda x: x * 10 if x.ndim > 1 and x.shape[-1] > 1 else x, params)


@functools.cache
def start():
    module = systems.build("distilbert", TINY)
    return module, module.start(teacher())


def batch():
    random = np.random.default_rng(0)
    weights = np.zeros((3, LENGTH), np.float32)
    weights[0, [2, 7]], weights[1, 1] = 1, 1
    segments = np.ones((3, LENGTH), np.int32)
    segments[1, 6:], segments[2] = 0, 0  # the last row only pads
    tokens = random.integers(5, VOCABULARY, (2, 3, LENGTH))
    return {
        "encoder_input_tokens": jnp.asarray(tokens[0]),
        "encoder_target_tokens": jnp.asarray(tokens[1]),
        "encoder_loss_weights": jnp.asarray(weights),
        "encoder_segment_ids": jnp.asarray(segments),
    }


@jax.jit
def loss(params, batch, key=None, **settings):
    return distilbert.loss(systems.build("distilbert", TINY), params, batch, key, **settings)


def test_of_twelve_layers_those_of_the_authors_code_are_taken():
    config = TEACHER | {"layers": 12}
    module = systems.build("distilbert", distilbert.student_of("bert", config))
    numbered = jax.tree.map(
        lambda leaf: jnp.broadcast_to(
            jnp.arange(len(leaf)).reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape
        ),
        shapes(module)["teacher"],
    )
    layers = module.start(numbered)["encoder"]["layers"]
    for leaf in jax.tree.leaves(layers):
        assert leaf.reshape(6, -1)[:, 0].tolist() == [0, 2, 4, 7, 9, 11]


def test_a_student_begins_with_layers_of_its_teacher():
    _, params = start()
    jax.tree.map(np.testing.assert_array_equal, params["teacher"], teacher())
    own, theirs = params["encoder"]["layers"]["block"], teacher()["encoder"]["layers"]["block"]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[np.array([0, 3])]), own, theirs)
    assert params["embeddings"].keys() == {"token", "position", "norm"}
    for name, part in params["embeddings"].items():
        jax.tree.map(np.testing.assert_array_equal, part, teacher()["embeddings"][name])
    jax.tree.map(np.testing.assert_array_equal, params["head"], teacher()["head"])


def test_looped_layers_are_taken_as_scanned_ones_are():
    scanned = start()[1]["encoder"]["layers"]
    layers = unstack_layers(teacher()["encoder"]["layers"], layers=4)
    looped = teacher() | {"encoder": {"layers": layers}}
    params = systems.build("distilbert", TINY | {"loop": "unroll"}).start(looped)
    expected = unstack_layers(scanned, layers=2)
    jax.tree.map(np.testing.assert_array_equal, params["encoder"]["layers"], expected)


def test_a_student_of_another_form_is_refused():
    wide = systems.build("distilbert", TINY | {"d_model": 32})
    with pytest.raises(ValueError, match="needs parameters of the same shapes"):
        wide.start(teacher())


def test_the_loss_is_the_weighted_sum_of_three_means():
    student, params = start()
    total, weight, metrics = loss(params, batch())
    networks = ((student, params), (systems.build("bert", TEACHER), teacher()))
    student_logits, teacher_logits = (
        np.asarray(jax.jit(functools.partial(forward, network))(p, batch(), None)["logits"])
        for network, p in networks
    )
    places = [(0, 2), (0, 7), (1, 1)]
    targets = batch()["encoder_target_tokens"]
    log_probs = np.asarray(jax.nn.log_softmax(student_logits))
    masked = -np.mean([log_probs[row, place, targets[row, place]] for row, place in places])
    t = np.asarray(jax.nn.softmax(teacher_logits / 2))
    s = np.asarray(jax.nn.log_softmax(student_logits / 2))
    softly = 4 * np.mean([np.sum(t[at] * (np.log(t[at]) - s[at])) for at in places])
    a, b = (
        np.asarray(
            jax.jit(functools.partial(network.apply, method="encode"))({"params": p}, batch())
        )
        for network, p in networks
    )
    cosines = np.sum(a * b, -1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    angle = np.mean(1 - cosines[batch()["encoder_segment_ids"] > 0])
    assert weight == 3
    assert min(softly, angle) > 0.01
    np.testing.assert_allclose(total / weight, 2 * masked + 5 * softly + angle, rtol=1e-4)
    for name, value in {"soft_targets/divergence": softly, "cosine/distance": angle}.items():
        np.testing.assert_allclose(metrics[name][0] / metrics[name][1], value, rtol=1e-4)


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 8)))
    weights = jnp.ones((2, 3))
    soft = functools.partial(distillation.soft_targets, temperature=2.0)
    for compare in (soft, distillation.cosine):
        gradient = jax.grad(lambda y, compare=compare: compare(y, x, weights)[0])(x)
        np.testing.assert_allclose(compare(x, x, weights)[0], 0, atol=1e-6)
        np.testing.assert_allclose(gradient, 0, atol=1e-6)
    # Another length of a vector, or a constant on all logits, is no difference.
    np.testing.assert_allclose(soft(x + 3, x, weights)[0], 0, atol=1e-5)
    np.testing.assert_allclose(distillation.cosine(3 * x, x, weights)[0], 0, atol=1e-5)


def test_a_temperature_must_be_above_0():
    x = jnp.zeros((1, 1, 4))
    with pytest.raises(ValueError, match=r"loss.temperature=0.0 must be above 0"):
        distillation.soft_targets(x, x, jnp.ones((1, 1)), temperature=0.0)


def test_the_teacher_gets_no_gradient_and_no_dropout():
    _, params = start()

    def distance(params, key):
        return loss(params, batch(), key)[0]

    gradient = jax.jit(jax.grad(distance))(params, jax.random.key(0))
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient.pop("teacher")))
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient["encoder"]))


def settings(folder, **model):
    config = defaults()
    config.system = "distilbert"
    config.model = TINY | model
    config.initialize = str(folder)
    config.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": 0.01,
        "frozen": ("teacher",),
    }
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The teacher, as Hugging Face has it."""
    path = tmp_path_factory.mktemp("teacher")
    Pretrained(
        systems.build("bert", TEACHER), teacher(), system="bert", config=TEACHER
    ).save_pretrained(path)
    return path


@pytest.mark.slow
def test_a_run_trains_the_student_and_keeps_the_teacher(folder, tmp_path):
    config = settings(folder)
    model = model_side.build(of_config(config))
    state = model.initial_state()
    jax.tree.map(np.testing.assert_array_equal, state.params, start()[1])
    students = sum(leaf.size for leaf in jax.tree.leaves(state.params | {"teacher": {}}))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim)
    assert moments == 2 * students
    before = jax.device_get(state.params)
    with partitioning.layout(model.mesh):
        rows = {name: np.repeat(value, 8, axis=0) for name, value in batch().items()}
        state, _ = model.train_step(state, model.put(rows))
    after = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, after["teacher"], before["teacher"])
    kernels = [p["head"]["masked_lm"]["transform"]["kernel"] for p in (before, after)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.001

    metadata = {"config": to_dict(parse(config))}
    with Checkpoints(tmp_path / "run", metadata=metadata) as saver:
        saver.save(1, state, {0: b""})
    tuned = from_pretrained(tmp_path / "run", head="classification", labels=3)
    assert "teacher" not in tuned.params
    np.testing.assert_array_equal(
        tuned.params["embeddings"]["token"]["embedding"], after["embeddings"]["token"]["embedding"]
    )
    whole = from_pretrained(tmp_path / "run")
    whole.save_pretrained(tmp_path / "out")
    kept = from_pretrained(tmp_path / "out")
    assert kept.config["head"] == "masked_lm"
    assert "teacher" not in kept.params
    tokens = batch()["encoder_input_tokens"]
    # Two programs for the same sums, in which the compiler may order them otherwise.
    np.testing.assert_allclose(kept(tokens).logits, whole(tokens).logits, atol=1e-5)


def test_a_student_may_start_at_random_beside_its_teacher(folder):
    params = model_side.build(of_config(settings(folder, start="random"))).initial_state().params
    jax.tree.map(np.testing.assert_array_equal, params["teacher"], teacher())
    own, copied = params["encoder"]["layers"]["block"], start()[1]["encoder"]["layers"]["block"]
    kernels = [layers["feed_forward"]["wi"]["kernel"] for layers in (own, copied)]
    assert np.abs(kernels[0] - kernels[1]).min() > 0
    assert 0.017 < np.std(kernels[0]) < 0.023  # BERT's initialization
    with pytest.raises(ValueError, match=r"model.start='radnom' .*Did you mean 'random'"):
        model_side.build(of_config(settings(folder, start="radnom")))


def test_a_run_of_an_earlier_version_starts_from_its_teacher(folder):
    config = settings(folder)
    config.model = {name: value for name, value in TINY.items() if name != "start"}
    state = model_side.build(of_config(config)).initial_state()
    jax.tree.map(np.testing.assert_array_equal, state.params, start()[1])


def test_a_run_without_a_teacher_or_with_another_is_refused(folder):
    with pytest.raises(ValueError, match="initialize is not set"):
        model_side.build(of_config(settings("")))
    other = settings(folder)
    other.model.teacher.system = "roberta"
    other.model.teacher.update({"padding": 1, "norm_epsilon": 1e-5})
    with pytest.raises(ValueError, match="'bert'; the teacher must be of system 'roberta'"):
        model_side.build(of_config(other)).initial_state()
    deeper = settings(folder)
    deeper.model.teacher.layers = 5
    with pytest.raises(ValueError, match=r"encoder\.layer\.4"):
        model_side.build(of_config(deeper)).initial_state()


def test_any_teacher_of_bert_s_form_has_a_student():
    config = systems.find("roberta").sizes["base"] | {
        name: TEACHER[name] for name in ("vocab_size", "positions", "layers", "d_model", "d_ff")
    }
    config |= {"heads": 2, "head": "masked_lm"}
    module = systems.build("distilbert", distilbert.student_of("roberta", config))
    weights = initialized(systems.build("roberta", config))
    params = module.start(weights)
    # Its table of positions begins with rows that are no position of a text.
    table = weights["embeddings"]["position"]["embedding"]
    assert table.shape == (14, 16)
    np.testing.assert_array_equal(params["embeddings"]["position"]["embedding"], table[2:])
