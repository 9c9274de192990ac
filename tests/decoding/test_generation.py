"""One token at a time: equal to a plain Python loop, at once and streamed, and stops early."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t5x_like.decoding import MinNewTokens, generate, make_filters, sample, stream

STARTS = [2, 3, 4]
log_softmax = jax.jit(lambda logits: jax.nn.log_softmax(logits.astype(jnp.float32)))


def python_loop(extend, logits, cache, *, max_new_tokens, eos_ids, pad_id):
    """Greedy decoding, with neither early stop nor compiled loop."""
    rows, log_probs, ended = [], [], np.zeros(len(logits), bool)
    for _ in range(max_new_tokens):
        p = np.asarray(log_softmax(logits))
        token = np.where(ended, pad_id, p.argmax(-1))
        log_probs.append(np.where(ended, 0, np.take_along_axis(p, token[:, None], 1)[:, 0]))
        rows.append(token)
        ended = ended | np.isin(token, eos_ids)
        logits, cache = extend(token[:, None], cache)
        logits = np.asarray(logits)[:, 0]
    return np.stack(rows, 1), np.stack(log_probs, 1)


@pytest.mark.parametrize("eos_ids", [1, [1, 5], ()], ids=str)
def test_generate_equals_a_python_loop(recurrent_model, eos_ids):
    model = recurrent_model(STARTS)
    settings = {"max_new_tokens": 9, "pad_id": 6}
    found = generate(*model, **settings, eos_ids=eos_ids, log_probs=True)
    tokens, log_probs = python_loop(*model, **settings, eos_ids=eos_ids)
    np.testing.assert_array_equal(found.tokens, tokens)
    # Both float32, of sums over 7 tokens and 5 hidden numbers.
    np.testing.assert_allclose(found.log_probs, log_probs, atol=1e-5)
    ends = np.isin(tokens, eos_ids)
    first = np.where(ends.any(1), ends.argmax(1) + 1, tokens.shape[1])
    np.testing.assert_array_equal(found.lengths, first)


def test_generate_stops_when_every_row_has_ended(table_model, random_table):
    calls = []
    extend, logits, cache = table_model(random_table(end=2.0), STARTS)

    def counted(tokens, cache):
        jax.debug.callback(lambda: calls.append(1))
        return extend(tokens, cache)

    found = generate(counted, logits, cache, max_new_tokens=50, eos_ids=1)
    jax.effects_barrier()
    assert found.lengths.max() < 50
    # The first token needs no call, the end token is not read back.
    assert len(calls) == found.lengths.max() - 1


def test_rows_do_not_depend_on_their_neighbours(table_model, random_table):
    table = random_table(end=1.0)
    together = generate(*table_model(table, STARTS), max_new_tokens=12, eos_ids=1)
    for row, start in enumerate(STARTS):
        alone = generate(*table_model(table, [start]), max_new_tokens=12, eos_ids=1)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_samples_of_a_prompt_stand_side_by_side(recurrent_model):
    extend, logits, cache = recurrent_model(STARTS)
    settings = {"max_new_tokens": 6, "eos_ids": 1, "choose": sample, "log_probs": True}
    found = generate(extend, logits, cache, **settings, samples=4, rng=jax.random.key(0))
    rows = np.repeat(np.arange(3), 4)
    repeated = generate(extend, logits[rows], cache.repeat(4), **settings, rng=jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, found, repeated)
    assert len(np.unique(found.tokens[:4], axis=0)) > 1


def test_sampling_with_top_k_one_is_greedy_and_keys_matter(recurrent_model):
    model = recurrent_model(STARTS)
    run = functools.partial(generate, *model, max_new_tokens=8, eos_ids=(), choose=sample)
    greedy = generate(*model, max_new_tokens=8, eos_ids=())
    one = run(filters=make_filters(top_k=1), rng=jax.random.key(0))
    np.testing.assert_array_equal(one.tokens, greedy.tokens)
    first, again, other = (run(rng=jax.random.key(seed)).tokens for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_log_probs_are_the_models_before_any_filter(table_model, random_table):
    model = table_model(random_table(), STARTS)
    found = generate(
        *model, max_new_tokens=1, eos_ids=1, filters=make_filters(temperature=0.1), log_probs=True
    )
    p = log_softmax(model[1])
    np.testing.assert_allclose(found.log_probs[:, 0], p.max(-1), rtol=1e-6)


def test_low_precision_and_ruled_out_logits(table_model, random_table):
    table = random_table().astype(jnp.bfloat16).at[..., 1].set(-jnp.inf)
    low = generate(*table_model(table, STARTS), max_new_tokens=5, eos_ids=1, log_probs=True)
    full = generate(
        *table_model(table.astype(jnp.float32), STARTS),
        max_new_tokens=5,
        eos_ids=1,
        log_probs=True,
    )
    assert low.log_probs.dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, low, full)
    assert np.isfinite(low.log_probs).all()


@pytest.mark.parametrize("choose", [None, sample], ids=["greedy", "sample"])
def test_a_stream_equals_generate(recurrent_model, choose):
    settings = {"max_new_tokens": 9, "eos_ids": 1, "pad_id": 6, "log_probs": True}
    if choose is not None:
        filters = make_filters(temperature=0.7, top_p=0.9)
        settings |= {"choose": sample, "samples": 2, "filters": filters}
        settings["rng"] = jax.random.key(5)
    model, steps = recurrent_model(STARTS), []
    streamed = stream(*model, callback=steps.append, **settings)
    expected = generate(*model, **settings)
    jax.tree.map(np.testing.assert_array_equal, streamed, expected)
    heard = np.stack([step.tokens for step in steps], 1)
    np.testing.assert_array_equal(heard, expected.tokens[:, : len(steps)])
    assert len(steps) == expected.lengths.max()
    np.testing.assert_array_equal(np.sum([step.live for step in steps], 0), expected.lengths)
    p = np.stack([np.take_along_axis(s.log_probs, s.tokens[:, None], 1)[:, 0] for s in steps], 1)
    live = np.stack([step.live for step in steps], 1)
    np.testing.assert_allclose(np.where(live, p, 0), expected.log_probs[:, : len(steps)], rtol=1e-6)


def test_a_stream_ends_when_the_callback_returns_true(recurrent_model):
    model = recurrent_model(STARTS)
    settings = {"max_new_tokens": 9, "eos_ids": (), "pad_id": 0}
    cut = stream(*model, callback=lambda step: step.step == 3, **settings)
    whole = generate(*model, **settings)
    np.testing.assert_array_equal(cut.tokens[:, :4], whole.tokens[:, :4])
    np.testing.assert_array_equal(cut.tokens[:, 4:], 0)
    np.testing.assert_array_equal(cut.lengths, [4, 4, 4])


def test_a_stream_leaves_the_callers_cache_alone(table_model, random_table):
    extend, logits, cache = table_model(random_table(), STARTS)
    stream(extend, logits, cache, callback=lambda step: None, max_new_tokens=3, eos_ids=())
    np.testing.assert_array_equal(cache.token, STARTS)


def test_other_weights_run_the_same_compiled_code(random_table, table_model):
    traces = []
    look_up = table_model(random_table(), STARTS)[0].func

    def counted(table, tokens, cache):
        traces.append(1)
        return look_up(table, tokens, cache)

    tokens = []
    for seed in (0, 1):
        _, logits, cache = table_model(random_table(), STARTS)
        extend = jax.tree_util.Partial(counted, random_table(seed=seed))
        filters = make_filters(min_new_tokens=2, eos_ids=1)
        found = generate(extend, logits, cache, max_new_tokens=7, eos_ids=1, filters=filters)
        tokens.append(found.tokens)
    assert len(traces) == 1
    assert (tokens[0] != tokens[1]).any()


def test_a_method_is_not_taken_for_that_of_an_equal_object(table_model, random_table):
    class Model:
        """As a bound Flax module: equal to another one with other weights."""

        def __init__(self, seed):
            self.inner = table_model(random_table(seed=seed), STARTS)[0]

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def extend(self, tokens, cache):
            return self.inner(tokens, cache)

    _, logits, cache = table_model(random_table(), STARTS)
    run = functools.partial(generate, logits=logits, cache=cache, max_new_tokens=7, eos_ids=())
    for seed in (0, 1):
        expected = run(table_model(random_table(seed=seed), STARTS)[0])
        np.testing.assert_array_equal(run(Model(seed).extend).tokens, expected.tokens)


def test_generate_runs_inside_a_jitted_function(table_model, random_table):
    extend, logits, cache = table_model(random_table(), STARTS)

    @jax.jit
    def program(table, logits, cache):
        return generate(
            lambda tokens, cache: extend.func(table, tokens, cache),
            logits,
            cache,
            max_new_tokens=6,
            eos_ids=1,
        )

    expected = generate(extend, logits, cache, max_new_tokens=6, eos_ids=1)
    for _ in range(2):
        found = program(extend.args[0], logits, cache)
        np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_rows_over_eight_devices_decode_alike(table_model, random_table):
    extend, logits, cache = table_model(random_table(vocabulary=16), list(range(2, 10)))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    settings = {"max_new_tokens": 6, "eos_ids": 1, "filters": make_filters(top_p=0.9)}
    expected = generate(extend, logits, cache, **settings)
    spread = generate(extend, *jax.device_put((logits, cache), rows), **settings)
    np.testing.assert_array_equal(spread.tokens, expected.tokens)


@pytest.mark.parametrize("decode", [generate, functools.partial(stream, callback=print)])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0: at least 1"),
        ({"room": 3}, "max_new_tokens=5 does not fit: .* 3 tokens .* at most 4"),
        ({"eos_ids": [1, 6]}, "eos_ids=6 is outside .* 0 to 5 allowed"),
        ({"eos_ids": -1}, "eos_ids=-1: token ids start at 0"),
        ({"pad_id": -1}, "pad_id=-1 is outside .* 0 to 5 allowed"),
        ({"samples": 0}, "samples=0: at least 1"),
        ({"samples": 2}, "samples=2: choose=greedy gives equal rows"),
        ({"choose": sample}, "rng=None: sampling needs a key"),
        ({"filters": make_filters(vocabulary_size=7)}, "vocabulary_size=7: the model has 6"),
    ],
)
def test_a_bad_request_is_named(table_model, random_table, decode, settings, words):
    settings = {"max_new_tokens": 5, "eos_ids": 1} | settings
    with pytest.raises(ValueError, match=words):
        decode(*table_model(random_table(), STARTS), **settings)


def test_logits_of_a_whole_prompt_are_refused(table_model, random_table):
    extend, logits, cache = table_model(random_table(), STARTS)
    with pytest.raises(ValueError, match=r"logits of shape \(3, 1, 6\)"):
        generate(extend, logits[:, None], cache, max_new_tokens=5, eos_ids=1)


def test_the_cache_needs_no_place_for_the_last_token(table_model, random_table):
    model = table_model(random_table(), STARTS)
    found = generate(*model, max_new_tokens=4, eos_ids=(), room=3)
    assert found.tokens.shape == (3, 4)


def test_min_new_tokens_holds_until_then(table_model, random_table):
    model = table_model(random_table(end=9.0), STARTS)
    found = generate(*model, max_new_tokens=9, eos_ids=1, filters=[MinNewTokens(4, eos_ids=1)])
    np.testing.assert_array_equal(found.lengths, [5, 5, 5])
