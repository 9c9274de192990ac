"""ELECTRA's two encoders on the same embeddings: a generator and a discriminator."""

from collections.abc import Callable

import flax.linen as nn

from t5x_like.models.blocks.residual import Collected
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs


class GeneratorAndDiscriminator(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Clark et al. 2020, figure 2: a discriminator, and the `generator` that replaces tokens.

    `__call__` runs the discriminator, `generate` the generator: a masked language model with layers
    of its own on the discriminator's embeddings (section 3.2).

    Attributes:
        make_generator: factory of an `Encoder`.
        tied: the parts that the generator shares with the discriminator, out of `embeddings`,
            `projection` and `encoder`.
        objective: the discriminator's objective, which the system's loss reads.
    """

    make_generator: Callable[..., nn.Module]
    tied: tuple[str, ...]
    objective: str

    def setup(self) -> None:
        super().setup()
        # The discriminator's own modules in place of new ones: this ties their parameters.
        shared = {f"make_{part}": lambda part=part: getattr(self, part) for part in self.tied}
        self.generator = self.make_generator(**shared)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The discriminator's outputs, as `Encoder` returns them."""
        if self.is_initializing():  # the generator's parameters are made by calling it
            self.generate(batch)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def generate(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """The generator's outputs: logits of the masked tokens."""
        return self.generator(batch, deterministic=deterministic)
