"""An ensemble of networks, whose outputs are averaged."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.types import Batch


@flax.struct.dataclass
class Caches:
    """The key-value caches of the members."""

    members: tuple[Any, ...]

    def repeat(self, times: int) -> "Caches":
        """Repeat each row, see `decoding.decoder_contract.Cache`."""
        return Caches(tuple(one.repeat(times) for one in self.members))

    def reorder(self, rows: Int[Array, " B"]) -> "Caches":
        """Select rows, see `decoding.decoder_contract.Cache`."""
        return Caches(tuple(one.reorder(rows) for one in self.members))


class Ensemble(nn.Module):
    """An average of networks that read the same tokens and predict the same labels.

    For networks that generate text the logits are averaged (Raffel et al. 2020, section 3.6). For
    heads the probabilities are averaged, and their logarithms are returned as logits; the outputs
    [..., 1] of regression are averaged directly.

    Attributes:
        members: distinct module objects, even for equal networks, since Linen ties the parameters
            of a module that is given twice. The parameters of member n are `members_n`.
    """

    members: tuple[nn.Module, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides of a batch that the members read."""
        return self.members[0].sides

    @property
    def generates(self) -> bool:
        """Whether the members have `prefill` and `extend`, and so generate text."""
        return self.members[0].generates

    @property
    def visibility(self) -> Any:
        """The members' visibility, see `Decoder`."""
        return self.members[0].visibility

    def example_batch(self) -> dict[str, Any]:
        """Return a batch to initialize the members with."""
        return self.members[0].example_batch()

    def __call__(self, batch: Batch) -> Any:
        """Return the averaged logits: [B, L, V], or for heads {name of the output: logits}."""
        outputs = [member(batch) for member in self.members]
        if self.generates:
            return _mean(outputs)
        names = [name for name in outputs[0] if name.endswith("logits")]
        return {name: _of_head([own[name] for own in outputs]) for name in names}

    def prefill(self, **arguments: Any) -> tuple[Float[Array, "B V"], Caches]:
        """Run the prompts through all members, see `Decoder.prefill`."""
        logits, caches = zip(*(member.prefill(**arguments) for member in self.members), strict=True)
        return _mean(logits), Caches(caches)

    def extend(
        self, tokens: Int[Array, "B 1"], cache: Caches
    ) -> tuple[Float[Array, "B 1 V"], Caches]:
        """Run the next tokens through all members, see `Decoder.extend`."""
        found = [
            member.extend(tokens, own)
            for member, own in zip(self.members, cache.members, strict=True)
        ]
        logits, caches = zip(*found, strict=True)
        return _mean(logits), Caches(caches)


def _mean(logits: Sequence[Array]) -> Array:
    return jnp.mean(jnp.stack([one.astype(jnp.float32) for one in logits]), axis=0)


def _of_head(logits: Sequence[Array]) -> Array:
    """Average numbers [..., 1] directly; for logits, return the log of the mean probabilities."""
    if logits[0].shape[-1] == 1:
        return _mean(logits)
    mean = _mean([jax.nn.softmax(one.astype(jnp.float32)) for one in logits])
    return jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))
