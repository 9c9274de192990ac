"""UniLM: who sees whom under each mask, and its loss."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses, systems
from t5x_like.losses import forward
from t5x_like.objectives import formats
from t5x_like.systems import bert, unilm
from t5x_like.systems.unilm import SEGMENTS
from tests.tiny_unilm import TINY, make, read, shapes, under


def pair(first=4, second=3, padding=1, rows=1):
    """Rows of two segments."""
    length = first + second + padding
    here = np.tile(np.arange(length), (rows, 1))
    return {
        "encoder_input_tokens": jnp.asarray(5 + here * 7 % 25),
        "encoder_token_types": jnp.asarray((here >= first) & (here < first + second), jnp.int32),
        "encoder_segment_ids": jnp.asarray(here < first + second, jnp.int32),
    }


def count(system, config):
    return sum(
        math.prod(leaf.shape)
        for leaf in jax.tree.leaves(shapes(systems.build(system.SYSTEM.name, config)))
    )


@pytest.mark.parametrize(("size", "published"), [("large", 336_226_108), ("base", 110_106_428)])
def test_it_has_the_parameters_of_bert_and_four_segments_more(size, published):
    config = unilm.SIZES[size]
    more = 4 * config["d_model"]
    assert count(unilm, config | {"vocab_size": 30522}) == published + more
    assert count(unilm, config) == count(bert, bert.SIZES[size] | {"vocab_size": 28996}) + more


# [CLS] a b [SEP] c d [SEP] and a place of padding: a row for each place that reads, a column for
# each that is read.
FIGURE_1 = {
    "bidirectional": ["11111110"] * 7,
    "sequence_to_sequence": ["11110000"] * 4 + ["11111000", "11111100", "11111110"],
    "left_to_right": ["1" * n + "0" * (8 - n) for n in range(1, 8)],
    "right_to_left": ["0" * n + "1" * (7 - n) + "0" for n in range(7)],
}


@pytest.mark.parametrize("kind", SEGMENTS)
def test_a_place_sees_what_figure_1_has(kind):
    module, _ = make()
    dense = unilm.UnifiedEncoder.mask(module, under(kind, pair())).dense(queries=8, keys=8)
    rows = ["".join(map(str, row)) for row in np.asarray(dense[0, 0], int)]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", SEGMENTS)
def test_through_all_layers_an_output_depends_on_what_it_sees_and_on_all_of_it(kind):
    batch = pair()
    tokens = batch["encoder_input_tokens"]

    @jax.vmap
    def changed(place):
        return read(batch | {"encoder_input_tokens": tokens.at[0, place].add(1)}, kind)["logits"][0]

    difference = np.abs(changed(jnp.arange(8)) - read(batch, kind)["logits"][0]).max(axis=-1)
    rows = ["".join(str(int(moved > 1e-5)) for moved in column) for column in difference.T]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", SEGMENTS)
def test_documents_in_one_row_are_read_as_in_rows_of_their_own(kind):
    one, two = pair(4, 3, 0), pair(2, 4, 0)
    packed = {name: jnp.concatenate([one[name], two[name]], axis=1) for name in one}
    packed["encoder_segment_ids"] = jnp.array([[1] * 7 + [2] * 6])
    packed["encoder_positions"] = jnp.array([[*range(7), *range(6)]])
    expected = [read(each, kind)["logits"] for each in (one, two)]
    # Sums over other lengths round differently.
    np.testing.assert_allclose(
        read(packed, kind)["logits"], np.concatenate(expected, axis=1), atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "segments"),
    [
        ("bidirectional", {0, 1}),
        ("sequence_to_sequence", {4, 5}),
        ("left_to_right", {2}),
        ("right_to_left", {3}),
    ],
)
def test_each_kind_has_segments_of_its_own(kind, segments):
    table = gradient_under(under(kind, pair(padding=0)))["embeddings"]["token_type"]
    assert set(np.flatnonzero(np.abs(table["embedding"]).max(axis=1))) == segments


@jax.jit
def gradient_under(batch):
    """Of the squares of all logits, by the parameters."""
    module, params = make()

    def total(params):
        outputs = forward(module, params, batch, None)
        return jnp.sum(jnp.square(outputs["logits"]))

    return jax.grad(total)(params)


def labelled():
    """Pairs with masked tokens; the last row only pads."""
    batch = pair(rows=3)
    random = np.random.default_rng(0)
    weights = np.zeros((3, 8), np.float32)
    weights[0, [2, 5]], weights[1, [1]] = 1, 1
    real = batch["encoder_segment_ids"].at[2].set(0)
    return batch | {
        "encoder_segment_ids": real,
        "encoder_target_tokens": jnp.asarray(random.integers(5, 32, (3, 8))),
        "encoder_loss_weights": jnp.asarray(weights),
        "label": jnp.asarray([1, 0, 0]),
    }


def by_hand(kind):
    """The mean of the masked tokens, and of the pairs where they count."""
    outputs, targets = read(labelled(), kind), labelled()["encoder_target_tokens"]
    log_probs = np.asarray(jax.nn.log_softmax(outputs["logits"]))
    masked = -np.mean([log_probs[r, p, targets[r, p]] for r, p in [(0, 2), (0, 5), (1, 1)]])
    pairs = np.asarray(jax.nn.log_softmax(outputs["row_logits"]))
    return masked, -np.mean([pairs[0, 1], pairs[1, 0]]) if kind == "bidirectional" else 0.0


def labelled_rows():
    """The two rows of text of `labelled`, padding, and the two once more."""
    return {name: jnp.concatenate([value, value[:2]]) for name, value in labelled().items()}


def mixed():
    """Rows of all four kinds, and the kind of each."""
    rows = labelled_rows()
    kinds = ["bidirectional", "sequence_to_sequence", "bidirectional", "left_to_right"]
    kinds.append("right_to_left")
    first, second = np.array([SEGMENTS[kind] for kind in kinds]).T[..., None]
    return kinds, rows | {
        "encoder_token_types": jnp.where(rows["encoder_token_types"], second, first)
    }


@jax.jit
def step(batch):
    """The loss of a training step, its metrics, and its gradient."""
    module, params = make()

    def total(params):
        value, weight, metrics = unilm.loss(module, params, batch, jax.random.key(0), predicted=0.3)
        return value, (weight, metrics)

    return jax.value_and_grad(total, has_aux=True)(params)


@pytest.mark.parametrize("kind", SEGMENTS)
def test_rows_of_one_kind_have_its_loss_and_bidirectional_rows_that_of_pairs_too(kind):
    (total, (weight, metrics)), gradient = step(under(kind, labelled()))
    masked, following = by_hand(kind)
    assert weight == 3
    np.testing.assert_allclose(total / weight, masked + following, rtol=1e-5)
    for name in ("cross_entropy", f"{kind}/cross_entropy"):
        np.testing.assert_allclose(metrics[name][0] / metrics[name][1], masked, rtol=1e-5)
    counted = [name for name in SEGMENTS if metrics[f"{name}/cross_entropy"][1] > 0]
    assert counted == [kind]
    pairs = kind == "bidirectional"
    assert metrics["next_sentence/cross_entropy"][1] == (2 if pairs else 0)
    assert (np.abs(gradient["head"]["row"]["kernel"]).max() > 0) == pairs


def test_each_row_of_a_batch_has_the_mask_and_the_loss_of_its_own_kind():
    kinds, batch = mixed()
    (total, (weight, metrics)), _ = step(batch)
    targets, weights = batch["encoder_target_tokens"], batch["encoder_loss_weights"]
    losses_by_kind = dict.fromkeys(SEGMENTS, 0.0)
    for row, kind in enumerate(kinds):
        alone = {name: value[row : row + 1] for name, value in labelled_rows().items()}
        log_probs = jax.nn.log_softmax(read(alone, kind)["logits"])[0]
        for place in np.flatnonzero(weights[row]):
            losses_by_kind[kind] -= float(log_probs[place, targets[row, place]])
    pair = jax.nn.log_softmax(
        read({k: v[:1] for k, v in labelled().items()}, kinds[0])["row_logits"]
    )
    assert weight == np.sum(weights) == 6
    for kind, expected in losses_by_kind.items():
        np.testing.assert_allclose(metrics[f"{kind}/cross_entropy"][0], expected, rtol=1e-5)
    # One real row of four is a pair with a label.
    expected = sum(losses_by_kind.values()) / 6 - float(pair[0, 1]) / 4
    np.testing.assert_allclose(total / weight, expected, rtol=1e-5)


def test_rows_have_the_segments_that_the_network_reads():
    assert formats.SEGMENTS == SEGMENTS


def test_smoothing_reaches_the_masked_tokens():
    module, params = make()
    run = jax.jit(functools.partial(unilm.loss, module, predicted=0.3, label_smoothing=0.1))
    smoothed, _, _ = run(params, under("sequence_to_sequence", labelled()), None)
    logits = read(labelled(), "sequence_to_sequence")["logits"]
    targets, weights = labelled()["encoder_target_tokens"], labelled()["encoder_loss_weights"]
    expected = losses.cross_entropy(logits, targets, weights, label_smoothing=0.1)[0]
    np.testing.assert_allclose(smoothed, expected, rtol=1e-5)


def test_rows_without_segments_and_other_numbers_of_segments_are_refused():
    module, params = make()
    plain = {name: x for name, x in labelled().items() if name != "encoder_token_types"}
    with pytest.raises(ValueError, match="unilm reads the language model of a row"):
        unilm.loss(module, params, plain, None)
    with pytest.raises(ValueError, match=r"token_types=2 must be 6"):
        systems.build("unilm", TINY | {"token_types": 2})
