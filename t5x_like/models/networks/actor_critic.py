"""A policy that writes responses to prompts, and the networks that it is trained with."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.feed_forward.undropped import undropped
from t5x_like.models.types import Batch
from t5x_like.models.vocabulary_product import VocabularyProduct


class ActorCritic(nn.Module):
    """Ouyang et al. 2022, section 3.5: the networks of reinforcement learning from human feedback.

    `policy` is trained, `reference` is what it was at first and stays, `average` is the moving
    average of its parameters; `value` predicts the reward from a part of a response, `reward` is
    the frozen reward model. A system with another source of rewards overrides `rewards`, and has no
    `make_reward`.

    An episode is a row of the decoder's tokens: a prompt, padded on its left, and N places for a
    response, padded on its right. A batch of them has `decoder_input_tokens`,
    `decoder_segment_ids`, 0 on padding, and `decoder_positions` [B, P + N], without an encoder
    `decoder_causal_attention` [B, P + N], 1 on the prompt, otherwise the fields of the encoder, and
    `response_mask` [B, N], 1 on the response. Experts of the policy drop no token (see
    `undropped`), since it is scored on what it samples.

    Attributes:
        make_policy: factory of a network that generates text.
        make_value: factory of a `RewardModel`.
        sides: the sides of a batch that the policy reads.
        end_id: the token that ends a response; None for responses of N tokens always.
        make_reward: factory of a `RewardModel`.
        generates: the policy does, not the five together.
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
        """The float32 logits [B, T, V] of the policy."""
        if self.is_initializing():  # parameters are made by calling what has them
            others = [self.reference, self.average, self.value]
            for network in [*others, *([] if self.make_reward is None else [self.reward])]:
                network(batch)
        return self.policy(batch, deterministic=deterministic)

    def act(self, episodes: Batch) -> tuple[VocabularyProduct, Float[Array, "B N"]]:
        """The policy's logits for each token of the responses, and the values before it."""
        return _of_responses(self.policy, episodes), self.values(episodes)

    def reference_logits(self, episodes: Batch) -> VocabularyProduct:
        """The reference's logits for each token of the responses."""
        return _of_responses(self.reference, episodes)

    def values(self, episodes: Batch) -> Float[Array, "B N"]:
        """The expected reward of an episode before each token of its response."""
        return self.value.values(episodes)[:, _places(episodes)]

    def rewards(self, episodes: Batch) -> Float[Array, " B"]:
        """The reward of each episode."""
        return self.reward(episodes)

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}


def _places(episodes: Batch) -> slice:
    """The places of the tokens that are read before each token of the responses."""
    new = episodes["response_mask"].shape[1]
    return slice(-new - 1, -1)


def _of_responses(network: Any, episodes: Batch) -> VocabularyProduct:
    product = network.logits_product(episodes)
    return dataclasses.replace(product, hidden=product.hidden[:, _places(episodes)])
