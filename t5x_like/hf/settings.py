"""Settings of a config.json by our names, and back."""

from collections.abc import Mapping
from typing import Any


def read_settings(
    config: Mapping[str, Any],
    *,
    settings: Mapping[str, str],
    fixed: Mapping[str, Any],
    dropout: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The settings of a config.json by our names.

    Args:
        settings: Hugging Face's names -> ours; all must be there.
        fixed: the only supported values of other settings, which may be missing.
        dropout: Hugging Face's names of dropout rates; here all are the first of
            them, or 0.1. Empty: the network has no dropout.

    Raises:
        ValueError: a setting is missing, or has a value that is not supported.
    """
    for key in settings:
        if key not in config:
            raise ValueError(f"config.json has no {key}")
    for key, value in fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    ours = {name: config[key] for key, name in settings.items()}
    return ours | ({"dropout": config.get(dropout[0], 0.1)} if dropout else {})


def write_settings(
    config: Mapping[str, Any],
    *,
    settings: Mapping[str, str],
    fixed: Mapping[str, Any],
    dropout: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The inverse of `read_settings`."""
    theirs = {key: config[name] for key, name in settings.items()}
    return theirs | dict.fromkeys(dropout, config["dropout"]) | dict(fixed)
