"""Reward model: Ouyang et al. 2022, "Training language models to follow instructions ..."."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from jaxtyping import PyTree

from t5x_like import systems
from t5x_like.losses import preferences
from t5x_like.models.networks.reward_model import RewardModel
from t5x_like.systems import gpt3
from t5x_like.systems.system import ReadPart, System, Task


def reward_model_of(system: str, trunk: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a reward model.

    Args:
        system: the system of the language model that it is made of.
        trunk: the settings of its `build`.
    """
    return {
        "vocab_size": trunk["vocab_size"],
        **{name: trunk[name] for name in systems.COMPUTATION},
        "shift": 0.0,
        "scale": 1.0,
        "trunk": {"system": system, **trunk},
    }


# Section 3.5: 6 billion parameters.
SIZES: dict[str, dict[str, Any]] = {"6b": reward_model_of("gpt3", gpt3.SIZES["6_7b"])}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: `trunk` has the `system` of a network that generates text, and its settings. Rewards
            are shifted by `shift` and divided by `scale`.

    Raises:
        ValueError: no such system or setting of the trunk, one that does not generate text, another
            number of tokens, or a scale that is not above 0.
    """
    settings = systems.inside(config, "trunk")
    system = settings.pop("system")
    if settings["vocab_size"] != config["vocab_size"]:
        raise ValueError(
            f"model.vocab_size={config['vocab_size']}, and model.trunk.vocab_size="
            f"{settings['vocab_size']}: both read the same tokens, set them to the same number"
        )
    if config["scale"] <= 0:
        raise ValueError(f"model.scale={config['scale']} must be above 0: it divides rewards")
    trunk = systems.build(system, settings)
    if not hasattr(trunk, "states"):
        raise ValueError(
            f"model.trunk.system={system!r}: a reward model is made of a decoder or an "
            "encoder-decoder, such as gpt2, llama or t5"
        )
    return RewardModel(
        # A factory, since Flax puts the parameters of a module under the module that creates it.
        make_network=functools.partial(systems.build, system, settings),
        sides=trunk.sides,
        shift=config["shift"],
        scale=config["scale"],
    )


def start(module: Any, config: Mapping[str, Any], read: ReadPart) -> PyTree:
    """The trunk from the folder of a language model; the head is randomly initialized.

    Raises:
        ValueError: the folder has another system, or lacks a part of its network.
    """
    del module
    return {"trunk": read("trunk", system=config["trunk"]["system"])}


SYSTEM = System(
    name="reward_model",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=preferences.loss, objective="comparisons", start=start, start_required=True),
    },
)
