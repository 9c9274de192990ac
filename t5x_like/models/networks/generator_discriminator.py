"""Two encoders on the same embeddings: one replaces tokens, the other says which were replaced."""

from collections.abc import Callable

import flax.linen as nn

from t5x_like.models.blocks.shared import Collected
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs


class GeneratorAndDiscriminator(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Clark et al. 2020, figure 2: an encoder, the discriminator, and the `generator` it reads.

    Called, it is the discriminator. The generator is a masked language model with layers of its
    own on the discriminator's embeddings (section 3.2).

    Attributes:
        make_generator: factory of an `Encoder`.
        tied: the parts that the generator shares with the discriminator: some of `embeddings`,
            `projection` and `encoder`.
        objective: what the discriminator is trained for, for the system's loss.
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
