"""What a decoder asks of a model, and the checks that all decoders share."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Cache(Protocol):
    """Keys, values or any other state of B rows, as a pytree of fixed shapes."""

    def gather(self, rows: Int[Array, "R"]) -> Any:
        """The cache whose row i is this cache's row `rows[i]`; rows may repeat or be left out."""

    def reorder(self, rows: Int[Array, "R"]) -> Any:
        """The same, where `rows[i]` and i are rows of one prompt: what is its own stays."""


# (tokens [B, 1] int32, cache) -> (logits [B, 1, V] of the next token, cache). Pure.
Extend = Callable[[Int[Array, "B 1"], Any], tuple[Float[Array, "B 1 V"], Any]]


class _Same:
    """A callable that equals itself alone.

    jit finds compiled code by equality. A method bound to a Flax module equals the same method
    of a module with other weights, so equality of `extend` must mean identity.
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
    """`extend` as a pytree, so that compiled code takes its weights as arguments."""
    if isinstance(extend, jax.tree_util.Partial):
        return extend
    return jax.tree_util.Partial(_Same(extend))


def is_one_of(tokens: Int[Array, "..."], ids: Sequence[int]) -> Bool[Array, "..."]:
    """Which tokens are among the ids, of which there may be none."""
    return jnp.isin(tokens, jnp.asarray(ids, tokens.dtype))


def as_ids(ids: int | Sequence[int], *, name: str) -> tuple[int, ...]:
    """One id or several as a sorted tuple without repetitions. Raises ValueError below 0."""
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
    """Checks what every decoder is asked for, before anything compiles.

    Returns `eos_ids` as a tuple. Raises ValueError where logits are not [B, V], an id lies
    outside the V rows of the vocabulary, or the tokens asked for do not fit into the cache.
    """
    if logits.ndim != 2:
        raise ValueError(
            f"logits of shape {logits.shape}: decoding starts from the last prompt token's [B, V]"
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
    # The last token is written out and never read back, so it needs no place in the cache.
    if room is not None and max_new_tokens - 1 > room:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} does not fit: the cache has room for {room} tokens "
            f"after the prompt, so at most {room + 1} allowed (or a larger cache_length)"
        )
    return ends
