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


def model_types() -> dict[str, str]:
    """The supported values of a config.json's `model_type` -> the system of such a folder."""
    return {
        model_type: name for name, record in formats().items() for model_type in record.model_types
    }
