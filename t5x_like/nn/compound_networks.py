"""Networks of several networks: ensembles, ELECTRA's pair, and a policy with its critics."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.nn.blocks import Collected
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.embeddings import VocabularyProduct
from t5x_like.nn.moe import undropped
from t5x_like.nn.networks import Encoder


@flax.struct.dataclass
class Caches:
    """The key-value caches of the members."""

    members: tuple[Any, ...]

    def repeat(self, times: int) -> "Caches":
        """Repeat each row, see `decoding.decoder_contract.DecodingCache`."""
        return Caches(tuple(cache.repeat(times) for cache in self.members))

    def reorder(self, rows: Int[Array, " B"]) -> "Caches":
        """Select rows, see `decoding.decoder_contract.DecodingCache`."""
        return Caches(tuple(cache.reorder(rows) for cache in self.members))


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
    def any_padding(self) -> bool:
        """Whether padding of the members' encoders may have any length, see `EncoderDecoder`."""
        return getattr(self.members[0], "any_padding", False)

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
        return {name: _of_head([output[name] for output in outputs]) for name in names}

    def prefill(self, **arguments: Any) -> tuple[Float[Array, "B V"], Caches]:
        """Run the prompts through all members, see `Decoder.prefill`."""
        logits, caches = zip(*(member.prefill(**arguments) for member in self.members), strict=True)
        return _mean(logits), Caches(caches)

    def extend(
        self, tokens: Int[Array, "B 1"], cache: Caches
    ) -> tuple[Float[Array, "B 1 V"], Caches]:
        """Run the next tokens through all members, see `Decoder.extend`."""
        extended = [
            member.extend(tokens, member_cache)
            for member, member_cache in zip(self.members, cache.members, strict=True)
        ]
        logits, caches = zip(*extended, strict=True)
        return _mean(logits), Caches(caches)


def _mean(logits: Sequence[Array]) -> Array:
    return jnp.mean(jnp.stack([array.astype(jnp.float32) for array in logits]), axis=0)


def _of_head(logits: Sequence[Array]) -> Array:
    """Average numbers [..., 1] directly; for logits, return the log of the mean probabilities."""
    if logits[0].shape[-1] == 1:
        return _mean(logits)
    mean = _mean([jax.nn.softmax(array.astype(jnp.float32)) for array in logits])
    return jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))


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
        # Factories that return the discriminator's modules rather than new modules tie parameters.
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


class ActorCritic(nn.Module):
    """The networks of reinforcement learning from human feedback: Ouyang et al. 2022, section 3.5.

    `policy` is trained; `reference` is its frozen initial state; `average` is the moving average of
    its parameters; `value` predicts the reward from a partial response; `reward` is the frozen
    reward model. A system with another source of rewards overrides `rewards` and sets no
    `make_reward`.

    An episode is a row of decoder tokens: a prompt of P tokens, padded on the left, and a response
    of N tokens, padded on the right. A batch of episodes has `decoder_input_tokens`,
    `decoder_segment_ids` (0 on padding) and `decoder_positions`, each [B, P + N], and
    `response_mask` [B, N], 1 on the response. Without an encoder it also has
    `decoder_causal_attention` [B, P + N], 1 on the prompt; with an encoder, the encoder's fields.
    The policy's experts drop no tokens (see `undropped`), so that a response gets the same
    probabilities in training as when it was sampled.

    Attributes:
        make_policy: factory of a network that generates text.
        make_value: factory of a `RewardModel`.
        sides: the sides of a batch that the policy reads.
        end_id: the token that ends a response; None if all responses have N tokens.
        make_reward: factory of a `RewardModel`, or None.
        generates: False: only the policy generates text, not this module.
    """

    generates: ClassVar[bool] = False

    make_policy: Callable[..., nn.Module]
    make_value: Callable[..., nn.Module]
    sides: tuple[str, ...]
    end_id: int | None
    make_reward: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.policy = undropped(self.make_policy())
        self.reference = undropped(self.make_policy())
        self.average = undropped(self.make_policy())
        self.value = self.make_value()
        if self.make_reward is not None:
            self.reward = self.make_reward()

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """Return the float32 logits [B, T, V] of the policy."""
        if self.is_initializing():  # only a call creates the parameters of a network
            others = [self.reference, self.average, self.value]
            for network in [*others, *([] if self.make_reward is None else [self.reward])]:
                network(batch)
        return self.policy(batch, deterministic=deterministic)

    def act(self, episodes: Batch) -> tuple[VocabularyProduct, Float[Array, "B N"]]:
        """Return the policy's logits for each response token, and the value before each token."""
        return _of_responses(self.policy, episodes), self.values(episodes)

    def reference_logits(self, episodes: Batch) -> VocabularyProduct:
        """Return the reference's logits for each response token."""
        return _of_responses(self.reference, episodes)

    def values(self, episodes: Batch) -> Float[Array, "B N"]:
        """Return the predicted reward of each episode before each token of its response."""
        return self.value.values(episodes)[:, _response_positions(episodes)]

    def rewards(self, episodes: Batch) -> Float[Array, " B"]:
        """Return the reward of each episode."""
        return self.reward(episodes)

    def ranking(self, episodes: Batch) -> Float[Array, " B"]:
        """Return the number by which responses to one prompt are ranked: the reward."""
        return self.rewards(episodes)

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}


def _response_positions(episodes: Batch) -> slice:
    """Return the positions whose outputs predict the response tokens: each is one token earlier."""
    new = episodes["response_mask"].shape[1]
    return slice(-new - 1, -1)


def _of_responses(network: Any, episodes: Batch) -> VocabularyProduct:
    product = network.logits_product(episodes)
    return dataclasses.replace(product, hidden=product.hidden[:, _response_positions(episodes)])
