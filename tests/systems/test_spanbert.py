"""SpanBERT: its published sizes, the span boundary objective, its weights as a BERT's."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.hf.folder import read_json
from t5x_like.losses import forward
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.systems import bert, spanbert
from t5x_like.systems.spanbert import SpanBoundary

# Hugging Face's counts of cased BERTs, which `SpanBERT/spanbert-base-cased` and `-large-cased` are;
# the authors round them to 110M and 340M.
PUBLISHED = {
    ("base", "features"): 108_310_272,
    ("base", "masked_lm"): 108_340_804,
    ("large", "features"): 333_579_264,
    ("large", "masked_lm"): 333_610_308,
}
TINY = spanbert.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "span_places": 3,
}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def count(config):
    module = systems.build("spanbert", config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)))


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    assert count(spanbert.SIZES[size] | {"head": head}) == PUBLISHED[size, head]


def test_the_objective_adds_two_layers_the_places_and_a_bias_for_each_token():
    base = spanbert.SIZES["base"]
    own = count(base | {"head": "pretraining"}) - count(base | {"head": "masked_lm"})
    layers = (2 * 768 + 200) * 768 + 768 * 768 + 2 * (768 + 2 * 768)
    assert own == 15 * 200 + layers + 28_996


def batch():
    """Two rows of 12: spans at 2 to 5 and 8, in the second row right after its first token."""
    random = np.random.default_rng(0)
    tokens, targets = random.integers(5, 32, (2, 2, 12))
    left, right = np.zeros((2, 2, 12), np.int32)
    for row, (first, last) in [(0, (2, 5)), (0, (8, 8)), (1, (1, 2))]:
        left[row, first : last + 1], right[row, first : last + 1] = first - 1, last + 1
    segments = np.ones((2, 12), np.int32)
    segments[1, 7:] = 0
    fields = {
        "encoder_input_tokens": tokens,
        "encoder_target_tokens": targets,
        "encoder_loss_weights": (right > 0).astype(np.float32),
        "encoder_segment_ids": segments,
        "encoder_span_left": left,
        "encoder_span_right": right,
    }
    return {name: jnp.asarray(value) for name, value in fields.items()}


@functools.cache
def make(head="pretraining"):
    module = systems.build("spanbert", TINY | {"head": head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Larger than 0.02, so that what one token changes is seen in float32.
    return module, jax.tree.map(lambda x: x * 5, jax.device_get(init(jax.random.key(0))))


@functools.cache
def outputs():
    module, params = make()
    return jax.jit(functools.partial(forward, module))(params, batch(), None)


@functools.cache
def loss(head="pretraining", *, predicted=0.5):
    module, params = make(head)
    loss = functools.partial(spanbert.SYSTEM.task({"head": head}).loss, predicted=predicted)
    return jax.jit(functools.partial(loss, module))(params, batch(), None)


def layer(x, dense, norm):
    x = jax.nn.gelu(x @ dense["kernel"] + dense["bias"], approximate=False)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return x * norm["scale"] + norm["bias"]


def test_a_token_is_predicted_from_the_ends_of_its_span_and_its_place_in_it():
    module, params = make()
    encode = jax.jit(functools.partial(module.apply, method="encode"))
    hidden = encode({"params": params}, batch())
    head = params["head"]["boundary"]
    # The token at 4 of the first row: the third of the span between 1 and 6.
    x = np.concatenate([hidden[0, 1], hidden[0, 6], head["place"][2]])
    x = layer(layer(x, head["first"], head["first_norm"]), head["second"], head["second_norm"])
    expected = params["embeddings"]["token"]["embedding"] @ x + head["output"]["bias"]
    np.testing.assert_allclose(outputs()["boundary_logits"][0, 4], expected, atol=ROUNDING)
    # Of the span of four tokens the last has no place in a table of three.
    known = np.flatnonzero(outputs()["boundary_known"][0]).tolist()
    assert known == [2, 3, 4, 8]


def test_only_the_ends_of_a_span_are_read_and_not_its_tokens():
    boundary = SpanBoundary(
        make_norm=bert.NORM,
        places=3,
        features=4,
        activation=jnp.tanh,
        kernel_init=bert.SIZES["base"].init,
    )
    random = np.random.default_rng(0)
    hidden, table = random.normal(size=(2, 12, 16)), random.normal(size=(32, 16))
    params = jax.jit(boundary.init)(jax.random.key(0), hidden, table, batch())

    def total(hidden):
        logits = boundary.apply(params, hidden, table, batch())["boundary_logits"]
        return jnp.sum(logits[0, 3] ** 2)

    gradient = np.abs(jax.jit(jax.grad(total))(hidden)).max(axis=-1)
    assert np.argwhere(gradient > 0).tolist() == [[0, 1], [0, 6]]


def by_hand(logits, places):
    targets = batch()["encoder_target_tokens"]
    log_probs = jax.nn.log_softmax(logits)
    return -np.mean([log_probs[row, at, targets[row, at]] for row, at in places])


def test_the_loss_is_the_sum_of_both_means():
    total, weight, metrics = loss()
    masked = [(0, 2), (0, 3), (0, 4), (0, 5), (0, 8), (1, 1), (1, 2)]
    expected = by_hand(outputs()["logits"], masked)
    with_place = [place for place in masked if place != (0, 5)]
    boundary = by_hand(outputs()["boundary_logits"], with_place)
    assert weight == len(masked)
    np.testing.assert_allclose(total / weight, expected + boundary, rtol=1e-5)
    np.testing.assert_allclose(metrics["cross_entropy"][0] / weight, expected, rtol=1e-5)
    found, number = metrics["span_boundary/cross_entropy"]
    assert number == len(with_place)
    np.testing.assert_allclose(found / number, boundary, rtol=1e-5)


def test_more_masked_tokens_than_are_read_make_the_loss_nan():
    assert np.isnan(loss(predicted=0.3)[0])


def test_without_its_objective_the_loss_is_that_of_masked_tokens():
    total, weight, metrics = loss("masked_lm")
    assert weight == 7
    np.testing.assert_allclose(total, metrics["cross_entropy"][0])


def test_rows_without_spans_are_refused():
    module, params = make()
    loss = functools.partial(spanbert.loss, module, rng=None)
    plain = {name: value for name, value in batch().items() if "span" not in name}
    with pytest.raises(ValueError, match=r"head='pretraining' of spanbert predicts masked spans"):
        jax.eval_shape(loss, params, plain)


def save(folder, head):
    module, params = make(head)
    model = PretrainedEncoder(module, params, system="spanbert", config=TINY | {"head": head})
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("head", ["masked_lm", "classification", "features"])
def test_hugging_face_reads_it_as_a_bert(head, tmp_path):
    model = save(tmp_path, head)
    assert read_json(tmp_path / "config.json")["model_type"] == "bert"
    read = from_pretrained(tmp_path)
    assert read.system == "bert"
    tokens = [[2, 7, 9, 3]]
    jax.tree.map(np.testing.assert_array_equal, vars(read(tokens)), vars(model(tokens)))


def test_the_objective_has_no_class_at_hugging_face(tmp_path):
    with pytest.raises(ValueError, match=r"no SpanBERT with model\.head='pretraining'.*masked_lm"):
        save(tmp_path, "pretraining")
    assert not list(tmp_path.iterdir())


def test_pretraining_may_go_on_from_a_bert(tmp_path):
    model = save(tmp_path, "masked_lm")
    read = from_pretrained(tmp_path, system="spanbert", head="pretraining", span_places=3)
    assert read.config == TINY | {"head": "pretraining"}
    boundary = read.params["head"].pop("boundary")
    jax.tree.map(np.testing.assert_array_equal, read.params, model.params)
    assert boundary["first"]["kernel"].shape == (2 * 16 + 200, 16)
