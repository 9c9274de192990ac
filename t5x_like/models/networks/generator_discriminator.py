"""Two encoders on the same embeddings: one replaces tokens, the other says which were replaced."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.heads.encoder_heads import Activation
from t5x_like.models.linear import Initializer, Linear, keep_whole
from t5x_like.models.networks.encoder import Encoder, Outputs
from t5x_like.models.networks.encoder_decoder import Batch


class GeneratorAndDiscriminator(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Clark et al. 2020, figure 2: an encoder, the discriminator, and the `generator` it reads.

    Called, it is the discriminator. The generator is a masked language model with layers of its
    own on the discriminator's embeddings (section 3.2).

    Attributes:
        make_generator: factory of an `Encoder`, which is given its `make_embeddings`.
        objective: what the discriminator is trained for, for the system's loss.
    """

    make_generator: Callable[..., nn.Module]
    objective: str

    def setup(self) -> None:
        super().setup()
        # The module itself where else a new one would be made: that is what ties the two.
        self.generator = self.make_generator(make_embeddings=lambda: self.embeddings)

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """What the discriminator says of tokens of which some may be replaced."""
        if self.is_initializing():  # then all parameters must be met
            self.generate(batch)
        return super().__call__(batch, deterministic=deterministic)

    def generate(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """What the generator says of masked tokens."""
        return self.generator(batch, deterministic=deterministic)


class ReplacedTokenHead(nn.Module):
    """Whether each token was replaced: a dense layer, and a number (Clark et al. 2020)."""

    activation: Activation
    kernel_init: Initializer
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L], of being replaced."""
        x = Linear(
            (hidden.shape[-1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name="transform",
        )(hidden)
        return {
            "logits": _number(self.kernel_init, "replaced")(self.activation(keep_whole(x)))[..., 0]
        }


class CopyHead(nn.Module):
    """Every token's identity, with a chance that it is just the one read (section 3.5)."""

    make_masked_lm: Callable[..., nn.Module]
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L, V], and `copy_logits`, float32 [B, L]."""
        copy = _number(self.kernel_init, "copy")(hidden)[..., 0]
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch) | {"copy_logits": copy}


def _number(kernel_init: Initializer, name: str) -> nn.Module:
    return Linear(
        (1,), axes=("embed", "classes"), use_bias=True, kernel_init=kernel_init, name=name
    )
