"""A network that is trained, and the frozen one that it is compared with."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.models.feed_forward.undropped import undropped
from t5x_like.models.types import Batch
from t5x_like.models.vocabulary_product import VocabularyProduct


class PolicyAndReference(nn.Module):
    """Two networks of one shape, which begin with the same parameters (Rafailov et al. 2023).

    Experts drop no token (see `undropped`): the two compare probabilities of whole responses.

    Attributes:
        make_network: factory of both: a network that generates text.
        sides: the sides of a batch that it reads.
        generates: this pair does not; its `policy` does.
    """

    generates: ClassVar[bool] = False

    make_network: Callable[..., nn.Module]
    sides: tuple[str, ...]

    def setup(self) -> None:
        self.policy = undropped(self.make_network())
        self.reference = undropped(self.make_network())

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """The float32 logits [B, T, V] of the policy."""
        if self.is_initializing():  # the reference's parameters are made by calling it
            self.reference(batch)
        return self.policy(batch, deterministic=deterministic)

    def compare(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[VocabularyProduct, VocabularyProduct]:
        """The logits of the policy and of the reference, not computed yet.

        The reference has no dropout, and gets no gradient.
        """
        policy = self.policy.logits_product(batch, deterministic=deterministic)
        return policy, jax.lax.stop_gradient(self.reference.logits_product(batch))

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}
