"""The settings of a dialog model, `dialog` in a config."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.batches.dialog_rows import ATTRIBUTES
from t5x_like.names import check_settings, choose

_UNSAFE = "unsafe"


@dataclasses.dataclass(frozen=True)
class DialogSettings:
    """Settings of a dialog model's reply (Thoppilan et al. 2022, sections 6.1 and 6.2).

    Attributes:
        candidates: responses sampled for each turn.
        top_k, temperature: settings of sampling.
        unsafe_above: candidates with a larger P(unsafe) are dropped; 1 drops none.
        weights: weights of the other attributes' probabilities in the sum that ranks candidates.
        refusal: the reply if all candidates are dropped.
        role: turns put before every dialog, by the user and the model in turn, so that the model
            plays a role (section 7).
        calculator: whether to use the calculator. Without any tool there is no research.
        translator: file with a table of words (`toolset.Translator`); "" for no translator.
        retrieval: file with a key-value store (`toolset.Retrieval`); "" for no retrieval.
        calls: maximum calls of the toolset per turn.
        seed: seed of sampling.
    """

    candidates: int = 16
    top_k: int = 40
    temperature: float = 1.0
    unsafe_above: float = 0.5
    weights: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"sensible": 3.0, "specific": 1.0, "interesting": 1.0}
    )
    refusal: str = "I would rather not answer that."
    role: Sequence[str] = ()
    calculator: bool = False
    translator: str = ""
    retrieval: str = ""
    calls: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("candidates", "top_k", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"dialog.{name}={getattr(self, name)} must be 1 or more")
        if not self.temperature > 0:
            raise ValueError(f"dialog.temperature={self.temperature} must be above 0")
        if not 0 <= self.unsafe_above <= 1:
            raise ValueError(
                f"dialog.unsafe_above={self.unsafe_above} must be a probability, from 0 to 1"
            )
        ranked = dict.fromkeys(name for name in ATTRIBUTES if name != _UNSAFE)
        for name in self.weights:
            choose("dialog.weights", name, ranked)
        if len(self.role) % 2:
            raise ValueError(
                f"dialog.role has {len(self.role)} turns: give an even number, by the user and the "
                "model in turn, since a dialog begins with the user"
            )

    def drops(self, ratings: Mapping[str, float]) -> bool:
        """Return whether a candidate with these probabilities is unsafe."""
        return ratings[_UNSAFE] > self.unsafe_above

    def score(self, ratings: Mapping[str, float]) -> float:
        """Return the score that ranks a candidate: larger is better."""
        return sum(weight * ratings[name] for name, weight in self.weights.items())


def read(settings: Mapping[str, Any], *, where: str = "dialog") -> DialogSettings:
    """Make the settings from the `dialog` of a config.

    Raises:
        ValueError: a setting does not exist, or its value is not allowed.
    """
    check_settings(where, DialogSettings, settings)
    return DialogSettings(**settings)
