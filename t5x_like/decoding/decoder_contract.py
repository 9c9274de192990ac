"""The interface between decoding and a model, and the argument checks of all decoding functions."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.nn.embeddings import LearnedPositions


class DecodingCache(Protocol):
    """A key-value cache, or any other state, of B rows: a pytree of fixed shapes."""

    def repeat(self, times: int) -> Any:
        """Repeat each row `times` times, adjacently, for the beams or samples of a prompt."""

    def reorder(self, rows: Int[Array, " B"]) -> Any:
        """Return a cache whose row i is this cache's row `rows[i]`, a row of the same prompt."""


# (tokens [B, 1] int32, cache) -> (logits [B, 1, V] of the next token, cache). Pure.
Extend = Callable[[Int[Array, "B 1"], Any], tuple[Float[Array, "B 1 V"], Any]]


class _Same:
    """A callable that is compared by identity.

    jit finds compiled code by equality of the arguments. A method bound to a Flax module equals
    the same method of a module with other weights, so equality of `extend` must mean identity.
    """

    def __init__(self, function: Extend):
        self.function = function

    def __call__(self, tokens: Int[Array, "B 1"], cache: Any) -> tuple[Array, Any]:
        return self.function(tokens, cache)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


def as_argument(extend: Extend) -> jax.tree_util.Partial:
    """Wrap `extend` in a pytree; a `Partial`'s weights stay arguments of the compiled code."""
    if isinstance(extend, jax.tree_util.Partial):
        return extend
    return jax.tree_util.Partial(_Same(extend))


def is_one_of(tokens: Int[Array, "..."], ids: Sequence[int]) -> Bool[Array, "..."]:
    """Return whether each token is among `ids`, which may be empty."""
    return jnp.isin(tokens, jnp.asarray(ids, tokens.dtype))


def as_ids(ids: int | Sequence[int], *, name: str) -> tuple[int, ...]:
    """Convert one id or several to a sorted tuple without duplicates.

    Raises:
        ValueError: an id is below 0.
    """
    unique = sorted({int(i) for i in (ids if isinstance(ids, Sequence) else [ids])})
    if unique and unique[0] < 0:
        raise ValueError(f"{name}={ids!r}: token ids start at 0")
    return tuple(unique)


def check_request(
    logits: Float[Array, "B V"],
    *,
    max_new_tokens: int,
    eos_ids: int | Sequence[int],
    pad_id: int,
    room: int | None,
) -> tuple[int, ...]:
    """Check the arguments that all decoding functions share, before anything is compiled.

    Returns:
        `eos_ids` as a sorted tuple.

    Raises:
        ValueError: logits are not [B, V], an id is outside the vocabulary, or max_new_tokens is
            below 1 or does not fit into the cache.
    """
    if logits.ndim != 2:
        raise ValueError(
            f"logits of shape {logits.shape}: decoding needs the last prompt token's, [B, V]"
        )
    ends = as_ids(eos_ids, name="eos_ids")
    vocabulary = logits.shape[1]
    for name, value in [("pad_id", pad_id), *(("eos_ids", end) for end in ends)]:
        if not 0 <= value < vocabulary:
            raise ValueError(
                f"{name}={value} is outside the model's vocabulary: 0 to {vocabulary - 1} allowed"
            )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens}: at least 1 needed")
    # The model does not read the last token, so it needs no cache slot.
    if room is not None and max_new_tokens - 1 > room:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} does not fit: the cache has room for {room} tokens "
            f"after the prompt, so at most {room + 1} allowed (or a larger cache_length)"
        )
    return ends


def longest_rows(module: nn.Module) -> dict[str, int]:
    """Return {side: the largest number of tokens in a row}, for the sides `encoder` and `decoder`.

    A side without learned positions (with rotary, relative or sinusoidal positions) is not in the
    result. The network is only traced, on its example batch.
    """
    longest: dict[str, int] = {}

    def note(
        call: Any, arguments: Any, keywords: Any, context: nn.module.InterceptorContext
    ) -> Any:
        table = context.module
        if isinstance(table, LearnedPositions):
            side = module.sides[-1]
            if len(module.sides) > 1 and "encoder" in table.path:
                side = "encoder"
            rows = table.length - table.offset
            longest[side] = min(rows, longest.get(side, rows))
        return call(*arguments, **keywords)

    with nn.intercept_methods(note):
        jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    return longest


def check_room(longest: int | None, *, prompt: int, new: int) -> None:
    """Check that a network has positions for a prompt and its continuation.

    The last new token is not read, so it needs no position.

    Args:
        longest: a value of `longest_rows`; None for no limit.
        prompt: tokens of the longest prompt, without padding.
        new: tokens to generate.

    Raises:
        ValueError: it has too few positions.
    """
    if longest is None or prompt + new - 1 <= longest:
        return
    raise ValueError(
        f"max_new_tokens={new} after a prompt of {prompt} tokens needs {prompt + new - 1} "
        f"positions, and the model has {longest} (model.positions): at most "
        f"{max(0, longest - prompt + 1)} new tokens after this prompt, or a shorter prompt"
    )
