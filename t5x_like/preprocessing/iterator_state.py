"""Save the state of a tf.data iterator as bytes for a checkpoint, and restore it."""

import functools
import logging
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_PARTS = "parts"  # key of the serialized state
# Pieces of the state that are serialized together. One call per piece, of which a shuffle buffer
# has thousands, takes seven times as long; and a serialized tensor is limited to 2 GB.
_TOGETHER = 256

_log = logging.getLogger(__name__)


def save(iterator: Any, *, task: str) -> dict[str, Any] | None:
    """Serialize the state of an iterator in memory, so that a full disk does not matter.

    Args:
        iterator: an iterator of a tf.data dataset.
        task: the name of its task, for the warning.

    Returns:
        The state; None if tf.data cannot save it.
    """
    try:
        state = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource,
            # The same policy that `TaskReader.blocks` sets for these datasets.
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value,
        )
    except tf.errors.UnimplementedError as error:
        _warn_of_replay(task, error.message)
        return None
    starts = range(0, len(state), _TOGETHER)
    return {
        _PARTS: [tf.io.serialize_tensor(state[n : n + _TOGETHER]).numpy() for n in starts],
    }


@functools.cache
def _warn_of_replay(task: str, reason: str) -> None:
    _log.warning(
        "Positions of task %r are restored by reading its epoch again up to there, since its "
        "tf.data pipeline cannot be saved: %s",
        task,
        reason,
    )


def load(iterator: Any, saved: Mapping[str, Any]) -> None:
    """Restore into an equal iterator a state that `save` returned."""
    if _PARTS in saved:
        parts = [tf.io.parse_tensor(part, tf.variant) for part in saved[_PARTS]]
        pieces = [piece for part in parts for piece in tf.unstack(part)]
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource, serialized=tf.stack(pieces)
        )
        return
    # Older positions contain the files of a checkpoint.
    with tempfile.TemporaryDirectory() as folder:
        for name, content in saved.items():
            pathlib.Path(folder, name).write_bytes(content)
        tf.train.Checkpoint(iterator=iterator).read(f"{folder}/iterator").assert_consumed()
