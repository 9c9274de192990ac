"""The conditional random field: as pytorch-crf has it, and the sum over all sequences."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses
from t5x_like.losses import labels
from t5x_like.nn.linear_chain import Chain, best_tags, log_likelihood

TYPES = {"tags": np.int32, "counts": bool}
FROZEN = {
    name: np.array(values, TYPES.get(name, np.float32)) if name != "best" else values
    for name, values in json.loads(
        (Path(__file__).parents[1] / "golden" / "linear_chain.json").read_text()
    ).items()
}
CHAIN = Chain(*(jnp.asarray(FROZEN[name]) for name in ("transitions", "first", "last")))
GIVEN = FROZEN["logits"], FROZEN["tags"], FROZEN["counts"]
ROUNDING = 1e-5  # of sums of some ten float32 terms of order 1


def test_likelihoods_and_best_sequences_are_pytorchs():
    logits, tags, counts = GIVEN
    found = log_likelihood(CHAIN, logits, tags, counts)
    np.testing.assert_allclose(found, FROZEN["log_likelihood"], atol=ROUNDING)
    best = best_tags(CHAIN, logits, counts)
    for row, wanted in zip(np.asarray(best), FROZEN["best"], strict=True):
        assert row[: len(wanted)].tolist() == wanted


def spread(array):
    """The arrays with a position before each that does not count."""
    empty = np.zeros_like(array)
    return np.stack([empty, array], axis=2).reshape(len(array), -1, *array.shape[2:])


def test_positions_that_do_not_count_are_skipped():
    logits, tags, counts = map(spread, GIVEN)
    logits = np.where(counts[..., None], logits, 100.0)
    found = log_likelihood(CHAIN, logits, tags, counts)
    np.testing.assert_allclose(found, FROZEN["log_likelihood"], atol=ROUNDING)
    best = np.asarray(best_tags(CHAIN, logits, counts))
    for row, here, wanted in zip(best, counts, FROZEN["best"], strict=True):
        assert row[here].tolist() == wanted


def test_all_sequences_have_a_probability_of_one():
    logits, _, counts = GIVEN
    rows = np.array(list(itertools.product(range(4), repeat=4)), np.int32)
    each = [np.broadcast_to(x[1, :4], (len(rows), *x[1, :4].shape)) for x in (logits, counts)]
    found = log_likelihood(CHAIN, each[0], rows, each[1])
    assert np.exp(found).sum() == pytest.approx(1, abs=ROUNDING)
    assert rows[np.argmax(found)].tolist() == FROZEN["best"][1]


def test_without_transitions_it_is_the_loss_of_separate_tags():
    logits, tags, counts = GIVEN
    chain = jax.tree.map(jnp.zeros_like, CHAIN)
    ours = labels.chained_tagging(chain, logits, tags, counts)
    separate = losses.tagging(logits, tags, counts.astype(np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=ROUNDING), ours, separate)


def test_a_row_without_tags_has_no_loss_and_a_gradient_of_zero():
    logits, tags, _ = GIVEN
    nothing = np.zeros(tags.shape, bool)
    value, gradient = jax.value_and_grad(
        lambda x: jnp.sum(log_likelihood(CHAIN, x, tags, nothing))
    )(jnp.asarray(logits))
    assert value == 0
    assert not np.any(gradient)
