"""Hugging Face's formats: folders, weight names, settings."""

import functools
import importlib
import pkgutil

from t5x_like.hf import systems
from t5x_like.hf.record import HuggingFaceFormat


@functools.cache
def formats() -> dict[str, HuggingFaceFormat]:
    """Return {system: its format}, for all systems with a Hugging Face format."""
    names = [info.name for info in pkgutil.iter_modules(systems.__path__)]
    return {name: importlib.import_module(f"{systems.__name__}.{name}").FORMAT for name in names}


def find(system: str) -> HuggingFaceFormat:
    """Return the format of a system.

    Raises:
        ValueError: Hugging Face has no class for this system's network.
    """
    if system not in formats():
        raise ValueError(
            f"system={system!r}: Hugging Face has no class for it, so its models are saved as "
            "t5x_like checkpoints only (convert --format=t5x_like)"
        )
    return formats()[system]


def readers(model_type: str, *, architecture: str = "") -> list[str]:
    """Return the systems that a folder can be read as, the default first.

    Args:
        model_type: the `model_type` in its config.json.
        architecture: the name of the class in its config.json.

    Raises:
        ValueError: no system supports this `model_type`.
    """
    found = [record for record in formats().values() if model_type in record.model_types]
    if not found:
        known = sorted({each for record in formats().values() for each in record.model_types})
        raise ValueError(
            f"model_type={model_type!r} is not supported; supported are {', '.join(known)}"
        )

    def place(record: HuggingFaceFormat) -> tuple[bool, bool]:
        return architecture not in record.classes, record.on_request

    return [record.system for record in sorted(found, key=place)]
