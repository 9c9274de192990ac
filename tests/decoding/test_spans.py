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


def search(start, end, allowed, *, max_length, null_position):
    """The best (start, end, score) of a row, the first of equals."""
    best = (0, 0, -np.inf)
    for i in range(L):
        for j in range(i, min(i + max_length, L)):
            possible = allowed[i : j + 1].all()
            if null_position is not None:
                possible &= not i <= null_position <= j
            if possible and start[i] + end[j] > best[2]:
                best = (i, j, start[i] + end[j])
    return best


@pytest.mark.parametrize("null_position", [0, 4, None])
@pytest.mark.parametrize("max_length", [1, 3, L, 100])
def test_the_best_span_is_found(max_length, null_position):
    start, end, allowed = draw(max_length)
    settings = {"max_length": max_length, "null_position": null_position}
    found = best_spans(start, end, allowed=allowed, **settings)
    expected = [search(*row, **settings) for row in zip(start, end, allowed, strict=True)]
    np.testing.assert_array_equal(np.stack(found[:3], axis=1), expected)


def test_no_answer_scores_the_sum_of_both_logits_of_its_token():
    start, end, allowed = draw(0)
    found = best_spans(start, end, allowed=allowed, max_length=3, null_position=2)
    np.testing.assert_array_equal(found.null_score, start[:, 2] + end[:, 2])
    always = best_spans(start, end, allowed=allowed, max_length=3, null_position=None)
    assert jnp.all(always.null_score == -jnp.inf)


def test_where_nothing_is_allowed_no_answer_wins():
    start, end, _ = draw(0)
    found = best_spans(start, end, allowed=np.zeros((B, L), bool), max_length=3)
    assert jnp.all(found.score < found.null_score)
    np.testing.assert_array_equal(np.stack(found[:2]), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"max_length": 3, "null_position": L}, "null_position=9: 0 to 8 allowed"),
        ({"max_length": 3, "allowed": np.ones((B, 1), bool)}, r"allowed \(32, 1\) must have"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    start, end, allowed = draw(0)
    with pytest.raises(ValueError, match=message):
        best_spans(start, end, **({"allowed": allowed} | settings))
