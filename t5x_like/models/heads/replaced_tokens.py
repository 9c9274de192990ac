"""ELECTRA's heads: whether each token was replaced, and which token it was."""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_like.models.compute import Compute
from t5x_like.models.heads.output_layer import output_layer
from t5x_like.models.linear import Initializer, Linear, keep_whole
from t5x_like.models.types import Activation, Batch, Outputs


class ReplacedTokenHead(nn.Module):
    """Replaced token detection: a dense layer and one logit per token (Clark et al. 2020).

    Attributes:
        make_norm: factory of a norm: the dense layer then gets norm(token + first token), as in the
            code of He et al. 2021. None: it gets the token.
    """

    activation: Activation
    kernel_init: Initializer
    make_norm: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L], that each token was replaced."""
        if self.make_norm is not None:
            hidden = self.make_norm(name="norm")(hidden + hidden[:, :1])
        x = Linear(
            (hidden.shape[-1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="transform",
        )(hidden)
        logits = output_layer(1, self.kernel_init, "replaced")(self.activation(keep_whole(x)))
        return {"logits": logits[..., 0]}


class CopyHead(nn.Module):
    """Predict every token, or that it is a copy of the input token (section 3.5)."""

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
        copy = output_layer(1, self.kernel_init, "copy")(hidden)[..., 0]
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch) | {"copy_logits": copy}
