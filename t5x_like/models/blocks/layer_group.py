"""A group of layers as one block, for stacks whose layers alternate."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import PyTree


class LayerGroup(nn.Module):
    """g blocks applied in turn: a stack of N/g groups is N layers that alternate.

    Attributes:
        make_blocks: factories of the g blocks, in order.
    """

    make_blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: Any) -> tuple[PyTree, Any]:
        """Return the last carry, and a tuple of the outputs of the blocks.

        Args:
            carry, shared: any trees of arrays.
            per_layer: None, or a tuple of g trees, one for each block.
        """
        outs = []
        for n, make_block in enumerate(self.make_blocks):
            layer = None if per_layer is None else per_layer[n]
            carry, out = make_block(name=f"block_{n}")(carry, shared, layer)
            outs.append(out)
        return carry, tuple(outs)

    def empty_cache(self, *, batch: int, slots: int) -> Any:
        """Return a tuple of the blocks' empty caches."""
        return tuple(
            make_block(parent=None).empty_cache(batch=batch, slots=slots)
            for make_block in self.make_blocks
        )
