"""The logits over a vocabulary, as a product that is not computed yet."""

import functools

import flax.linen as nn
import flax.struct
import jax
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.models.matrix_product import float32_sums


@flax.struct.dataclass
class VocabularyProduct:
    """Logits that are not computed yet, so that a loss can compute one part at a time.

    Attributes:
        hidden: the hidden states, in the dtype of the product.
        kernel: the kernel, in the dtype of the parameters: [V, D] (an embedding table) or [D, V].
        bias: added to the logits, or None.
        vocabulary_axis: the axis of V in the kernel, 0 or 1.
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
        """Compute the float32 logits."""
        logits = _product(self.vocabulary_axis, self.hidden, self.kernel)
        axes = ("activation_batch", "activation_length", "activation_vocab")
        logits = nn.with_logical_constraint(logits, axes)
        return logits if self.bias is None else logits + self.bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(axis: int, hidden: Float[Array, "B L D"], kernel: Array) -> Float[Array, "B L V"]:
    """Multiply with float32 sums, also under bfloat16: a softmax over 32,000 logits needs them."""
    return float32_sums(f"BLD,{_kernel(axis)}->BLV", hidden, kernel.astype(hidden.dtype))


def _kernel(axis: int) -> str:
    return "DV" if axis else "VD"


def _forward(axis, hidden, kernel):
    return _product(axis, hidden, kernel), (hidden, kernel)


def _backward(axis, operands, gradient):
    hidden, kernel = operands
    gradient = gradient.astype(hidden.dtype)  # see `matrix_product.product`
    by_hidden = float32_sums(
        f"BLV,{_kernel(axis)}->BLD", gradient, kernel.astype(hidden.dtype)
    ).astype(hidden.dtype)
    by_kernel = kernel_gradient(
        f"ND,NV->{_kernel(axis)}",
        hidden,
        gradient,
        vocabulary=("activation_vocab",),
        axes=("embed", "vocab") if axis else ("vocab", "embed"),
    )
    return by_hidden, by_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)


def kernel_gradient(
    equation: str,
    hidden: Float[Array, "B L D"],
    gradient: Float[Array, "B L *V"],
    *,
    vocabulary: tuple[str | None, ...],
    axes: tuple[str | None, ...],
) -> Float[Array, "..."]:
    """Return the float32 gradient of a kernel, sharded like the kernel.

    Args:
        equation: the einsum of hidden and gradient as rows [N, D] and [N, *V], N = B L, since on a
            CPU the operands of a product that sums over two axes would first be transposed.
        gradient: the gradient of the logits, in the dtype of `hidden`.
        vocabulary: logical axes of the logits after `B L`.
        axes: logical axes of the kernel.
    """
    rows = ("activation_batch", "activation_length")

    def product(*arrays: Array) -> Array:
        return float32_sums(equation, *(x.reshape(-1, *x.shape[2:]) for x in arrays))

    return partitioning.sum_over_batch(
        product,
        (hidden, (*rows, "activation_embed")),
        (gradient, (*rows, *vocabulary)),
        axes=axes,
    )
