"""The flags that commands have besides their config, for tests that call them as functions."""

import pytest
from absl import flags

_UNSET = {
    **dict.fromkeys(
        (
            "checkpoint",
            "input",
            "output",
            "figure",
            "task",
            "harness",
            "harness_folder",
            "ensemble",
            "submission",
        )
    ),
    "harness_shots": -1,
    "harness_limit": 0,
    "average": 1,
    **dict.fromkeys(("interactive", "stream", "log_probs"), False),
    "examples": 0,
    "best_of": 0,
}


def give(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """Sets flags; those that are not named are as if nobody had given them."""
    monkeypatch.setattr(flags, "FLAGS", type("Flags", (), _UNSET | values))
