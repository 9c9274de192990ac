"""Logit filters keep what they should, and samples follow the filtered distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.decoding import (
    Forbid,
    Force,
    MinNewTokens,
    NoRepeatNgrams,
    Progress,
    TopK,
    TopP,
    VocabularySize,
    greedy,
    make_filters,
    sample,
)
from t5x_like.decoding.filters import apply_filters, log_softmax


def after(*tokens, room=8):
    """The progress of one row that has these tokens."""
    row = list(tokens) + [0] * (room - len(tokens))
    return Progress(np.int32(len(tokens)), np.array([row], np.int32))


def kept(logit_filter, logits, progress=None):
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    out = np.asarray(jax.jit(logit_filter)(logits, progress or after()))
    np.testing.assert_array_equal(out[jnp.isfinite(out)], logits[jnp.isfinite(out)])
    return [np.flatnonzero(row).tolist() for row in np.isfinite(out)]


PROBABILITIES = np.log(np.float32([[0.1, 0.4, 0.15, 0.3, 0.05]]))


@pytest.mark.parametrize(
    ("p", "ids"),
    [(1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.999, [0, 1, 2, 3, 4])],
)
def test_top_p_keeps_the_fewest_tokens_with_that_mass(p, ids):
    assert kept(TopP(p), PROBABILITIES) == [ids]


def test_top_p_of_one_keeps_tokens_whose_probability_rounds_to_nothing():
    assert kept(TopP(1.0), [0.0, -200.0, -100.0]) == [[0, 1, 2]]


@pytest.mark.parametrize(("p", "ids"), [(0.2, [0]), (0.5, [0, 1]), (0.6, [0, 1, 2])])
def test_top_p_takes_the_lowest_ids_of_a_tie(p, ids):
    assert kept(TopP(p), [2.0, 2.0, 2.0, 2.0]) == [ids]


def test_top_p_counts_each_row_by_itself():
    assert kept(TopP(0.5), [[9.0, 0.0, 0.0], [0.0, 0.1, 0.0]]) == [[0], [0, 1]]


@pytest.mark.parametrize(("k", "ids"), [(1, [1]), (3, [1, 2, 3]), (5, range(5)), (9, range(5))])
def test_top_k_keeps_k_tokens_or_all(k, ids):
    assert kept(TopK(k), PROBABILITIES) == [list(ids)]


def test_top_k_takes_the_lowest_ids_of_a_tie():
    assert kept(TopK(2), [1.0, 5.0, 1.0, 1.0]) == [[0, 1]]


def test_top_k_and_top_p_bring_nothing_back_that_is_ruled_out():
    logits = [[-np.inf, 0.0, -np.inf, -np.inf], [-np.inf] * 4]
    assert kept(TopK(3), logits) == [[1], []]
    assert kept(TopP(0.9), logits) == [[1], []]
    assert not np.isnan(jax.jit(TopP(0.9))(np.float32(logits), after())).any()


def test_rules_ban_ids():
    assert kept(Forbid([0, 3]), PROBABILITIES) == [[1, 2, 4]]
    assert kept(Forbid(2), PROBABILITIES) == [[0, 1, 3, 4]]
    assert kept(VocabularySize(3), PROBABILITIES) == [[0, 1, 2]]
    assert kept(MinNewTokens(2, eos_ids=[1, 4]), PROBABILITIES, after(7)) == [[0, 2, 3]]
    assert kept(MinNewTokens(2, eos_ids=1), PROBABILITIES, after(7, 7)) == [[0, 1, 2, 3, 4]]


def test_a_forced_token_is_certain_at_its_step_and_changes_nothing_at_others():
    force = jax.jit(Force([1, 3], step=2))
    np.testing.assert_array_equal(force(PROBABILITIES, after(7)), PROBABILITIES)
    np.testing.assert_array_equal(force(PROBABILITIES, after(7, 7, 7)), PROBABILITIES)
    forced = force(PROBABILITIES, after(7, 7))
    np.testing.assert_array_equal(forced, [[-np.inf, 0, -np.inf, 0, -np.inf]])
    with pytest.raises(ValueError, match="step=-1 of forced ids: at least 0"):
        Force(1, step=-1)


def test_the_first_and_the_last_token_are_forced_after_all_rules():
    filters = make_filters(
        first_ids=2, last_ids=[4], max_new_tokens=3, min_new_tokens=9, eos_ids=4, temperature=0.5
    )
    assert filters[1:3] == (Force(2, step=0), Force(4, step=2))

    @jax.jit
    def filtered(progress):
        return greedy(apply_filters(PROBABILITIES, filters, progress=progress))

    def greedily(*tokens):
        return int(filtered(after(*tokens))[0])

    assert [greedily(), greedily(2), greedily(2, 1)] == [2, 1, 4]


@pytest.mark.parametrize(
    ("n", "tokens", "ids"),
    [
        (1, (), [0, 1, 2, 3, 4]),  # The padding 0 of unwritten places is no token.
        (1, (3, 1), [0, 2, 4]),
        (2, (1, 2, 3, 1), [0, 1, 3, 4]),
        (2, (1, 2, 1, 4, 1), [0, 1, 3]),
        (3, (1, 2, 3, 1, 2), [0, 1, 2, 4]),
        (3, (1,), [0, 1, 2, 3, 4]),
        (3, (0, 0), [0, 1, 2, 3, 4]),
        (9, (1, 1, 1, 1), [0, 1, 2, 3, 4]),  # Longer than the row will ever be.
    ],
)
def test_no_ngram_comes_twice(n, tokens, ids):
    assert kept(NoRepeatNgrams(n), PROBABILITIES, after(*tokens)) == [ids]


def test_greedy_takes_the_lowest_id_of_a_tie():
    np.testing.assert_array_equal(greedy(jnp.array([[0.0, 3.0, 3.0], [1.0, 0.0, 0.0]])), [1, 0])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.7},
    ],
)
def test_samples_follow_the_filtered_softmax(settings):
    logits, draws = np.array([1.0, -0.5, 0.3, 2.0, -1.0, 0.0, 1.9], np.float32), 20_000
    filters = make_filters(**settings)

    @jax.jit
    def draw(logits, key):
        rows = jnp.tile(logits, (draws, 1))
        return sample(apply_filters(rows, filters, progress=after()), key)

    counts = np.bincount(draw(logits, jax.random.key(3)), minlength=len(logits))
    # Written out by hand: scale, cut to k, cut to the nucleus, normalise what is left.
    p = np.exp(logits / settings.get("temperature", 1.0))
    order = np.argsort(-p)
    p[order[settings.get("top_k", len(p)) :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= settings.get("top_p", 1.0)]] = 0
    p /= p.sum()
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(p))
    # A frequency's standard error is sqrt(p (1 - p) / draws). At 4 of them one frequency in
    # 16,000 is off by chance, and a wrong temperature, k or p is off by tens.
    np.testing.assert_array_less(
        np.abs(counts / draws - p), 4 * np.sqrt(p * (1 - p) / draws) + 1e-9
    )


def test_log_softmax_of_ruled_out_and_of_low_precision_logits():
    compiled = jax.jit(log_softmax)
    logits = np.float32([[0.0, -np.inf, 1.0], [-np.inf] * 3])
    np.testing.assert_allclose(np.exp(compiled(logits)).sum(-1), [1, 0], rtol=1e-6)
    low = np.random.default_rng(0).normal(size=(2, 100)).astype(jnp.bfloat16)
    assert compiled(low).dtype == jnp.float32
    np.testing.assert_array_equal(compiled(low), compiled(low.astype(np.float32)))


def test_filters_of_equal_settings_are_equal():
    settings = {"vocabulary_size": 9, "min_new_tokens": 2, "no_repeat_ngram_size": 3}
    one = make_filters(**settings, eos_ids=1, temperature=0.7, top_k=4, top_p=0.5)
    two = make_filters(**settings, eos_ids=[1], temperature=0.7, top_k=4, top_p=0.5)
    assert len(one) == 6
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_p": 0.0}, "top_p=0.0: above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p=1.5: above 0 and at most 1"),
        ({"top_k": 0}, "top_k=0: at least 1"),
        ({"temperature": 0.0}, "temperature=0.0: above 0.*greedy"),
        ({"temperature": float("nan")}, "temperature=nan: above 0"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1: at least 0"),
        ({"min_new_tokens": 1, "eos_ids": -1}, "eos_ids=-1: token ids start at 0"),
        ({"no_repeat_ngram_size": 0}, "no_repeat_ngram_size=0: at least 1"),
        ({"vocabulary_size": 0}, "vocabulary_size=0: at least 1"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, words):
    with pytest.raises(ValueError, match=words):
        make_filters(**settings)


def test_a_vocabulary_beyond_the_model_is_named():
    with pytest.raises(ValueError, match="vocabulary_size=9: the model has 5 tokens"):
        VocabularySize(9)(PROBABILITIES, after())


def test_sampling_without_a_key_is_named():
    with pytest.raises(ValueError, match="rng=None: sampling needs a key"):
        sample(PROBABILITIES, None)
