"""The inputs that all layers of a stack share, and what layers return on request."""

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.relative_buckets import RelativeBias
from t5x_like.names import choose

COLLECTABLE = ("hidden_states", "attention_scores")


@flax.struct.dataclass
class Collected:
    """Hidden states and attention scores: of one layer from a block, of N layers from a tower.

    Attributes:
        hidden_states: the carry after each layer, and before these the input of layer 0: [N + 1,
            B, T, D], or a tree of such arrays where the carry is a tree. No final norm is applied.
        attention_scores: scores of self-attention before the softmax, float32, scaled, with the
            position bias; `attention.cores.MASKED` where the mask hides a key.
        cross_attention_scores: the same of attention to the encoder's output.
    """

    hidden_states: PyTree = None
    attention_scores: Float[Array, "N B H T S"] | None = None
    cross_attention_scores: Float[Array, "N B H T S"] | None = None


@flax.struct.dataclass
class Shared:
    """The inputs of every layer of a stack, the same for all.

    Attributes:
        mask: of the stack's own positions among themselves.
        bias: added to the scores of self-attention, or None.
        positions: within each document, for schemes that act on queries and keys.
        memory, memory_mask: the encoder's output and its mask for cross-attention, or None where
            there is none or where the cache already has its keys and values.
        tokens: the token ids, or None, for layers that depend on them.
        extra: any tree of arrays that a system's own blocks or attention need in every layer, such
            as a table of relative position embeddings.
        first: there is a cache and it is empty, so positions attend only to each other.
        deterministic: no dropout and no other noise of training.
        collect: names in COLLECTABLE that each layer returns, as a `Collected`, in place of its
            cache.
    """

    mask: AttentionMask
    bias: Float[Array, "B H T S"] | RelativeBias | None = None
    positions: Int[Array, "B T"] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: AttentionMask | None = None
    tokens: Int[Array, "B T"] | None = None
    extra: PyTree = None
    first: bool = flax.struct.field(pytree_node=False, default=False)
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)
    collect: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    @property
    def with_scores(self) -> bool:
        """Whether layers return their attention scores."""
        return "attention_scores" in self.collect

    def collected(
        self,
        carry: PyTree,
        attention_scores: Float[Array, "B H T S"] | None,
        cross_attention_scores: Float[Array, "B H T S"] | None = None,
    ) -> Collected:
        """The `Collected` of one layer whose output is `carry`: None for all that is not asked."""
        return Collected(
            hidden_states=carry if "hidden_states" in self.collect else None,
            attention_scores=attention_scores,
            cross_attention_scores=cross_attention_scores,
        )


def collect_layers(collect: tuple[str, ...], carry: PyTree, per_layer: PyTree) -> Collected:
    """Combine the `Collected` of all layers, in the order of the layers.

    Args:
        carry: the input of layer 0.
        per_layer: the outputs per layer of a stack, scanned, looped or in groups of layers.

    Raises:
        ValueError: a name that cannot be collected, or a block that does not return it.
    """
    for name in collect:
        choose("collect", name, dict.fromkeys(COLLECTABLE))

    def is_one(x: PyTree) -> bool:
        return isinstance(x, Collected)

    layers = [x for x in jax.tree.leaves(per_layer, is_leaf=is_one) if is_one(x)]
    for name in collect:
        if not layers or any(getattr(layer, name) is None for layer in layers):
            raise ValueError(
                f"collect has {name!r}, which the blocks of this network do not return: their "
                "output per layer must be shared.collected(...) where shared.collect is not empty"
            )

    def join(rank: int, *layers: Array) -> Array:
        # Scanned layers are stacked already; in scanned groups, each block is a stack of its own.
        stacks = [x.reshape(-1, *x.shape[x.ndim - rank :]) for x in layers]
        return jnp.stack(stacks, axis=1).reshape(-1, *stacks[0].shape[1:])

    def follow(first: Array, *layers: Array) -> Array:
        return jnp.concatenate([first[None], join(first.ndim, *layers)])

    states = None
    if "hidden_states" in collect:
        states = jax.tree.map(follow, carry, *(layer.hidden_states for layer in layers))

    def scores(*layers: Array) -> Array:
        return join(4, *layers)

    return Collected(
        hidden_states=states,
        attention_scores=jax.tree.map(scores, *(layer.attention_scores for layer in layers)),
        cross_attention_scores=jax.tree.map(
            scores, *(layer.cross_attention_scores for layer in layers)
        ),
    )
