"""Rotary position embeddings: queries and keys rotated by angles that grow with position."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_like.names import choose, hint

Frequencies = Float[np.ndarray, "K/2"]  # radians a position


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: positions are divided by `factor`, for a context that much longer.

    Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation", equation 4.
    """

    factor: float

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """The scaled frequencies."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """LLaMA 3.1's scaling: low frequencies are divided by `factor`, high ones are kept.

    A frequency turns c times within `original_max_position_embeddings`. It is kept from
    c = `high_freq_factor` on, divided up to c = `low_freq_factor`, and interpolated between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"model.rope_scaling.low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """The scaled frequencies."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        slope = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(slope, 0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


Scaling = Callable[[Frequencies], Frequencies]
SCALINGS: dict[str, Callable[..., Scaling]] = {"linear": LinearScaling, "llama3": Llama3Scaling}


def select_scaling(settings: Mapping[str, Any]) -> Scaling | None:
    """The scaling that `model.rope_scaling` describes as Hugging Face does; None for an empty one.

    Args:
        settings: `rope_type`, a name in SCALINGS, and the fields of its class.

    Raises:
        ValueError: an unknown kind, or settings that are missing, unknown or out of range.
    """
    if not settings:
        return None
    own = dict(settings)
    make = choose("model.rope_scaling.rope_type", own.pop("rope_type", None), SCALINGS)
    names = list(inspect.signature(make).parameters)
    for name in own:
        if name not in names:
            raise ValueError(f"model.rope_scaling has no {name!r}.{hint(name, names)}")
    for name in names:
        if name not in own:
            raise ValueError(
                f"model.rope_scaling lacks {name}, which rope_type={settings['rope_type']!r} needs"
            )
        if not own[name] > 0:
            raise ValueError(f"model.rope_scaling.{name}={own[name]!r} must be above 0")
    return make(**own)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotate pairs of each head: Su et al. 2021, "RoFormer", equations 14 to 16 and 34.

    Pair i at position m rotates by m * theta^(-2i / K). The product of a rotated query and a
    rotated key depends on the difference of their positions only. Pairs are (i, i + K/2) as in
    GPT-NeoX and Hugging Face, not (2i, 2i + 1) as in the paper: the order within a head is free.

    Attributes:
        theta: base of the frequencies; the slowest pair rotates once in about 2 pi theta positions.
        scaling: applied to the frequencies, see `select_scaling`; None for none.
        width: the numbers of each head that are rotated, its first, K above; None for all. The rest
            has no position (Black et al. 2022, section 2.1.1).
    """

    theta: float = 10_000.0
    scaling: Scaling | None = None
    width: int | None = None

    def __call__(
        self, x: Float[Array, "B L H K"], positions: Int[Array, "B L"] | None
    ) -> Float[Array, "B L H K"]:
        """The rotated heads, in the type of `x`; positions None are 0 to L - 1.

        Raises:
            ValueError: an odd width.
        """
        width = x.shape[-1] if self.width is None else self.width
        if width % 2:
            raise ValueError(
                f"rotary positions rotate pairs: the heads' width must be even, not {width}"
            )
        if positions is None:
            positions = jnp.arange(x.shape[1])[None]
        # Float32 under bfloat16 too: that has 8 bits, and so no odd positions above 256.
        frequencies = self.frequencies(width=width).astype(np.float32)
        angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        first, second = self._pairs(x[..., :width].astype(jnp.float32))
        turned = self._joined(first * cosine - second * sine, second * cosine + first * sine)
        return jnp.concatenate([turned.astype(x.dtype), x[..., width:]], axis=-1)

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        """The first and the second number of each pair."""
        first, second = jnp.split(x, 2, axis=-1)
        return first, second

    def _joined(self, first: Array, second: Array) -> Array:
        return jnp.concatenate([first, second], axis=-1)

    def frequencies(self, *, width: int) -> Frequencies:
        """Radians per position of each pair of a head of `width` numbers, highest first."""
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        return frequencies if self.scaling is None else self.scaling(frequencies)


class InterleavedRotary(Rotary):
    """Rotary positions whose pairs are neighbours, (2i, 2i + 1), as in RoFormer and GPT-J."""

    def _pairs(self, x: Array) -> tuple[Array, Array]:
        return x[..., ::2], x[..., 1::2]

    def _joined(self, first: Array, second: Array) -> Array:
        return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)
