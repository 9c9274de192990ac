"""Beam search with Hugging Face's algorithm and stopping rule, so that it yields equal tokens."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t5x_like.decoding.decoder_contract import (
    DecodingCache,
    Extend,
    as_argument,
    check_request,
    is_one_of,
)
from t5x_like.decoding.filters import Filter, Progress, apply_filters, log_softmax
from t5x_like.names import hint

EarlyStopping = bool | Literal["never"]


@dataclasses.dataclass(frozen=True)
class PowerPenalty:
    """length ** alpha, Hugging Face's length_penalty: 0 ranks by log p, 1 by log p per token."""

    alpha: float = 1.0

    def __call__(self, length: int) -> float:
        """Return the divisor of log p for a hypothesis of `length` tokens."""
        return float(length**self.alpha)


@dataclasses.dataclass(frozen=True)
class GoogleNMTPenalty:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14): alpha 0.6 in the Transformer and T5."""

    alpha: float = 0.6

    def __call__(self, length: int) -> float:
        """Return the divisor of log p for a hypothesis of `length` tokens."""
        return float(((5 + length) / 6) ** self.alpha)


PER_TOKEN = PowerPenalty(1.0)


@flax.struct.dataclass
class Beams:
    """The n best hypotheses of each prompt, best first.

    Attributes:
        tokens: int32, up to and including the end token, then pad_id.
        lengths: int32, the end token included; 0 if a prompt has fewer than n hypotheses.
        scores: log p / length_penalty(length); -inf in the slots without a hypothesis.
    """

    tokens: Int[Array, "B n N"]
    lengths: Int[Array, "B n"]
    scores: Float[Array, "B n"]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static settings of a search; each distinct plan is compiled separately."""

    beams: int
    max_new_tokens: int
    eos_ids: tuple[int, ...]
    pad_id: int
    filters: tuple[Filter, ...]

    @property
    def candidates(self) -> int:
        """The candidates per prompt: enough that at least `beams` are not end tokens."""
        return max(2, 1 + len(self.eos_ids)) * self.beams


class _Ranking(flax.struct.PyTreeNode):
    """The length penalties for 1 to N tokens, and the rule for finishing a prompt.

    Attributes:
        penalties: the divisors of log p for finished hypotheses.
        bounds: the divisors that bound the final score of a running hypothesis.
        stop_when_full: whether a prompt is finished as soon as K of its hypotheses have ended.
    """

    penalties: Float[Array, " N"]
    bounds: Float[Array, " N"]
    stop_when_full: Bool[Array, ""]


class _State(flax.struct.PyTreeNode):
    """K running and the K best finished hypotheses per prompt; an empty slot has a score of -inf.

    Attributes:
        step: number of tokens in every running hypothesis.
        running_tokens: the tokens so far, padded to N.
        running_scores: sums of log p, best first.
        finished_tokens: the tokens including the end token, if there is one, padded to N.
        finished_lengths: 0 in an empty slot.
        finished_scores: log p divided by the length penalty, best first.
        improvable: whether a running hypothesis may still replace a finished hypothesis.
        prompt: the prompt tokens that filters count, or None.
    """

    step: Int[Array, ""]
    running_tokens: Int[Array, "B K N"]
    running_scores: Float[Array, "B K"]
    finished_tokens: Int[Array, "B K N"]
    finished_lengths: Int[Array, "B K"]
    finished_scores: Float[Array, "B K"]
    improvable: Bool[Array, " B"]
    prompt: Int[Array, "BK P"] | None


def beam_search(
    extend: Extend,
    logits: Float[Array, "B V"],
    cache: DecodingCache,
    *,
    beams: int,
    max_new_tokens: int,
    eos_ids: int | Sequence[int],
    pad_id: int = 0,
    length_penalty: Callable[[int], float] = PER_TOKEN,
    early_stopping: EarlyStopping = False,
    filters: Sequence[Filter] = (),
    prompt: Int[Array, "B P"] | None = None,
    returned: int = 1,
    room: int | None = None,
) -> Beams:
    """Search with `beams` hypotheses per prompt and return the `returned` best.

    Hypotheses of max_new_tokens tokens count as finished.

    Args:
        extend: (tokens [B, 1], cache) -> (logits [B, 1, V], cache), see `generate`.
        logits: the logits at the last token of each prompt, from prefill.
        cache: the cache of the B prompts, not yet repeated for the beams.
        beams: K, at most V.
        max_new_tokens: N.
        eos_ids: one id or several.
        pad_id: the padding token after the end of a hypothesis.
        length_penalty: maps the number of generated tokens (the end token included, the prompt
            not) to the divisor of log p.
        early_stopping: when to finish a prompt with K finished hypotheses. True: at once. False:
            when the best running hypothesis, scored at its current length, is below the worst
            finished one. "never": when no running hypothesis could exceed the worst finished one
            at any length.
        filters: applied to log p, which is not renormalized afterwards.
        prompt: the prompt tokens that filters count, see `generate`.
        returned: n, at most K.
        room: number of tokens that fit into the cache after the prompt, if known.

    Raises:
        ValueError: a setting is out of range.
    """
    ends = check_request(
        logits, max_new_tokens=max_new_tokens, eos_ids=eos_ids, pad_id=pad_id, room=room
    )
    plan = _Plan(beams, max_new_tokens, ends, pad_id, tuple(filters))
    _check(plan, vocabulary=logits.shape[1], returned=returned)
    ranking = _rank(length_penalty, lengths=max_new_tokens, early_stopping=early_stopping)
    before = None if prompt is None else jnp.repeat(jnp.asarray(prompt, jnp.int32), beams, axis=0)
    state = _search(as_argument(extend), logits, cache, ranking, before, plan=plan)
    return Beams(
        tokens=state.finished_tokens[:, :returned],
        lengths=state.finished_lengths[:, :returned],
        scores=state.finished_scores[:, :returned],
    )


def _rank(
    length_penalty: Callable[[int], float], *, lengths: int, early_stopping: EarlyStopping
) -> _Ranking:
    penalties = np.array([length_penalty(length) for length in range(1, lengths + 1)], float)
    for length, penalty in enumerate(penalties, start=1):
        if not 0 < penalty < math.inf:
            raise ValueError(
                f"length_penalty={length_penalty!r} gives {penalty} at length {length}: it must be "
                "above 0 and finite at every length up to max_new_tokens"
            )
    bounds = penalties
    if early_stopping == "never":  # log p <= 0: the largest penalty ahead bounds the final score
        bounds = np.maximum.accumulate(penalties[::-1])[::-1]
    elif not isinstance(early_stopping, bool):
        nearest = hint(str(early_stopping), ["False", "True", "never"])
        raise ValueError(f"early_stopping={early_stopping!r} does not exist.{nearest}")
    return _Ranking(
        penalties=jnp.asarray(penalties, jnp.float32),
        bounds=jnp.asarray(bounds, jnp.float32),
        stop_when_full=jnp.asarray(early_stopping is True),
    )


def _check(plan: _Plan, *, vocabulary: int, returned: int) -> None:
    if not 1 <= plan.beams <= vocabulary:
        raise ValueError(
            f"beams={plan.beams}: 1 to {vocabulary} allowed, at most the vocabulary's size"
        )
    if not 1 <= returned <= plan.beams:
        raise ValueError(f"returned={returned}: 1 to beams={plan.beams} allowed")
    if plan.candidates > plan.beams * vocabulary:
        raise ValueError(
            f"eos_ids={plan.eos_ids}: too many end tokens for a vocabulary of {vocabulary}; a beam "
            "needs another token to continue with"
        )


@functools.partial(jax.jit, static_argnames="plan")
def _search(
    extend: Extend,
    logits: Array,
    cache: Any,
    ranking: _Ranking,
    prompt: Array | None,
    *,
    plan: _Plan,
) -> _State:
    prompts = logits.shape[0]

    def unfinished(carry: tuple[_State, Any]) -> Bool[Array, ""]:
        state = carry[0]
        going_on = (state.step < plan.max_new_tokens) & jnp.any(state.improvable)
        return going_on & ~(ranking.stop_when_full & jnp.all(state.finished_scores > -jnp.inf))

    def step(carry: tuple[_State, Any]) -> tuple[_State, Any]:
        state, cache = carry
        last = jax.lax.dynamic_slice_in_dim(state.running_tokens, state.step - 1, 1, axis=2)
        logits, cache = extend(last.reshape(-1, 1), cache)
        state, rows = _advance(state, logits[:, -1], ranking, plan=plan)
        return state, cache.reorder(rows)

    every_beam = jnp.repeat(logits, plan.beams, axis=0)
    # The parents are not needed: all beams of a prompt start from the same cache row.
    state, _ = _advance(_start(prompts, prompt, plan=plan), every_beam, ranking, plan=plan)
    return jax.lax.while_loop(unfinished, step, (state, cache.repeat(plan.beams)))[0]


def _start(prompts: int, prompt: Array | None, *, plan: _Plan) -> _State:
    shape = (prompts, plan.beams)
    tokens = jnp.full((*shape, plan.max_new_tokens), plan.pad_id, jnp.int32)
    empty = jnp.full(shape, -jnp.inf)
    return _State(
        step=jnp.zeros((), jnp.int32),
        running_tokens=tokens,
        # Start from one hypothesis: K equal hypotheses would choose the same tokens K times.
        running_scores=empty.at[:, 0].set(0.0),
        finished_tokens=tokens,
        finished_lengths=jnp.zeros(shape, jnp.int32),
        finished_scores=empty,
        improvable=jnp.ones((prompts,), bool),
        prompt=prompt,
    )


def _advance(
    state: _State, logits: Float[Array, "BK V"], ranking: _Ranking, *, plan: _Plan
) -> tuple[_State, Int[Array, " BK"]]:
    """Append a token to every running hypothesis; also return the row that each extends."""
    tokens, scores, parents = _candidates(state, logits, plan=plan)
    last_step = state.step + 1 == plan.max_new_tokens
    hits = last_step | is_one_of(
        jax.lax.dynamic_index_in_dim(tokens, state.step, axis=2, keepdims=False), plan.eos_ids
    )
    running_scores, chosen = jax.lax.top_k(jnp.where(hits, -jnp.inf, scores), plan.beams)
    state = _finish(state, tokens, jnp.where(hits, scores, -jnp.inf), ranking, plan=plan)
    bound = running_scores[:, 0] / ranking.bounds[state.step]
    new = state.replace(
        step=state.step + 1,
        running_tokens=_take(tokens, chosen),
        running_scores=running_scores,
        improvable=state.improvable & (bound > jnp.min(state.finished_scores, axis=1)),
    )
    first_row = jnp.arange(tokens.shape[0])[:, None] * plan.beams
    return new, (first_row + _take(parents, chosen)).reshape(-1)


def _candidates(
    state: _State, logits: Float[Array, "BK V"], *, plan: _Plan
) -> tuple[Int[Array, "B C N"], Float[Array, "B C"], Int[Array, "B C"]]:
    """Return each prompt's C best one-token continuations: tokens, log p, parent hypotheses."""
    prompts, beams, length = state.running_tokens.shape
    progress = Progress(state.step, state.running_tokens.reshape(-1, length), state.prompt)
    log_probs = apply_filters(log_softmax(logits), plan.filters, progress=progress)
    vocabulary = log_probs.shape[-1]
    totals = state.running_scores[:, :, None] + log_probs.reshape(prompts, beams, vocabulary)
    scores, best = jax.lax.top_k(totals.reshape(prompts, -1), plan.candidates)
    parents, token = best // vocabulary, best % vocabulary
    tokens = jax.lax.dynamic_update_slice_in_dim(
        _take(state.running_tokens, parents), token[:, :, None], state.step, axis=2
    )
    return tokens, scores, parents


def _finish(
    state: _State,
    tokens: Int[Array, "B C N"],
    scores: Float[Array, "B C"],
    ranking: _Ranking,
    *,
    plan: _Plan,
) -> _State:
    """Keep the K best of the finished hypotheses and the candidates with scores above -inf."""
    full = jnp.all(state.finished_scores > -jnp.inf, axis=1)
    accepts = state.improvable & ~(ranking.stop_when_full & full)
    # A candidate below the K best would not have been continued, so it may not finish.
    among_best = jnp.arange(plan.candidates) < plan.beams
    normalised = scores / ranking.penalties[state.step]
    scores = jnp.where(accepts[:, None] & among_best, normalised, -jnp.inf)
    lengths = jnp.where(scores > -jnp.inf, state.step + 1, 0)
    finished_scores, best = jax.lax.top_k(
        jnp.concatenate([state.finished_scores, scores], axis=1), plan.beams
    )
    # An empty slot contains padding, not the tokens of a rejected candidate.
    tokens = jnp.where(scores[:, :, None] > -jnp.inf, tokens, plan.pad_id)
    return state.replace(
        finished_tokens=_take(jnp.concatenate([state.finished_tokens, tokens], axis=1), best),
        finished_lengths=_take(jnp.concatenate([state.finished_lengths, lengths], axis=1), best),
        finished_scores=finished_scores,
    )


def _take(values: Array, indices: Int[Array, "B K"]) -> Array:
    """Select the `indices` [B, K] of each prompt from values [B, C, ...]."""
    return jax.vmap(lambda row, index: row[index])(values, indices)
