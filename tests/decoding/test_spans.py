"""The best span, against a search through all of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.decoding.spans import best_spans

B, L = 32, 9


def draw(seed):
    """Logits of few different values, so that some spans tie, and what is allowed."""
    generator = np.random.default_rng(seed)
    logits = generator.integers(-3, 4, (2, B, L)).astype(np.float32)
    return *logits, generator.random((B, L)) < 0.7


def search(start, end, allowed, parts=None, *, max_length, null_position):
    """The best (start, end, score) of a row, the first of equals."""
    best = (0, 0, -np.inf)
    for i in range(L):
        for j in range(i, min(i + max_length, L)):
            possible = allowed[i : j + 1].all()
            possible &= parts is None or len({*parts[i : j + 1]}) == 1
            if null_position is not None:
                possible &= not i <= null_position <= j
            if possible and start[i] + end[j] > best[2]:
                best = (i, j, start[i] + end[j])
    return best


NULLS = {"first": np.zeros(B, int), "different": np.arange(B) % L, "none": None}


@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("max_length", [1, 3, L, 100])
def test_the_best_span_is_found(max_length, nulls):
    start, end, allowed = draw(max_length)
    at = NULLS[nulls]
    found = best_spans(start, end, allowed=allowed, max_length=max_length, null_positions=at)
    each = [None] * B if at is None else at
    expected = [
        search(*row, max_length=max_length, null_position=one)
        for *row, one in zip(start, end, allowed, each, strict=True)
    ]
    np.testing.assert_array_equal(np.stack(found[:3], axis=1), expected)


def test_a_span_does_not_leave_its_part():
    start, end, allowed = draw(1)
    parts = np.sort(np.random.default_rng(0).integers(0, 3, (B, L)), axis=1)
    settings = {"allowed": allowed, "max_length": 4, "null_positions": None}
    found = best_spans(start, end, **settings, parts=parts)
    expected = [
        search(*row, max_length=4, null_position=None)
        for row in zip(start, end, allowed, parts, strict=True)
    ]
    np.testing.assert_array_equal(np.stack(found[:3], axis=1), expected)
    assert np.any(best_spans(start, end, **settings).score > found.score)


def test_no_answer_scores_the_sum_of_both_logits_of_its_token():
    start, end, allowed = draw(0)
    at = NULLS["different"]
    found = best_spans(start, end, allowed=allowed, max_length=3, null_positions=at)
    np.testing.assert_array_equal(found.null_score, (start + end)[np.arange(B), at])
    always = best_spans(start, end, allowed=allowed, max_length=3, null_positions=None)
    assert jnp.all(always.null_score == -jnp.inf)


def test_where_nothing_is_allowed_no_answer_wins():
    start, end, _ = draw(0)
    nothing = np.zeros((B, L), bool)
    found = best_spans(start, end, allowed=nothing, max_length=3, null_positions=NULLS["different"])
    assert jnp.all(found.score < found.null_score)
    np.testing.assert_array_equal(np.stack(found[:2]), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"max_length": 3, "allowed": np.ones((B, 1), bool)}, r"allowed \(32, 1\) must have"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    start, end, allowed = draw(0)
    with pytest.raises(ValueError, match=message):
        best_spans(start, end, **({"allowed": allowed, "null_positions": None} | settings))
