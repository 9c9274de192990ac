"""ELECTRA's two encoders with shared embeddings: a generator and a discriminator."""

from collections.abc import Callable

import flax.linen as nn

from t5x_like.models.blocks.residual import Collected
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs


class GeneratorAndDiscriminator(Encoder, kw_only=True):  # type: ignore[call-arg]
    """A discriminator, and the `generator` that replaces tokens: Clark et al. 2020, figure 2.

    `__call__` runs the discriminator. `generate` runs the generator, a masked language model that
    shares the discriminator's embeddings (section 3.2).

    Attributes:
        make_generator: factory of an `Encoder`.
        tied: the parts that the generator shares with the discriminator: any of `embeddings`,
            `projection` and `encoder`.
        objective: the discriminator's objective, which the system's loss reads.
    """

    make_generator: Callable[..., nn.Module]
    tied: tuple[str, ...]
    objective: str

    def setup(self) -> None:
        super().setup()
        # Factories that return the discriminator's modules instead of new ones tie the parameters.
        shared = {f"make_{part}": lambda part=part: getattr(self, part) for part in self.tied}
        self.generator = self.make_generator(**shared)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """Return the discriminator's outputs, see `Encoder`."""
        if self.is_initializing():  # only a call creates the generator's parameters
            self.generate(batch)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def generate(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """Return the generator's outputs: logits of the masked tokens."""
        return self.generator(batch, deterministic=deterministic)
