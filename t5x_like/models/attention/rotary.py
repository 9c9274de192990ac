"""Rotary positions: queries and keys turned by angles that grow with their places."""

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
    """Positions divided by `factor`: a context so many times as long fits the angles trained on.

    Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation", equation 4.
    """

    factor: float

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """The frequencies, each divided."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Slow frequencies divided by `factor`, quick ones left, and a slope between: LLaMA 3.1.

    A frequency turns c times within `original_max_position_embeddings`. It is left as it is from
    c = `high_freq_factor` on, and divided up to c = `low_freq_factor`.
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
        """The frequencies, some divided."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        slope = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(slope, 0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


Scaling = Callable[[Frequencies], Frequencies]
SCALINGS: dict[str, Callable[..., Scaling]] = {"linear": LinearScaling, "llama3": Llama3Scaling}


def select_scaling(settings: Mapping[str, Any]) -> Scaling | None:
    """The scaling that a mapping describes, by the names of Hugging Face; None for an empty one.

    Args:
        settings: `rope_type`, a name in SCALINGS, and the fields of its class.

    Raises:
        ValueError: a kind that is not here, or settings that are missing, unknown or out of range.
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
            raise ValueError(f"model.rope_scaling lacks {name}, which {settings['rope_type']} has")
        if not own[name] > 0:
            raise ValueError(f"model.rope_scaling.{name}={own[name]!r} must be above 0")
    return make(**own)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Turns pairs of numbers of each head: Su et al. 2021, "RoFormer", equations 14 to 16 and 34.

    The pair i of position m turns by m * theta^(-2i / K). A product of a turned query and a turned
    key depends on their positions by the difference alone. Pairs are (i, i + K/2) as in GPT-NeoX
    and Hugging Face, not (2i, 2i + 1) as in the paper: the order of a head's numbers is free.

    Attributes:
        theta: the slowest pair turns once in nearly 2 pi theta positions.
        scaling: of the frequencies, see `select_scaling`; None leaves them.
    """

    theta: float = 10_000.0
    scaling: Scaling | None = None

    def __call__(
        self, x: Float[Array, "B L H K"], positions: Int[Array, "B L"] | None
    ) -> Float[Array, "B L H K"]:
        """The turned heads, in the type of `x`; positions None are 0 to L - 1.

        Raises:
            ValueError: heads of odd width.
        """
        width = x.shape[-1]
        if width % 2:
            raise ValueError(f"rotary positions turn pairs, and the heads' width {width} is odd")
        if positions is None:
            positions = jnp.arange(x.shape[1])[None]
        # Float32 under bfloat16 too: that has 8 bits, and so no odd positions above 256.
        frequencies = self.frequencies(width=width).astype(np.float32)
        angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = [first * cosine - second * sine, second * cosine + first * sine]
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)

    def frequencies(self, *, width: int) -> Frequencies:
        """Radians a position of each pair of a head of `width` numbers, the quickest first."""
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        return frequencies if self.scaling is None else self.scaling(frequencies)
