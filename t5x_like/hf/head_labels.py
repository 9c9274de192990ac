"""The labels of a head in a config.json: the names of its classes, and its problem type."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.hf.config_settings import COUNT, OBJECT, one_of, or_null

REGRESSION, SINGLE, MULTI = PROBLEMS = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)
_DEFAULT = 2  # the number of labels of a config.json that does not contain it


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels that the outputs of a head stand for.

    Attributes:
        names: the names of the classes or tags, in the order of their ids; empty if unknown.
        problem: one of PROBLEMS, what a head of several outputs predicts: a number for each label,
            one of the labels, or any of them, each with its own probability; "" if the kind of
            head decides.
    """

    names: tuple[str, ...] = ()
    problem: str = ""

    def in_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of config.json for these labels, which replace a format's.

        Args:
            config: the settings that the format writes, with `id2label` if the head has labels.
        """
        if "id2label" not in config:
            return {}
        written: dict[str, Any] = {}
        if len(self.names) == len(config["id2label"]):
            written["id2label"] = {str(n): name for n, name in enumerate(self.names)}
            written["label2id"] = {name: n for n, name in enumerate(self.names)}
        if self.problem:
            written["problem_type"] = self.problem
        return written


def read_labels(config: Mapping[str, Any]) -> Labels:
    """Read the labels of a config.json; without names they are LABEL_0, ... as in transformers.

    Raises:
        ValueError: `id2label` does not number its names from 0, or `problem_type`,
            `num_labels` or `id2label` has a value that is not allowed.
    """
    problem = config.get("problem_type")
    or_null(one_of(*PROBLEMS)).check("problem_type", problem)
    or_null(COUNT).check("num_labels", config.get("num_labels"))
    named = config.get("id2label")
    or_null(OBJECT).check("id2label", named)
    if named is None:
        names = [f"LABEL_{n}" for n in range(config.get("num_labels") or _DEFAULT)]
    else:
        numbers = [str(n) for n in range(len(named))]
        if not named or sorted(named) != sorted(numbers):
            raise ValueError(
                f"config.json has id2label with the keys {', '.join(named)}; allowed: 0, 1, ..., "
                "one for each label"
            )
        names = [str(named[n]) for n in numbers]  # some folders have numbers or booleans as names
    if problem == SINGLE and len(names) == 1:
        raise ValueError(
            f"config.json has problem_type={SINGLE!r} and one label; allowed: {REGRESSION!r} for a "
            "number, or two labels"
        )
    return Labels(tuple(names), problem or "")
