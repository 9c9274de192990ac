"""A policy that writes responses to prompts, with the other networks of its training."""

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
        return self.value.values(episodes)[:, _places(episodes)]

    def rewards(self, episodes: Batch) -> Float[Array, " B"]:
        """Return the reward of each episode."""
        return self.reward(episodes)

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}


def _places(episodes: Batch) -> slice:
    """Return the positions whose outputs predict the response tokens: each is one token earlier."""
    new = episodes["response_mask"].shape[1]
    return slice(-new - 1, -1)


def _of_responses(network: Any, episodes: Batch) -> VocabularyProduct:
    product = network.logits_product(episodes)
    return dataclasses.replace(product, hidden=product.hidden[:, _places(episodes)])
