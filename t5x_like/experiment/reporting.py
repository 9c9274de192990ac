"""The outputs of a run: a progress line, evaluation tables, a JSON Lines log, plots.

TensorBoard's event files are written without TensorFlow.
"""

import contextlib
import functools
import io
import json
import math
import os
import pathlib
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from t5x_like import paths, reading
from t5x_like.experiment import terminal
from t5x_like.experiment.command_line import writing
from t5x_like.training.loop import Writer

_PERCENTILES = (2.5, 97.5)


class Estimate(float):
    """A number, with its values on resampled sets of examples.

    Attributes:
        samples: the number on each of many resampled sets, NaN if it is undefined there.
    """

    samples: Float[np.ndarray, " R"]

    def __new__(cls, value: float, samples: Float[np.ndarray, " R"]) -> "Estimate":
        """Make a float with samples."""
        estimate = super().__new__(cls, value)
        estimate.samples = samples
        return estimate

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the 95% interval; NaN if the number is undefined on all resampled sets."""
        if np.isnan(self.samples).all():
            return math.nan, math.nan
        low, high = np.nanpercentile(self.samples, _PERCENTILES)
        return float(low), float(high)


def bounds(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the interval bounds of the `Estimate`s, as NAME/low and NAME/high."""
    intervals = {
        name: value.interval for name, value in numbers.items() if isinstance(value, Estimate)
    }
    return {
        f"{name}/{end}": bound
        for name, interval in intervals.items()
        for end, bound in zip(("low", "high"), interval, strict=True)
    }


def table(results: Mapping[str, Mapping[str, float]], *, step: int) -> Iterator[str]:
    """Yield lines for the terminal: the numbers of each task, with their intervals."""
    for task, values in results.items():
        yield f"{task} at step {step}:"
        for name, value in values.items():
            interval = ""
            if isinstance(value, Estimate):
                low, high = value.interval
                interval = f"  [{low:.4f}, {high:.4f}]"
            yield f"  {name:28} {value:.4f}{interval}"


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
            image = draw_load(table[0, :, :, 0])
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


LOG = "metrics.jsonl"


class JsonLinesWriter:
    """Appends a line for each call of `write_scalars`: {"step": 10, "train/loss": 4.2, ...}.

    The bounds of a number with an interval are added as NAME/low and NAME/high.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        is_torn = _is_torn(path)
        self._file = paths.open_to_append(path)  # unbuffered: each line is written at once
        if is_torn:  # end the partial line that a kill or a full disk left
            with writing(path):
                self._file.write(b"\n")

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append the scalars of a step; NaN and infinity become null.

        Raises:
            WriteError: the line cannot be written.
        """
        values = {name: float(np.asarray(value)) for name, value in scalars.items()}
        values |= bounds(scalars)
        finite = {name: v if np.isfinite(v) else None for name, v in values.items()}
        line = (json.dumps({"step": int(step), **finite}) + "\n").encode()
        with writing(self._path):
            end = self._file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[self._file.write(line) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(end)  # a partial line could not be read
                raise

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Ignore images: the file contains scalars only."""

    def flush(self) -> None:
        """Upload lines that are not yet in a bucket; lines of a local file are never buffered."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ClosingWriter(Writer, Protocol):
    """A writer that is closed at the end of a run."""

    def close(self) -> None:
        """Write what is buffered, and close."""


class Writers:
    """Writes the same metrics with several writers.

    Args:
        folder: the folder that they write into, for error messages.

    All methods but `close` raise WriteError if a file cannot be written.
    """

    def __init__(
        self,
        writers: Sequence[ClosingWriter],
        folder: pathlib.Path,
    ):
        self._writers, self._folder = writers, folder

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step with each writer."""
        with writing(self._folder):
            for writer in self._writers:
                writer.write_scalars(step, scalars)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write the images of a step with each writer."""
        with writing(self._folder):
            for writer in self._writers:
                writer.write_images(step, images)

    def flush(self) -> None:
        """Flush each writer."""
        with writing(self._folder):
            for writer in self._writers:
                writer.flush()

    def close(self) -> None:
        """Close each writer, ignoring OSError, since earlier writes have raised their errors."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.close()


def draw_load(shares: Float[np.ndarray, "M E"]) -> UInt8[np.ndarray, "height width 3"]:
    """Plot each expert's share of its layer's load as an image.

    An equal share, 1/E, is gray; idle experts are blue and busy ones red, from 0 to twice the equal
    share. The scale is fixed, so that images of different steps can be compared.
    """
    import matplotlib.backends.backend_agg  # takes a second, see `plot_loss`
    import matplotlib.figure
    import matplotlib.ticker

    layers, experts = shares.shape
    size = (2.5 + min(0.4 * experts, 16), 2 + min(0.4 * layers, 12))  # inches
    figure = matplotlib.figure.Figure(figsize=size, dpi=80, layout="constrained")
    canvas = matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap="coolwarm", vmin=0, vmax=2 / experts, aspect="auto")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="expert", ylabel="layer")
    figure.colorbar(picture, extend="max")
    # A title of two lines fits above the axes however few layers and experts there are.
    figure.suptitle(f"share of the layer's load\n(equal shares: {1 / experts:.3g})", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


class EvaluationLines:
    """Prints evaluations on the terminal; `ProgressLine` prints the training metrics.

    If one task has only a held-out loss, it is one line. Otherwise a table with the intervals is
    printed, as by `evaluate`.
    """

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Print the scalars of an evaluation, except per-layer scalars."""
        if any(name.startswith("train/") for name in scalars):
            return
        results: dict[str, dict[str, float]] = {}
        for name, value in scalars.items():
            task, _, number = name.partition("/")
            if "layer_" not in number:
                results.setdefault(task, {})[number] = value
        measured = [numbers for task, numbers in results.items() if task != "epochs"]
        if len(measured) > 1 or any("/" in number for numbers in measured for number in numbers):
            lines = list(table(results, step=step))
        else:
            values = (
                f"{task}/{number} {value:.4f}"
                for task, numbers in results.items()
                for number, value in numbers.items()
            )
            lines = [f"  held out at step {step}: {'  '.join(values)}"]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Ignore images: a terminal shows text."""

    def flush(self) -> None:
        """Do nothing: each line is printed at once."""

    def close(self) -> None:
        """Do nothing: the terminal stays open."""


class ProgressLine:
    """Shows step, loss, accuracy, tokens/s, time left and more in the terminal's status line.

    If the output is not a terminal (a file, a pipe), each update is a separate line. If a terminal
    is too narrow, the metrics of the last tasks are left out.

    Args:
        steps: the last step.
        tasks: the names of the tasks of the run, "" for one task.
        phase: the name of the phase, whose remaining time is shown; "" for a run without phases.
    """

    def __init__(self, *, steps: int, tasks: Sequence[str] = ("",), phase: str = ""):
        self._steps, self._tasks = steps, tasks
        self._until = f" left of {phase}" if phase else " left"

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a step."""
        if jax.process_index() != 0:
            return
        middle = [part for task in self._tasks for part in _task_parts(task, values)]
        tail = []
        if "tokens_per_second" in values:
            tail.append(f"{values['tokens_per_second']:,.0f} tokens/s")
            left = int(values["seconds_left"])
            tail.append(f"{left // 3600}:{left % 3600 // 60:02}:{left % 60:02}{self._until}")
        if "model_flops_utilization" in values:
            tail.append(f"utilization {values['model_flops_utilization']:.1%}")
        terminal.LINE.show(f"step {step}/{self._steps}", middle, tail)


def _task_parts(task: str, values: Mapping[str, float]) -> list[str]:
    """Format a task's metrics for the progress line; [] if no step trained on the task."""
    forms = {
        "loss": "loss {:.4f}",
        "accuracy": "accuracy {:.1%}",
        "tokens_dropped": "dropped {:.1%}",
    }
    prefix = f"{task}/" if task else ""
    logged = {name: form for name, form in forms.items() if f"{prefix}{name}" in values}
    shown = [form.format(values[f"{prefix}{name}"]) for name, form in logged.items()]
    return [f"{task} {shown[0]}", *shown[1:]] if task and shown else shown


def read_log(workdir: pathlib.Path) -> dict[str, dict[int, float]]:
    """Read the metrics of a run, {name: {step: value}}; a step trained twice has its last value.

    Unreadable lines, or a missing file, are reported by one printed line and left out.
    """
    series: dict[str, dict[int, float]] = {}
    for values in log_lines(workdir):
        for name, value in values.items():
            if value is not None and name != "step":
                series.setdefault(name, {})[values["step"]] = value
    return series


def log_lines(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Read the log of a run: a dict for each line, with "step" and numbers (None if undefined).

    Unreadable lines, or a missing file, are reported by one printed line and left out.
    """
    path, records, bad = workdir / LOG, [], []
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        _warn(f"{path} does not exist: the run has no log")
        return []
    for number, line in enumerate(content.split(b"\n"), start=1):
        values = _values(line)
        if values is not None:
            records.append(values)
        elif line.strip():
            bad.append(number)
    if bad:
        _warn(f"{path}:{bad[0]}: it cannot be read, and is left out; lines like it: {len(bad)}")
    return records


def _values(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the log; None if it is truncated or not an object of numbers."""
    try:
        values = reading.json_object(line.decode())
    except ValueError:
        return None
    step = values.get("step")
    kinds = (int, float, type(None))
    return values if type(step) is int and all(type(v) in kinds for v in values.values()) else None


@functools.cache
def _warn(line: str) -> None:
    """Print a line, but each line only once per process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _is_torn(path: pathlib.Path) -> bool:
    """Return whether the last line of a file lacks its line break."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # the file does not exist yet
        return False


def plot_loss(
    workdir: pathlib.Path, *, unigram_entropy: float | None, tasks: Sequence[str] = ("",)
) -> pathlib.Path:
    """Plot the training and held-out losses over the steps, and the unigram entropy if given.

    Args:
        tasks: the names of the tasks of the run, "" for one task.
    """
    import matplotlib.figure  # takes a second that `--help` need not wait for

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    log = read_log(workdir)
    training = {f"train/{task}/loss" if task else "train/loss" for task in tasks}
    for name, series in log.items():
        task, _, metric = name.rpartition("/")
        plotted = "cross_entropy" if f"{task}/cross_entropy" in log else "loss"
        held_out = metric == plotted and not name.startswith("train/")
        if name in training or held_out:
            style = "o-" if held_out else "-"
            steps = sorted(series)
            axes.plot(steps, [series[s] for s in steps], style, label=name, markersize=4)
    if unigram_entropy is not None:
        label = "unigram entropy of targets"
        axes.axhline(unigram_entropy, color="gray", linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="loss", title=str(workdir))
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend()
    path = workdir / "loss.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    with writing(path):
        paths.write_whole(path, drawn.getvalue())
    return path
