"""The inputs that all layers of a stack have in common."""

import flax.struct
from jaxtyping import Array, Float, Int

from t5x_like.models.attention.masks import AttentionMask


@flax.struct.dataclass
class Shared:
    """What every layer of a stack is given, the same for all.

    Attributes:
        mask: of the stack's own positions among themselves.
        bias: on the scores of self-attention, or None.
        positions: within each document, for schemes that act on queries and keys.
        memory, memory_mask: what cross-attention reads, or None where there is none or where
            the cache already holds its keys and values.
        tokens: their ids, where the network has any, for layers that go by them.
        first: the cache is given and empty, so the positions see each other alone.
        deterministic: no dropout.
    """

    mask: AttentionMask
    bias: Float[Array, "B H T S"] | None = None
    positions: Int[Array, "B T"] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: AttentionMask | None = None
    tokens: Int[Array, "B T"] | None = None
    first: bool = flax.struct.field(pytree_node=False, default=False)
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)
