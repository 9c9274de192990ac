"""Write a run's metrics as TensorBoard's event files, without TensorFlow."""

import io
import os
import pathlib
import socket
import time
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from t5x_like import paths
from t5x_like.experiment import reporting


class TensorBoardWriter:
    """Writes scalars, and plots of the experts' load, into a new event file of a folder."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        # Named as by TensorFlow: TensorBoard reads the files of a folder in the order of their
        # names.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.v2"
        self._raw = paths.open_to_append(folder / name)
        self._file = io.BufferedWriter(self._raw)
        self._records = RecordWriter(self._file)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.flush()

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        values = [
            summary_pb2.Summary.Value(
                tag=name,
                metadata=_metadata("scalars", summary_pb2.DATA_CLASS_SCALAR),
                tensor=tensor_pb2.TensorProto(
                    dtype=types_pb2.DT_FLOAT, float_val=[float(np.asarray(value))]
                ),
            )
            for name, value in scalars.items()
        ]
        self._write_summary(step, values)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Plot and write tables of experts' shares of the load [1, N, E, 1]."""
        values = []
        for name, table in images.items():
            image = reporting.draw_load(table[0, :, :, 0])
            height, width, _ = image.shape
            texts = [str(width).encode(), str(height).encode(), _png(image)]
            shape = {"dim": [{"size": len(texts)}]}
            values.append(
                summary_pb2.Summary.Value(
                    tag=name,
                    metadata=_metadata("images", summary_pb2.DATA_CLASS_BLOB_SEQUENCE),
                    tensor=tensor_pb2.TensorProto(
                        dtype=types_pb2.DT_STRING, string_val=texts, tensor_shape=shape
                    ),
                )
            )
        self._write_summary(step, values)

    def flush(self) -> None:
        """Write what is buffered, and upload it if the folder is in a bucket."""
        self._file.flush()
        self._raw.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_summary(self, step: int, values: list[summary_pb2.Summary.Value]) -> None:
        summary = summary_pb2.Summary(value=values)
        self._write(event_pb2.Event(wall_time=time.time(), step=int(step), summary=summary))

    def _write(self, event: event_pb2.Event) -> None:
        self._records.write(event.SerializeToString())


def _metadata(plugin: str, data_class: int) -> summary_pb2.SummaryMetadata:
    name = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin)
    return summary_pb2.SummaryMetadata(plugin_data=name, data_class=data_class)


def _png(image: UInt8[np.ndarray, "height width 3"]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()
