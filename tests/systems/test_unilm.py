"""UniLM: who sees whom under each mask, and its loss."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses
from t5x_like.losses import forward
from t5x_like.models.networks.unified_encoder import KINDS
from t5x_like.systems import bert, unilm
from tests.tiny_unilm import TINY, make, read, shapes


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
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes(system.build(config))))


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_sees_what_figure_1_has(kind):
    module, _ = make()
    batch = pair() | {"language_model": jnp.array(KINDS.index(kind))}
    dense = unilm.UnifiedEncoder.mask(module, batch).dense(queries=8, keys=8)
    rows = ["".join(map(str, row)) for row in np.asarray(dense[0, 0], int)]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_through_all_layers_an_output_depends_on_what_it_sees_and_on_all_of_it(kind):
    batch = pair()
    tokens = batch["encoder_input_tokens"]

    @jax.vmap
    def changed(place):
        return read(batch | {"encoder_input_tokens": tokens.at[0, place].add(1)}, kind)["logits"][0]

    difference = np.abs(changed(jnp.arange(8)) - read(batch, kind)["logits"][0]).max(axis=-1)
    rows = ["".join(str(int(moved > 1e-5)) for moved in column) for column in difference.T]
    assert rows[:7] == FIGURE_1[kind]


@pytest.mark.parametrize("kind", KINDS)
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
def test_segments_tell_the_kinds_apart(kind, segments):
    table = gradient_under(pair(padding=0), KINDS.index(kind))["embeddings"]["token_type"]
    assert set(np.flatnonzero(np.abs(table["embedding"]).max(axis=1))) == segments


@jax.jit
def gradient_under(batch, number):
    """Of the squares of all logits, by the parameters."""
    module, params = make()

    def total(params):
        outputs = forward(module, params, {**batch, "language_model": number}, None)
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


def only(kind):
    """The shares by which no other kind is drawn."""
    return {name: float(name == kind) for name in KINDS}


def by_hand(kind):
    """The mean of the masked tokens, and of the pairs where they count."""
    outputs, targets = read(labelled(), kind), labelled()["encoder_target_tokens"]
    log_probs = np.asarray(jax.nn.log_softmax(outputs["logits"]))
    masked = -np.mean([log_probs[r, p, targets[r, p]] for r, p in [(0, 2), (0, 5), (1, 1)]])
    pairs = np.asarray(jax.nn.log_softmax(outputs["row_logits"]))
    return masked, -np.mean([pairs[0, 1], pairs[1, 0]]) if kind == "bidirectional" else 0.0


@jax.jit
def step(key):
    """The loss of a training step, its metrics, and its gradient."""
    module, params = make()

    def total(params):
        value, weight, metrics = unilm.loss(module, params, labelled(), key, predicted=0.3)
        return value, (weight, metrics)

    return jax.value_and_grad(total, has_aux=True)(params)


def drawn(metrics):
    """The kinds that a training step has counted."""
    return [kind for kind in KINDS if metrics[f"{kind}/cross_entropy"][1] > 0]


def test_a_step_has_the_loss_of_one_kind_and_bidirectional_that_of_pairs_too():
    seen = set()
    for seed in range(20):
        (total, (weight, metrics)), gradient = step(jax.random.key(seed))
        (kind,) = drawn(metrics)
        if kind in seen:
            continue
        seen.add(kind)
        masked, following = by_hand(kind)
        assert weight == 3
        np.testing.assert_allclose(total / weight, masked + following, rtol=1e-5)
        for name in ("cross_entropy", f"{kind}/cross_entropy"):
            np.testing.assert_allclose(metrics[name][0] / metrics[name][1], masked, rtol=1e-5)
        pairs = kind == "bidirectional"
        assert metrics["next_sentence/cross_entropy"][1] == (2 if pairs else 0)
        assert (np.abs(gradient["head"]["row"]["kernel"]).max() > 0) == pairs
    assert seen == set(KINDS)


def test_evaluation_is_the_mean_over_the_draw():
    module, params = make()
    shares = {"bidirectional": 0.5, "sequence_to_sequence": 0.2, "left_to_right": 0.3}
    shares["right_to_left"] = 0.0

    @jax.jit
    def run(params):
        return unilm.loss(module, params, labelled(), None, predicted=0.3, **shares)

    total, weight, metrics = run(params)
    expected = {kind: by_hand(kind) for kind in KINDS}
    sums = [share * sum(expected[kind]) for kind, share in shares.items()]
    np.testing.assert_allclose(total / weight, sum(sums), rtol=1e-5)
    means = {name: value / count for name, (value, count) in metrics.items()}
    masked = [share * expected[kind][0] for kind, share in shares.items()]
    np.testing.assert_allclose(means["cross_entropy"], sum(masked), rtol=1e-5)
    for kind, share in shares.items():
        assert (f"{kind}/cross_entropy" in means) == (share > 0)
    np.testing.assert_allclose(
        means["left_to_right/cross_entropy"], expected["left_to_right"][0], rtol=1e-5
    )
    following = expected["bidirectional"][1]
    np.testing.assert_allclose(means["next_sentence/cross_entropy"], following, rtol=1e-5)


def test_kinds_are_drawn_by_their_shares_and_each_batch_is_of_one():
    module, params = make()

    def weights(key):
        metrics = unilm.loss(module, params, labelled(), key, predicted=0.3)[2]
        return jnp.array([metrics[f"{kind}/cross_entropy"][1] for kind in KINDS])

    found = np.asarray(jax.lax.map(weights, jax.random.split(jax.random.key(3), 1200)))
    assert np.all(np.sort(found, axis=1) == [0, 0, 0, 3])
    # Four deviations of a share of 1200 draws: 0.054 for a third, 0.043 for a sixth.
    np.testing.assert_allclose(np.mean(found > 0, axis=0), [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=0.054)


def test_smoothing_reaches_the_masked_tokens():
    module, params = make()
    settings = {"predicted": 0.3, "label_smoothing": 0.1, **only("sequence_to_sequence")}
    run = jax.jit(functools.partial(unilm.loss, module, **settings))
    smoothed, _, _ = run(params, labelled(), None)
    logits = read(labelled(), "sequence_to_sequence")["logits"]
    targets, weights = labelled()["encoder_target_tokens"], labelled()["encoder_loss_weights"]
    expected = losses.cross_entropy(logits, targets, weights, label_smoothing=0.1)[0]
    np.testing.assert_allclose(smoothed, expected, rtol=1e-5)


def test_mistakes_are_told():
    module, params = make()
    with pytest.raises(ValueError, match="sum to 1"):
        unilm.loss(module, params, labelled(), None, left_to_right=0.5)
    with pytest.raises(ValueError, match=r"token_types=2: UniLM has 6"):
        unilm.build(TINY | {"token_types": 2})
