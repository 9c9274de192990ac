"""Hugging Face's formats: folders, weight names, settings."""

import functools
import importlib
import pkgutil

from t5x_like.hf import systems
from t5x_like.hf.record import HuggingFaceFormat


@functools.cache
def formats() -> dict[str, HuggingFaceFormat]:
    """The records of all systems that have one, by the name of the system."""
    names = [info.name for info in pkgutil.iter_modules(systems.__path__)]
    return {name: importlib.import_module(f"{systems.__name__}.{name}").FORMAT for name in names}


def find(system: str) -> HuggingFaceFormat:
    """The record of a system.

    Raises:
        ValueError: Hugging Face has no class that computes what this system does.
    """
    if system not in formats():
        raise ValueError(
            f"system={system!r}: Hugging Face has no class for it, so its models are saved as "
            "t5x_like checkpoints only (convert --format=t5x_like)"
        )
    return formats()[system]


def readers(model_type: str, *, architecture: str = "") -> list[str]:
    """The systems that a folder can be read as, the default one first.

    Args:
        model_type, architecture: of its config.json; the latter is the name of a class.

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
