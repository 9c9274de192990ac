"""InstructGPT: Ouyang et al. 2022, "Training language models to follow instructions ..."."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import PyTree

from t5x_like import systems
from t5x_like.nn.compound_networks import ActorCritic
from t5x_like.systems import gpt3, policy_optimization, reward_model
from t5x_like.systems.system import AttentionConfig, ReadPart, System, Task


def instructgpt_of(
    system: str, policy: Mapping[str, Any], reward: Mapping[str, Any], *, end_id: int
) -> dict[str, Any]:
    """Return the settings of a policy that is trained with a reward model.

    Args:
        system: the system of the policy, a language model.
        policy: the settings of the policy.
        reward: the settings of a `reward_model`; they may include `folder`, the folder that it is
            read from.
        end_id: the token that ends a response.
    """
    return {
        "vocab_size": policy["vocab_size"],
        "end_id": end_id,
        **{name: policy[name] for name in systems.COMPUTATION},
        "policy": {"system": system, **policy},
        "reward": {"folder": "", **reward},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InstructGptConfig(AttentionConfig):
    """The settings of a policy that is trained with a reward model, see `instructgpt_of`."""

    end_id: int
    policy: Mapping[str, Any]
    reward: Mapping[str, Any]


def _size(policy: str) -> InstructGptConfig:
    """Return the settings of a GPT-3 with a reward model of 6 billion parameters (section 3.5)."""
    reward = reward_model.SIZES["6b"]
    settings = instructgpt_of("gpt3", gpt3.SIZES[policy], reward, end_id=50256)
    return InstructGptConfig(**settings)


SIZES: dict[str, InstructGptConfig] = {
    "1_3b": _size("xl"),
    "6b": _size("6_7b"),
    "175b": _size("175b"),
}


def build(config: InstructGptConfig) -> nn.Module:
    """Build the networks of a config with the keys of SIZES.

    Args:
        config: `policy` has the `system` of a network that generates text, and its settings;
            `reward` has the settings of a `reward_model`; the value network has the same settings.

    Raises:
        ValueError: a system or setting does not exist, the policy does not generate text, the
            vocabulary sizes differ, `end_id` is not a token, or the reward model reads other sides
            of a batch than the policy.
    """
    policy = systems.inside(config, "policy", needs=("system", "vocab_size"))
    reward = systems.inside(config, "reward")
    system = policy.pop("system")
    for name, size in {"policy": policy["vocab_size"], "reward": reward["vocab_size"]}.items():
        if size != config.vocab_size:
            raise ValueError(
                f"model.vocab_size={config.vocab_size}, and model.{name}.vocab_size={size}: the "
                "policy and the reward model read the same tokens, so that both need the same "
                "vocabulary"
            )
    if not 0 <= config.end_id < config.vocab_size:
        raise ValueError(
            f"model.end_id={config.end_id} must be a token, 0 to {config.vocab_size - 1}"
        )
    network = systems.build(system, policy)
    if not network.generates or not hasattr(network, "logits_product"):
        raise ValueError(
            f"model.policy.system={system!r}: a policy is a decoder or an encoder-decoder, such as "
            "gpt3, llama or t5"
        )
    rewards = systems.build("reward_model", reward)
    if rewards.sides != network.sides:
        raise ValueError(
            f"model.reward.trunk.system={reward['trunk']['system']!r} reads the sides "
            f"{', '.join(rewards.sides)} of a batch, and model.policy.system={system!r} reads "
            f"{', '.join(network.sides)}: take a reward model of the same architecture"
        )
    make_reward = functools.partial(systems.build, "reward_model", reward)
    return ActorCritic(
        # Factories, since Flax puts the parameters of a module under the module that creates it.
        make_policy=functools.partial(systems.build, system, policy),
        make_value=make_reward,
        make_reward=make_reward,
        sides=network.sides,
        end_id=config.end_id,
    )


def start(module: Any, config: InstructGptConfig, read: ReadPart) -> PyTree:
    """Read the parameters that all five networks start from.

    The policy, its reference and its average are read from the folder that the run starts from; the
    reward model and the value network are read from the folder of the reward model.

    Raises:
        ValueError: the reward model has no folder, or one of the folders has another system,
            shape or vocabulary, or lacks parameters of the network.
    """
    del module
    folder = config.reward.get("folder")
    if not folder:
        raise ValueError(
            "model.reward.folder is not set: name the folder of the run of the reward model"
        )
    reward = read("reward", system="reward_model", folder=folder)
    try:
        policy = read("policy", system=config.policy["system"])
    except ValueError as error:
        raise ValueError(
            f"the policy, which is also its reference, is not read: {error}"
        ) from error
    return {
        **dict.fromkeys(("policy", "reference", "average"), policy),
        **dict.fromkeys(("value", "reward"), reward),
    }


SYSTEM = System(
    name="instructgpt",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(
            loss=policy_optimization.loss,
            prediction="text",
            objective="prompts",
            start=start,
            start_required=True,
            prepare=policy_optimization.prepare,
        ),
    },
    policy="policy",
    average="average",
)
