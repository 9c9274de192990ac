"""Sparrow: Glaese et al. 2022, "Improving alignment of dialogue agents ...".

A policy is trained as InstructGPT is, with the rewards of two models: a reward model of people's
preferences, and a rule model, which reads a rule in words after the response and predicts whether
the response violates it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from t5x_like import systems
from t5x_like.nn.compound_networks import ActorCritic
from t5x_like.nn.compute import Batch
from t5x_like.systems import instructgpt
from t5x_like.systems.instructgpt import InstructGptConfig
from t5x_like.systems.system import ReadPart, System, Task


def sparrow_of(
    trained: Mapping[str, Any], rules: Mapping[str, Any], tokens: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the settings of a policy that is trained with a reward model and a rule model.

    Args:
        trained: the settings of `instructgpt_of`.
        rules: the settings of a `rule_model`; they may include `folder`.
        tokens: the tokens of each rule (`objectives.prompts.rule_tokens`).
    """
    return {
        **trained,
        "rules": {"folder": "", **rules},
        "rule_tokens": tuple(map(tuple, tokens)),
        "rule_weight": 1.0,
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SparrowConfig(InstructGptConfig):
    """The settings of a policy that is trained with two reward models, see `sparrow_of`.

    Attributes:
        rules: the settings of the rule model.
        rule_tokens: the tokens of each rule.
        rule_weight: the weight of the mean over rules beside the preference.
    """

    rules: Mapping[str, Any]
    rule_tokens: tuple[tuple[int, ...], ...]
    rule_weight: float = 1.0


def _size(policy: str) -> SparrowConfig:
    """Return the settings of one of InstructGPT's sizes, with a rule of 16 tokens."""
    trained = dict(instructgpt.SIZES[policy])
    return SparrowConfig(**sparrow_of(trained, trained["reward"], [[0] * 16]))


# The paper trains Chinchilla's 70 billion parameters; the sizes here are InstructGPT's.
SIZES: dict[str, SparrowConfig] = {name: _size(name) for name in ("1_3b", "6b")}


# ---- Two rewards for an episode.


def combined_reward(
    preference: Float[Array, " B"], logits: Float[Array, "B N"], *, weight: float
) -> Float[Array, " B"]:
    """Return the reward of episodes: preference + weight * the mean over rules of 1 - p(violates).

    Args:
        preference: rewards with mean 0 and standard deviation 1 over demonstrations.
        logits: for each of N rules the logit of p, the probability that the episode violates it.
    """
    return preference + weight * jnp.mean(jax.nn.sigmoid(-logits), axis=1)


def reranking_score(
    preference: Float[Array, " B"], logits: Float[Array, "B N"]
) -> Float[Array, " B"]:
    """Return the logarithm of e^r / (e^r + e^<r>) times the product over rules of 1 - p(violates).

    The first factor is the probability that the response is preferred to one of mean reward; the
    mean <r> is 0.

    Args:
        preference, logits: see `combined_reward`.
    """
    return jax.nn.log_sigmoid(preference) + jnp.sum(jax.nn.log_sigmoid(-logits), axis=1)


class RuledActorCritic(ActorCritic, kw_only=True):  # type: ignore[call-arg]
    """A policy whose episodes are rewarded by preference and by rules.

    Attributes:
        make_rules: factory of the rule model, a `RewardModel`.
        rule_tokens: the tokens of each rule.
        rule_weight: see `combined_reward`.
    """

    make_rules: Callable[..., nn.Module]
    rule_tokens: tuple[tuple[int, ...], ...]
    rule_weight: float

    def setup(self) -> None:
        super().setup()
        self.rules = self.make_rules()

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """Return the float32 logits [B, T, V] of the policy."""
        if self.is_initializing():
            self.rules(batch)
        return super().__call__(batch, deterministic=deterministic)

    def rewards(self, episodes: Batch) -> Float[Array, " B"]:
        """Return the reward of each episode, see `combined_reward`."""
        preference, logits = super().rewards(episodes), self.violations(episodes)
        return combined_reward(preference, logits, weight=self.rule_weight)

    def ranking(self, episodes: Batch) -> Float[Array, " B"]:
        """Return the number by which responses to one prompt are ranked, see `reranking_score`."""
        return reranking_score(super().rewards(episodes), self.violations(episodes))

    def violations(self, episodes: Batch) -> Float[Array, "B N"]:
        """Return the logit of violating each rule: the rule model reads it after the response."""
        number, length = len(self.rule_tokens), max(map(len, self.rule_tokens))
        tokens, real = np.zeros((2, number, length), np.int32)
        for rule, ids in enumerate(self.rule_tokens):
            tokens[rule, : len(ids)], real[rule, : len(ids)] = ids, 1
        after = {"decoder_input_tokens": tokens, "decoder_segment_ids": real}
        if "encoder" not in self.sides:
            after["decoder_causal_attention"] = 0 * real
        order = _closed(episodes["decoder_segment_ids"], number, length)
        batch = {
            name: jnp.take_along_axis(_joined(episodes[name], rows), order, axis=1)
            for name, rows in after.items()
        }
        batch["decoder_positions"] = jnp.maximum(
            jnp.cumsum(batch["decoder_segment_ids"], axis=1) - 1, 0
        )
        if "encoder" in self.sides:
            names = ("encoder_input_tokens", "encoder_segment_ids")
            batch |= {name: jnp.repeat(episodes[name], number, axis=0) for name in names}
        return self.rules(batch).reshape(-1, number)


def _joined(rows: Int[Array, "B T"], after: Int[np.ndarray, "N R"]) -> Int[Array, "B*N T+R"]:
    """Return each row before each row of `after`."""
    repeated = jnp.repeat(rows, len(after), axis=0)
    return jnp.concatenate([repeated, jnp.tile(after, (len(rows), 1))], axis=1)


def _closed(segments: Int[Array, "B T"], number: int, length: int) -> Int[Array, "B*N T+R"]:
    """Return indices that move the padding after a response to the end, after `length` tokens.

    Distances between tokens are distances in a row, for relative positions and windows.
    """
    counted = jnp.cumsum(segments, axis=1)
    is_gap = (segments == 0) & (counted == counted[:, -1:])
    is_gap = jnp.pad(is_gap, ((0, 0), (0, length)))
    return jnp.repeat(jnp.argsort(is_gap, axis=1, stable=True), number, axis=0)


def build(config: SparrowConfig) -> nn.Module:
    """Build the networks of a config with the keys of SIZES.

    Raises:
        ValueError: see `instructgpt.build`; the rule model has another vocabulary or architecture
            than the policy; or there is no rule, or an empty one.
    """
    trained: ActorCritic = instructgpt.build(config)
    rules = systems.inside(config, "rules")
    if rules["vocab_size"] != config.vocab_size:
        raise ValueError(
            f"model.rules.vocab_size={rules['vocab_size']}, and model.vocab_size="
            f"{config.vocab_size}: the rule model reads what the policy writes"
        )
    make_rules = functools.partial(systems.build, "rule_model", rules)
    if make_rules().sides != trained.sides:
        raise ValueError(
            f"model.rules.trunk.system={rules['trunk']['system']!r} reads other sides of a batch "
            "than the policy: take a rule model of the same architecture"
        )
    if not config.rule_tokens or not all(config.rule_tokens):
        raise ValueError("model.rule_tokens must have the tokens of one rule or more")
    return RuledActorCritic(
        make_policy=trained.make_policy,
        make_value=trained.make_value,
        make_reward=trained.make_reward,
        sides=trained.sides,
        end_id=trained.end_id,
        make_rules=make_rules,
        rule_tokens=tuple(map(tuple, config.rule_tokens)),
        rule_weight=config.rule_weight,
    )


def start(module: Any, config: SparrowConfig, read: ReadPart) -> PyTree:
    """Read the parameters of `instructgpt.start`, and the rule model's from its folder.

    Raises:
        ValueError: see `instructgpt.start`; or `model.rules.folder` is not set.
    """
    folder = config.rules.get("folder")
    if not folder:
        raise ValueError("model.rules.folder is not set: name the folder of the run with the rules")
    rules = read("rules", system="rule_model", folder=folder)
    return {**instructgpt.start(module, config, read), "rules": rules}


_OF_INSTRUCTGPT: Task = instructgpt.SYSTEM.tasks[""]
SYSTEM = System(
    name="sparrow",
    sizes=SIZES,
    build=build,
    tasks={"": dataclasses.replace(_OF_INSTRUCTGPT, start=start)},
    policy="policy",
    average="average",
)
