"""The logits of a vocabulary, as the product that they are before it is computed."""

import flax.linen as nn
import flax.struct
from jaxtyping import Array, Float

from t5x_like.models.matrix_product import product


@flax.struct.dataclass
class VocabularyProduct:
    """Logits that are not computed yet, so that a loss can compute them a part at a time.

    Attributes:
        hidden: what is multiplied, in the type of the product.
        kernel: of the type of the parameters: [V, D] as a table of embeddings, or [D, V].
        bias: added to the logits, or None.
        vocabulary_axis: of the kernel, 0 or 1.
    """

    hidden: Float[Array, "B L D"]
    kernel: Float[Array, "V D"] | Float[Array, "D V"]
    bias: Float[Array, " V"] | None = None
    vocabulary_axis: int = flax.struct.field(pytree_node=False, default=0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the logits."""
        return *self.hidden.shape[:2], self.kernel.shape[self.vocabulary_axis]

    def logits(self) -> Float[Array, "B L V"]:
        """Float32 logits."""
        # Float32 sums under bfloat16 too: a softmax over 32,000 logits needs them.
        equation = "BLD,DV->BLV" if self.vocabulary_axis else "BLD,VD->BLV"
        logits = product(equation, self.hidden, self.kernel.astype(self.hidden.dtype))
        axes = ("activation_batch", "activation_length", "activation_vocab")
        logits = nn.with_logical_constraint(logits, axes)
        return logits if self.bias is None else logits + self.bias
