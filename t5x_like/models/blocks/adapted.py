"""A Transformer layer with an adapter, a small sublayer to train in place of the layer."""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array

from t5x_like.models.blocks.residual import PreNormBlock
from t5x_like.models.blocks.shared import Shared


class AdaptedBlock(PreNormBlock, kw_only=True):  # type: ignore[call-arg]
    """A pre-norm layer, and then x + adapter(norm(x)).

    Bapna & Firat 2019, as Raffel et al. 2020 have it (section 3.5.1): an additional sublayer after
    the feed-forward network, with a norm and a residual connection of its own. An adapter whose
    output starts at 0 leaves the layer as it was.

    Attributes:
        make_adapter: factory of the adapter, a feed-forward network.
    """

    make_adapter: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.adapter_norm = self.make_norm()
        self.adapter = self.make_adapter()

    def _feed_forward(self, x: Array, shared: Shared) -> Array:
        x = super()._feed_forward(x, shared)
        y = self._sublayer_input(x, self.adapter_norm)
        y = self.adapter(y, tokens=shared.tokens, deterministic=shared.deterministic)
        return self._sublayer_output(x, y, self.adapter_norm, shared)
