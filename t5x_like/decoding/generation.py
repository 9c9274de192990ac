"""Greedy decoding and sampling, in one compiled loop or streamed to a callback."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from t5x_like.decoding.decoder_contract import (
    DecodingCache,
    Extend,
    as_argument,
    check_request,
    is_one_of,
)
from t5x_like.decoding.filters import Chooser, Filter, Progress, apply_filters, greedy, log_softmax


@flax.struct.dataclass
class Generated:
    """Generated tokens, one row per sample; the samples of one prompt are adjacent.

    Attributes:
        tokens: int32, up to and including the end token, then pad_id.
        lengths: int32, the number of tokens of each row, the end token included.
        log_probs: the model's log p of each token, before any filter; 0 after the end. None if not
            requested.
        cache: the cache of the prompt and of all tokens but the last of the longest row; it has
            padding after the end of a row. None if not requested.
    """

    tokens: Int[Array, "B N"]
    lengths: Int[Array, " B"]
    log_probs: Float[Array, "B N"] | None
    cache: Any = None


@dataclasses.dataclass(frozen=True)
class StreamStep:
    """One new token per row: the argument of a stream's callback.

    Attributes:
        step: 0 for the first token after the prompt.
        tokens: [B] int32.
        live: [B] bool; False if the row had already ended, so that the token is padding.
        log_probs: [B, V] on the device, the model's log p of every token, before any filter.
    """

    step: int
    tokens: np.ndarray
    live: np.ndarray
    log_probs: jax.Array


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static settings of decoding; each distinct plan is compiled separately."""

    max_new_tokens: int
    eos_ids: tuple[int, ...]
    pad_id: int
    choose: Chooser
    filters: tuple[Filter, ...]
    log_probs: bool


class _State(flax.struct.PyTreeNode):
    step: Int[Array, ""]
    tokens: Int[Array, "B N"]
    lengths: Int[Array, " B"]
    ended: Bool[Array, " B"]
    log_probs: Float[Array, "B N"] | None
    cache: Any
    prompt: Int[Array, "B P"] | None


def generate(
    extend: Extend,
    logits: Float[Array, "B V"],
    cache: DecodingCache,
    *,
    max_new_tokens: int,
    eos_ids: int | Sequence[int],
    pad_id: int = 0,
    choose: Chooser = greedy,
    filters: Sequence[Filter] = (),
    prompt: Int[Array, "B P"] | None = None,
    rng: PRNGKeyArray | None = None,
    samples: int = 1,
    log_probs: bool = False,
    keep_cache: bool = False,
    room: int | None = None,
) -> Generated:
    """Decode until every row has ended or has max_new_tokens tokens, in one compiled loop.

    Args:
        extend: (tokens [B, 1], cache) -> (logits [B, 1, V], cache). Inside a jitted function it can
            be any callable. Outside, pass `jax.tree_util.Partial(function, params)` with the same
            `function` every time: it compiles once and takes the weights as arguments, whereas a
            new closure compiles again and embeds the weights as constants.
        logits: the logits at the last token of B prompts, from prefill.
        cache: the key-value cache of the prompts, from prefill.
        max_new_tokens: N.
        eos_ids: one id or several; with an empty tuple each row gets N tokens.
        pad_id: the padding token of rows that have ended.
        choose: `greedy` or `sample`, applied to the filtered logits.
        filters: applied to the logits in order.
        prompt: the prompt tokens that filters count (`Progress.prompt`).
        rng: one key for all steps, needed to sample.
        samples: continuations per prompt; there are B * samples rows.
        log_probs: whether to return the tokens' log-probabilities.
        keep_cache: whether to return the cache, to continue from it.
        room: number of tokens that fit into the cache after the prompt (cache_length minus the
            prompt's length); None skips the check.

    Raises:
        ValueError: a setting is out of range, or several samples are requested with `greedy`.
    """
    plan, logits, cache = _prepare(
        logits,
        cache,
        max_new_tokens=max_new_tokens,
        eos_ids=eos_ids,
        pad_id=pad_id,
        choose=choose,
        filters=filters,
        samples=samples,
        log_probs=log_probs,
        room=room,
    )
    before = _repeated(prompt, samples)
    state = _run(as_argument(extend), logits, cache, rng, before, plan=plan)
    generated = _generated(state)
    return dataclasses.replace(generated, cache=state.cache) if keep_cache else generated


def stream(
    extend: Extend,
    logits: Float[Array, "B V"],
    cache: DecodingCache,
    *,
    callback: Callable[[StreamStep], bool | None],
    rng: PRNGKeyArray | None = None,
    prompt: Int[Array, "B P"] | None = None,
    **settings: Any,
) -> Generated:
    """Generate like `generate`, and call `callback` after each new token of the rows.

    This is a Python loop over a compiled step, for one process. When the callback returns True,
    generation stops, and the rows contain the tokens so far. `cache` stays valid.

    Args:
        extend, logits, cache, rng, prompt: see `generate`.
        callback: called with a `StreamStep` for each step.
        settings: the other keyword arguments of `generate`, with the same errors.
    """
    plan, logits, cache = _prepare(logits, cache, **settings)
    extend = as_argument(extend)
    # Copy, since a step overwrites its input buffers, and these belong to the caller.
    before = _repeated(prompt, settings.get("samples", 1))
    state = _start(logits, jax.tree.map(jnp.copy, (cache, before)), plan=plan)
    live = np.ones(logits.shape[0], bool)
    for step in range(plan.max_new_tokens):
        first = logits if step == 0 else None
        state, tokens, log_probs = _step(extend, state, first, rng, plan=plan)
        stop = callback(StreamStep(step, np.asarray(tokens), live, log_probs))
        live = ~np.asarray(state.ended)
        if stop or not live.any():
            break
    return _generated(state)


def _prepare(
    logits: Float[Array, "B V"],
    cache: DecodingCache,
    *,
    max_new_tokens: int,
    eos_ids: int | Sequence[int],
    pad_id: int = 0,
    choose: Chooser = greedy,
    filters: Sequence[Filter] = (),
    samples: int = 1,
    log_probs: bool = False,
    room: int | None = None,
) -> tuple[_Plan, Float[Array, "R V"], DecodingCache]:
    """Check the settings, and repeat each prompt's logits and cache row for its samples."""
    ends = check_request(
        logits, max_new_tokens=max_new_tokens, eos_ids=eos_ids, pad_id=pad_id, room=room
    )
    plan = _Plan(max_new_tokens, ends, pad_id, choose, tuple(filters), log_probs)
    if samples < 1:
        raise ValueError(f"samples={samples}: at least 1 needed")
    if samples == 1:
        return plan, logits, cache
    if choose is greedy:
        raise ValueError(
            f"samples={samples}: choose=greedy gives equal rows; set choose=sample, or use "
            "beam_search"
        )
    return plan, jnp.repeat(logits, samples, axis=0), cache.repeat(samples)


def _repeated(prompt: Int[Array, "B P"] | None, samples: int) -> Int[Array, "R P"] | None:
    return None if prompt is None else jnp.repeat(jnp.asarray(prompt, jnp.int32), samples, axis=0)


@functools.partial(jax.jit, static_argnames="plan")
def _run(
    extend: Extend,
    logits: Array,
    cache: Any,
    rng: PRNGKeyArray | None,
    prompt: Array | None,
    *,
    plan: _Plan,
) -> _State:
    def unfinished(state: _State) -> Bool[Array, ""]:
        return (state.step < plan.max_new_tokens) & ~jnp.all(state.ended)

    def step(state: _State) -> _State:
        state, logits = _extend(extend, state)
        return _append(state, logits, rng, plan=plan)

    first = _append(_start(logits, (cache, prompt), plan=plan), logits, rng, plan=plan)
    return jax.lax.while_loop(unfinished, step, first)


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="state")
def _step(
    extend: Extend, state: _State, logits: Array | None, rng: PRNGKeyArray | None, *, plan: _Plan
) -> tuple[_State, Int[Array, " B"], Float[Array, "B V"]]:
    if logits is None:
        state, logits = _extend(extend, state)
    state = _append(state, logits, rng, plan=plan)
    return state, _last(state)[:, 0], log_softmax(logits)


def _start(logits: Float[Array, "B V"], read: tuple[Any, Array | None], *, plan: _Plan) -> _State:
    """Return the state after the prompt; `read` is the prompt's cache and its tokens."""
    rows, (cache, prompt) = logits.shape[0], read
    return _State(
        step=jnp.zeros((), jnp.int32),
        tokens=jnp.full((rows, plan.max_new_tokens), plan.pad_id, jnp.int32),
        lengths=jnp.zeros((rows,), jnp.int32),
        ended=jnp.zeros((rows,), bool),
        log_probs=jnp.zeros((rows, plan.max_new_tokens)) if plan.log_probs else None,
        cache=cache,
        prompt=prompt,
    )


def _extend(extend: Extend, state: _State) -> tuple[_State, Float[Array, "B V"]]:
    logits, cache = extend(_last(state), state.cache)
    return state.replace(cache=cache), logits[:, -1]


def _last(state: _State) -> Int[Array, "B 1"]:
    return jax.lax.dynamic_slice_in_dim(state.tokens, state.step - 1, 1, axis=1)


def _append(
    state: _State, logits: Float[Array, "B V"], rng: PRNGKeyArray | None, *, plan: _Plan
) -> _State:
    """Append one token to each row; padding if the row has ended."""
    progress = Progress(state.step, state.tokens, state.prompt)
    key = None if rng is None else jax.random.fold_in(rng, state.step)
    token = plan.choose(apply_filters(logits, plan.filters, progress=progress), key)
    token = jnp.where(state.ended, plan.pad_id, token).astype(jnp.int32)[:, None]
    log_probs = state.log_probs
    if log_probs is not None:
        chosen = jnp.take_along_axis(log_softmax(logits), token, axis=-1)
        chosen = jnp.where(state.ended[:, None], 0, chosen)
        log_probs = jax.lax.dynamic_update_slice_in_dim(log_probs, chosen, state.step, axis=1)
    return state.replace(
        step=state.step + 1,
        tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, token, state.step, axis=1),
        lengths=state.lengths + ~state.ended,
        ended=state.ended | is_one_of(token[:, 0], plan.eos_ids),
        log_probs=log_probs,
    )


def _generated(state: _State) -> Generated:
    return Generated(tokens=state.tokens, lengths=state.lengths, log_probs=state.log_probs)
