"""Checkpoints: written in the background, and checked for damage before they are used."""

from t5x_like.checkpoints.best import BestCheckpoint
from t5x_like.checkpoints.reading import (
    CheckpointError,
    DamagedCheckpointError,
    DataState,
    agreed_steps,
    check_params,
    checkpoint_steps,
    locate,
    newest_intact,
    parameter_shapes,
    read_metadata,
    restore_params,
    restore_state,
)
from t5x_like.checkpoints.writing import Checkpoints, CheckpointWriteError

__all__ = [
    "BestCheckpoint",
    "CheckpointError",
    "CheckpointWriteError",
    "Checkpoints",
    "DamagedCheckpointError",
    "DataState",
    "agreed_steps",
    "check_params",
    "checkpoint_steps",
    "locate",
    "newest_intact",
    "parameter_shapes",
    "read_metadata",
    "restore_params",
    "restore_state",
]
