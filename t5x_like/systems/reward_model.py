"""Reward model: Ouyang et al. 2022, "Training language models to follow instructions ..."."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like import systems
from t5x_like.hf.config_settings import one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.losses import preferences
from t5x_like.nn.compute import Batch
from t5x_like.nn.linear import Linear, replicate_last_axis
from t5x_like.nn.moe import undropped
from t5x_like.systems import gpt2, gpt3, llama
from t5x_like.systems.system import AttentionConfig, ReadPart, System, Task


def reward_model_of(system: str, trunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a reward model.

    Args:
        system: the system of the trunk, the language model that it is made from.
        trunk: the settings of the trunk.
    """
    return {
        "vocab_size": trunk["vocab_size"],
        **{name: trunk[name] for name in systems.COMPUTATION},
        "shift": 0.0,
        "scale": 1.0,
        "trunk": {"system": system, **trunk},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RewardModelConfig(AttentionConfig):
    """The settings of a reward model, see `reward_model_of`."""

    shift: float = 0.0
    scale: float = 1.0
    trunk: Mapping[str, Any]


# Section 3.5: the reward model has 6 billion parameters.
SIZES: dict[str, RewardModelConfig] = {
    "6b": RewardModelConfig(**reward_model_of("gpt3", gpt3.SIZES["6_7b"]))
}


# ---- A network that generates text, with a scalar head instead of its output layer.


class RewardModel(nn.Module):
    """Ouyang et al. 2022, section 3.5: a language model that outputs a scalar reward.

    The reward of a text is (w . x - shift) / scale, where x is the state of its last token. The
    trunk's output layer has no parameters here, unless it is tied to the embedding table. Experts
    drop no token (see `undropped`), so that a reward does not depend on other rows of the batch.

    Attributes:
        make_network: factory of the trunk: a network with a method `states`, such as `Decoder`.
        sides: the sides of a batch that the trunk reads.
        shift, scale: the mean and the standard deviation of w . x over some texts, to give their
            rewards mean 0 and standard deviation 1.
        generates: False, since it does not generate text.
    """

    generates: ClassVar[bool] = False

    make_network: Callable[..., nn.Module]
    sides: tuple[str, ...]
    shift: float = 0.0
    scale: float = 1.0

    def setup(self) -> None:
        self.trunk = undropped(self.make_network())
        self.head = Linear((1,), axes=("embed", "classes"), kernel_init=_init)

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, " B"]:
        """Return the float32 reward of each row: the value at its last real token.

        Args:
            batch: the fields that the trunk reads. `decoder_segment_ids` are 0 on padding, which
                may be on either side; without them all tokens are real.
        """
        values = self.values(batch, deterministic=deterministic)
        length = values.shape[1]
        real = batch.get("decoder_segment_ids", jnp.ones(values.shape, jnp.int32)) > 0
        last = length - 1 - jnp.argmax(real[:, ::-1], axis=1)
        return jnp.take_along_axis(values, last[:, None], axis=1)[:, 0]

    def values(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T"]:
        """Return the float32 value at every position of the decoder, arbitrary on padding."""
        states = self.trunk.states(batch, deterministic=deterministic).astype(jnp.float32)
        return (self.head(replicate_last_axis(states))[..., 0] - self.shift) / self.scale

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return the fields that `__call__` needs, filled with 0, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}


def _init(key: Array, shape: tuple[int, int]) -> Array:
    """Sample normal numbers of standard deviation 1 / sqrt(D + 1): Stiennon et al. 2020's code."""
    return nn.initializers.normal((shape[0] + 1) ** -0.5)(key, shape)


def build(config: RewardModelConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: `trunk` has the `system` of a network that generates text, and its settings. `shift`
            is subtracted from rewards, which are then divided by `scale`.

    Raises:
        ValueError: the system or a setting of the trunk does not exist, the trunk does not generate
            text or has another vocabulary size, or `scale` is not above 0.
    """
    settings = systems.inside(config, "trunk", needs=("system", "vocab_size"))
    system = settings.pop("system")
    if settings["vocab_size"] != config.vocab_size:
        raise ValueError(
            f"model.vocab_size={config.vocab_size}, and model.trunk.vocab_size="
            f"{settings['vocab_size']}: both read the same tokens, set them to the same number"
        )
    if config.scale <= 0:
        raise ValueError(f"model.scale={config.scale} must be above 0: it divides rewards")
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
        shift=config.shift,
        scale=config.scale,
    )


def start(module: Any, config: RewardModelConfig, read: ReadPart) -> PyTree:
    """Read the trunk from the folder of a language model; the head is randomly initialized.

    Raises:
        ValueError: the folder has another system, or lacks parameters of its network.
    """
    del module
    return {"trunk": read("trunk", system=config.trunk["system"])}


SYSTEM = System(
    name="reward_model",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=preferences.loss, objective="comparisons", start=start, start_required=True),
    },
)


# Reward models in Hugging Face's folders: a sequence classifier with a single label.

_SUFFIX = "ForSequenceClassification"
_TRUNKS = {record.system: record for record in (gpt2.HUGGING_FACE, llama.HUGGING_FACE)}
_MODEL_TYPES = {
    model_type: prefix
    for record in _TRUNKS.values()
    for model_type, prefix in record.model_types.items()
}


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del settings
    labels = config.get("num_labels", len(config.get("id2label") or (0, 1)))
    one_of(1).check("num_labels, the number of names in id2label,", labels)
    record = next(trunk for trunk in _TRUNKS.values() if config["model_type"] in trunk.model_types)
    return reward_model_of(record.system, record.from_config(config, names=names))


def _derive_config(settings: Settings) -> dict[str, Any]:
    trunk = dict(settings["trunk"])
    record = _record_of(trunk.pop("system"))
    # Batches are padded with token 0; the class scores the last token that is not padding.
    labels = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {**record.to_config(trunk), **labels, "pad_token_id": 0}


def _record_of(system: str) -> HuggingFaceFormat:
    if system not in _TRUNKS:
        raise ValueError(
            f"model.trunk.system={system!r}: Hugging Face has reward models of "
            f"{', '.join(_TRUNKS)} alone; convert to a checkpoint (--format=t5x_like)"
        )
    return _TRUNKS[system]


def _variant(settings: Settings) -> HuggingFaceFormat:
    record = _record_of(settings["trunk"]["system"])
    weights = {
        f"trunk/{path}": tensor for path, tensor in record.weights.items() if "lm_head" not in path
    }
    return dataclasses.replace(
        HUGGING_FACE,
        weights={**weights, "head/kernel": ("score.weight", "C D -> D C")},
        aliases={
            other: name for other, name in record.aliases.items() if not other.startswith("lm_head")
        },
        unused=record.unused,
    )


HUGGING_FACE = HuggingFaceFormat(
    system="reward_model",
    model_types=_MODEL_TYPES,
    on_request=True,
    classes=tuple(prefix + _SUFFIX for prefix in _MODEL_TYPES.values()),
    class_suffix=_SUFFIX,
    defaults=SIZES["6b"],
    settings={},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    # Hugging Face's class neither shifts nor scales the rewards.
    exported_only={"shift": 0.0, "scale": 1.0},
    weights={},  # they depend on the trunk, see `variant`
    variant=_variant,
)
