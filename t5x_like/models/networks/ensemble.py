"""Several networks as one, whose outputs are averaged."""

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
        """See `decoding.decoder_contract.Cache`."""
        return Caches(tuple(one.repeat(times) for one in self.members))

    def reorder(self, rows: Int[Array, " B"]) -> "Caches":
        """See `decoding.decoder_contract.Cache`."""
        return Caches(tuple(one.reorder(rows) for one in self.members))


class Ensemble(nn.Module):
    """Networks that read the same tokens and predict the same labels.

    Of networks that generate the logits are averaged (Raffel et al. 2020, section 3.6). Of heads
    the probabilities are, whose logarithms are output in place of logits; numbers, which are logits
    [..., 1], are averaged themselves.

    Attributes:
        members: modules that are different objects, also where they are equal: Linen would tie the
            parameters of one that is given twice. The parameters of member n are `members_n`.
    """

    members: tuple[nn.Module, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides of a batch that the members read."""
        return self.members[0].sides

    @property
    def generates(self) -> bool:
        """Whether they have `prefill` and `extend`, and so generate text."""
        return self.members[0].generates

    @property
    def visibility(self) -> Any:
        """As of a member, see `Decoder`."""
        return self.members[0].visibility

    def example_batch(self) -> dict[str, Any]:
        """A batch to initialize the members with."""
        return self.members[0].example_batch()

    def __call__(self, batch: Batch) -> Any:
        """The averaged logits, [B, L, V] or by the names of a head's outputs."""
        outputs = [member(batch) for member in self.members]
        if self.generates:
            return _mean(outputs)
        names = [name for name in outputs[0] if name.endswith("logits")]
        return {name: _of_head([own[name] for own in outputs]) for name in names}

    def prefill(self, **arguments: Any) -> tuple[Float[Array, "B V"], Caches]:
        """See `Decoder.prefill`."""
        logits, caches = zip(*(member.prefill(**arguments) for member in self.members), strict=True)
        return _mean(logits), Caches(caches)

    def extend(
        self, tokens: Int[Array, "B 1"], cache: Caches
    ) -> tuple[Float[Array, "B 1 V"], Caches]:
        """See `Decoder.extend`."""
        found = [
            member.extend(tokens, own)
            for member, own in zip(self.members, cache.members, strict=True)
        ]
        logits, caches = zip(*found, strict=True)
        return _mean(logits), Caches(caches)


def _mean(logits: Sequence[Array]) -> Array:
    return jnp.mean(jnp.stack([one.astype(jnp.float32) for one in logits]), axis=0)


def _of_head(logits: Sequence[Array]) -> Array:
    """Numbers as they are, and logits as the logarithms of the averaged probabilities."""
    if logits[0].shape[-1] == 1:
        return _mean(logits)
    mean = _mean([jax.nn.softmax(one.astype(jnp.float32)) for one in logits])
    return jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))
