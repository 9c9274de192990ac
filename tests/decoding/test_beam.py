"""Beam search finds the best sequences, scores them as the model does, and refuses nonsense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t5x_like.decoding import GoogleNMTPenalty, PowerPenalty, beam_search, generate, make_filters

STARTS = [2, 3, 4]
log_softmax = jax.jit(jax.nn.log_softmax)


def sparse_table(*, vocabulary, branches=2, seed=0):
    """A table in which every pair of tokens allows the end (1) and `branches` others."""
    random = np.random.default_rng(seed)
    table = np.full((vocabulary,) * 3, -np.inf, np.float32)
    for before, last in np.ndindex(vocabulary, vocabulary):
        others = random.choice(np.arange(2, vocabulary), branches, replace=False)
        table[before, last, [1, *others]] = random.normal(size=1 + branches)
    return table


def every_sequence(log_probs, start, *, length, penalty):
    """All sequences from `start`, best first: (score, tokens)."""
    found, growing = [], [((start, start), 0.0)]
    while growing:
        tokens, score = growing.pop()
        if len(tokens) - 2 == length or tokens[-1] == 1:
            found.append((score / penalty(len(tokens) - 2), tokens[2:]))
            continue
        p = log_probs[tokens[-2:]]
        growing += [((*tokens, i), score + p[i]) for i in np.flatnonzero(p > -np.inf).tolist()]
    return sorted(found, reverse=True)


@pytest.mark.parametrize(
    "penalty",
    [PowerPenalty(0.0), PowerPenalty(1.0), PowerPenalty(-0.5), GoogleNMTPenalty()],
)
def test_a_wide_beam_finds_the_best_of_all_sequences(table_model, penalty):
    # Of each pair 2 tokens go on: 4 live rows at length 2, 12 continuations; 12 beams drop none.
    table, length = sparse_table(vocabulary=13), 4
    found = beam_search(
        *table_model(table, STARTS),
        beams=12,
        returned=12,
        max_new_tokens=length,
        eos_ids=1,
        length_penalty=penalty,
        early_stopping="never",
    )
    log_probs = np.asarray(jax.nn.log_softmax(table.astype(np.float64)))
    for row, start in enumerate(STARTS):
        best = every_sequence(log_probs, start, length=length, penalty=penalty)[:12]
        # Sums of 4 float32 log p against float64.
        np.testing.assert_allclose(found.scores[row], [score for score, _ in best], rtol=1e-5)
        for tokens, size, (_, expected) in zip(
            found.tokens[row].tolist(), found.lengths[row].tolist(), best, strict=True
        ):
            assert tuple(tokens[:size]) == expected
            assert set(tokens[size:]) <= {0}


def test_fewer_sequences_than_beams_leave_empty_places(table_model):
    table = np.full((6, 6, 6), -np.inf, np.float32)
    table[..., [1, 2]] = 0.0  # Of length 2 at most: "1", "2 1" and "2 2".
    found = beam_search(
        *table_model(table, STARTS), beams=5, returned=5, max_new_tokens=2, eos_ids=1, pad_id=5
    )
    np.testing.assert_array_equal(np.sort(found.lengths, axis=1), [[0, 0, 1, 2, 2]] * 3)
    assert not np.isnan(found.scores).any()
    np.testing.assert_array_equal(found.scores[:, 3:], -np.inf)
    np.testing.assert_array_equal(found.tokens[:, 3:], 5)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_scores_are_those_of_the_sequence_read_anew(recurrent_model, early_stopping):
    penalty = GoogleNMTPenalty(0.6)
    extend, logits, cache = recurrent_model(STARTS)
    settings = {"beams": 4, "returned": 4, "max_new_tokens": 7, "eos_ids": 1}
    settings |= {"length_penalty": penalty, "early_stopping": early_stopping}
    found = jax.device_get(beam_search(extend, logits, cache, **settings))
    for beam in range(4):
        total, now, states = np.zeros(3), logits, cache
        for place in range(7):
            p = np.asarray(log_softmax(now))
            token = found.tokens[:, beam, place]
            live = place < found.lengths[:, beam]
            total += np.where(live, np.take_along_axis(p, token[:, None], 1)[:, 0], 0)
            now, states = extend(token[:, None], states)
            now = np.asarray(now)[:, 0]
        divided = total / [penalty(int(length)) for length in found.lengths[:, beam]]
        # Two float32 orders of summation over 7 tokens.
        np.testing.assert_allclose(found.scores[:, beam], divided, rtol=1e-5)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    for row in np.asarray(found.tokens):
        assert len(np.unique(row, axis=0)) == 4


def test_one_beam_that_stops_at_once_is_greedy(table_model, random_table):
    model = table_model(random_table(end=1.0), STARTS)
    settings = {"max_new_tokens": 9, "eos_ids": 1}
    one = beam_search(*model, beams=1, early_stopping=True, **settings)
    greedy = generate(*model, **settings, log_probs=True)
    np.testing.assert_array_equal(one.tokens[:, 0], greedy.tokens)
    mean = greedy.log_probs.sum(1) / greedy.lengths
    np.testing.assert_allclose(one.scores[:, 0], mean, rtol=1e-6)


def test_early_stopping_saves_steps(table_model, random_table):
    extend, logits, cache = table_model(random_table(end=2.0), STARTS)
    calls = []

    def counted(tokens, cache):
        jax.debug.callback(lambda: calls.append(1))
        return extend(tokens, cache)

    steps, settings = {}, {"beams": 2, "max_new_tokens": 30, "eos_ids": 1}
    for early_stopping in (True, False, "never"):
        calls.clear()
        beam_search(counted, logits, cache, **settings, early_stopping=early_stopping)
        jax.effects_barrier()
        steps[early_stopping] = len(calls)
    assert steps[True] < steps[False] < steps["never"] <= 29


def test_prompts_do_not_depend_on_their_neighbours(recurrent_model):
    settings = {"beams": 3, "returned": 3, "max_new_tokens": 6, "eos_ids": 1}
    together = beam_search(*recurrent_model(STARTS), **settings)
    for row, start in enumerate(STARTS):
        alone = beam_search(*recurrent_model([start]), **settings)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_filters_hold_in_every_beam(table_model, random_table):
    filters = make_filters(vocabulary_size=5, no_repeat_ngram_size=1, min_new_tokens=2, eos_ids=1)
    found = beam_search(
        *table_model(random_table(vocabulary=8, end=3.0), STARTS),
        beams=3,
        returned=3,
        max_new_tokens=4,
        eos_ids=1,
        pad_id=7,
        filters=filters,
    )
    assert found.lengths.min() >= 3
    for tokens, length in zip(
        np.asarray(found.tokens).reshape(9, 4), found.lengths.ravel().tolist(), strict=True
    ):
        assert tokens[:length].max() < 5
        assert len(set(tokens[:length].tolist())) == length


def test_low_precision_logits_are_summed_in_float32(table_model, random_table):
    table = random_table().astype(jnp.bfloat16)
    settings = {"beams": 3, "max_new_tokens": 6, "eos_ids": 1}
    low = beam_search(*table_model(table, STARTS), **settings)
    full = beam_search(*table_model(table.astype(jnp.float32), STARTS), **settings)
    assert low.scores.dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, low, full)


def test_prompts_over_eight_devices_decode_alike(table_model, random_table):
    extend, logits, cache = table_model(random_table(vocabulary=16), list(range(2, 10)))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    settings = {"beams": 2, "max_new_tokens": 5, "eos_ids": 1}
    expected = beam_search(extend, logits, cache, **settings)
    spread = beam_search(extend, *jax.device_put((logits, cache), rows), **settings)
    np.testing.assert_array_equal(spread.tokens, expected.tokens)
    np.testing.assert_allclose(spread.scores, expected.scores, rtol=1e-6)


def test_penalties_are_the_published_formulas():
    assert PowerPenalty(0.6)(10) == pytest.approx(10**0.6)
    assert GoogleNMTPenalty(0.6)(1) == 1.0
    assert GoogleNMTPenalty(0.6)(19) == pytest.approx(4**0.6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beams": 0}, "beams=0: 1 to 6 allowed"),
        ({"beams": 7}, "beams=7: 1 to 6 allowed"),
        ({"returned": 4}, "returned=4: 1 to beams=3 allowed"),
        ({"early_stopping": "nevr"}, "early_stopping='nevr' does not exist. Did you mean 'never'"),
        ({"early_stopping": "true"}, "early_stopping='true' does not exist. Did you mean 'True'"),
        (
            {"length_penalty": lambda length: 3 - length},
            "gives 0.0 at length 3: it must be above 0",
        ),
        ({"eos_ids": range(6)}, "too many end tokens for a vocabulary of 6"),
        ({"max_new_tokens": 9, "room": 7}, "max_new_tokens=9 does not fit"),
        ({"pad_id": 6}, "pad_id=6 is outside"),
    ],
)
def test_a_bad_request_is_named(table_model, random_table, settings, words):
    settings = {"beams": 3, "max_new_tokens": 5, "eos_ids": 1} | settings
    with pytest.raises(ValueError, match=words):
        beam_search(*table_model(random_table(), STARTS), **settings)
