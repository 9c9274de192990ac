"""Read data sets that TensorFlow Datasets has prepared on disk, without downloading."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds


class PreparedSource(seqio.TfdsDataSource):
    """A prepared data set on disk: a training run never downloads or generates it.

    Args:
        name: the data set with its config and version, "c4/en:3.1.0".
        splits: {our name of a split: its name in the prepared data}.
        data_dir: the folder of prepared data sets; None: `~/tensorflow_datasets`.
        advice: what to do if it is missing, appended to the error message.
    """

    def __init__(self, name: str, *, splits: Mapping[str, str], data_dir: str | None, advice: str):
        super().__init__(
            tfds_name=name,
            tfds_data_dir=data_dir and os.path.expanduser(data_dir),
            splits=dict(splits),
            read_only=True,
        )
        self._advice = advice

    def list_shards(self, split: str) -> Sequence[str]:
        """Return the files of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Return the number of examples of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().num_input_examples(split)

    def get_dataset(self, split: str = "train", *args: Any, **kwargs: Any) -> tf.data.Dataset:
        """Return the examples of a split; raise ValueError if the data is missing."""
        self._check_prepared()
        return super().get_dataset(split, *args, **kwargs)

    def _check_prepared(self) -> None:
        name = self.tfds_dataset.name
        try:
            is_there = bool(self.tfds_dataset.info.splits)
        except (tfds.core.DatasetNotFoundError, AssertionError):
            is_there = False  # a release that the installed builder can neither find nor make
        if is_there:
            return
        folder = self.tfds_dataset.data_dir or "~/tensorflow_datasets"
        raise ValueError(
            f"{name} is not prepared in data_dir={folder!r}. `tfds build {name.partition(':')[0]} "
            f"--data_dir={folder}` prepares it, {self._advice}"
        )
