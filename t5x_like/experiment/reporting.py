"""What a run shows: a progress line, TensorBoard, a JSON Lines file, a picture of the loss."""

import json
import logging
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from clu import metric_writers
from clu.metric_writers.interface import MetricWriter
from jaxtyping import Float, UInt8

LOG = "metrics.jsonl"
_CLEAR_LINE = "\r\x1b[K" if sys.stdout.isatty() else ""


class JsonLinesWriter(MetricWriter):
    """Appends a line for each call of `write_scalars`: {"step": 10, "train/loss": 4.2, ...}."""

    def __init__(self, path: pathlib.Path):
        self._file = path.open("a")

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends the scalars of a step; what is not finite is null."""
        values = {name: float(np.asarray(value)) for name, value in scalars.items()}
        finite = {name: v if np.isfinite(v) else None for name, v in values.items()}
        self._file.write(json.dumps({"step": int(step), **finite}) + "\n")
        self._file.flush()

    def flush(self) -> None:
        """Brings the lines to disk."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def _ignore(self, *_: Any, **__: Any) -> None:
        """A line of JSON has scalars alone."""

    write_summaries = write_images = write_videos = write_audios = _ignore
    write_texts = write_histograms = write_pointcloud = write_hparams = _ignore


class TensorBoardWriter(metric_writers.SummaryWriter):
    """Writes for TensorBoard. A picture of a pixel for each expert is drawn to be read."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Stores pictures of tables [1, layers, experts, 1] of shares."""
        drawn = {name: draw_load(image[0, :, :, 0])[None] for name, image in images.items()}
        super().write_images(step, drawn)


def draw_load(shares: Float[np.ndarray, "M E"]) -> UInt8[np.ndarray, "height width 3"]:
    """Draws each expert's share of its layer's load, over the scale from nothing to twice alike.

    Alike is 1/E, in gray; idle experts are blue and busy ones red. The scale stays, so that one can
    compare the pictures of different steps.
    """
    import matplotlib.backends.backend_agg  # as in `plot_loss`
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
    # In two lines above, where there is room for it however few layers and experts there are.
    figure.suptitle(f"share of the layer's load\n({1 / experts:.3g} each where alike)", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


class EvaluationLines(JsonLinesWriter):
    """Prints evaluations on the terminal; training has its progress line."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Prints the scalars of an evaluation, but for those of single layers."""
        if not any(name.startswith("train/") for name in scalars):
            values = "  ".join(
                f"{name} {value:.4f}" for name, value in scalars.items() if "/layer_" not in name
            )
            sys.stdout.write(f"{_CLEAR_LINE}  held out at step {step}: {values}\n")
            sys.stdout.flush()

    def flush(self) -> None:
        """Nothing is held back."""

    close = flush


def open_writer(workdir: pathlib.Path) -> MetricWriter:
    """The writers of a run; on all processes but the first they write nothing."""
    if jax.process_index() != 0:
        return metric_writers.MultiWriter([])
    logging.getLogger("clu").setLevel(logging.WARNING)
    return metric_writers.MultiWriter(
        [
            TensorBoardWriter(str(workdir / "tensorboard")),
            JsonLinesWriter(workdir / LOG),
            EvaluationLines(),
        ]
    )


class ProgressLine:
    """Shows step, loss, accuracy, tokens/s, time left and the like on one line of the terminal.

    Where the output is no terminal (a file, a pipe) each is a line of its own.
    """

    def __init__(self, *, steps: int):
        self._steps = steps
        self._end = "" if _CLEAR_LINE else "\n"

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Shows the metrics of a log."""
        if jax.process_index() != 0:
            return
        parts = [f"step {step}/{self._steps}", f"loss {values['loss']:.4f}"]
        if "accuracy" in values:
            parts.append(f"accuracy {values['accuracy']:.1%}")
        if "tokens_dropped" in values:
            parts.append(f"dropped {values['tokens_dropped']:.1%}")
        if "tokens_per_second" in values:
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
            left = int(values["seconds_left"])
            parts.append(f"{left // 3600}:{left % 3600 // 60:02}:{left % 60:02} left")
        if "model_flops_utilization" in values:
            parts.append(f"utilization {values['model_flops_utilization']:.1%}")
        sys.stdout.write(_CLEAR_LINE + "  ".join(parts) + self._end)
        sys.stdout.flush()


def read_log(workdir: pathlib.Path) -> dict[str, dict[int, float]]:
    """The metrics of a run, {name: {step: value}}; of a step trained twice the last value."""
    series: dict[str, dict[int, float]] = {}
    for line in (workdir / LOG).read_text().splitlines():
        values = json.loads(line)
        step = values.pop("step")
        for name, value in values.items():
            if value is not None:
                series.setdefault(name, {})[step] = value
    return series


def plot_loss(workdir: pathlib.Path, *, unigram_entropy: float | None) -> pathlib.Path:
    """Draws the training and held-out losses over the steps, beside the unigram entropy if any."""
    import matplotlib.figure  # takes a second that `--help` need not wait for

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    log = read_log(workdir)
    for name, series in log.items():
        in_training = name.startswith("train/")
        task, _, metric = name.rpartition("/")
        drawn = "cross_entropy" if f"{task}/cross_entropy" in log else "loss"
        if name == "train/loss" or (metric == drawn and not in_training):
            style = "-" if in_training else "o-"
            steps = sorted(series)
            axes.plot(steps, [series[s] for s in steps], style, label=name, markersize=4)
    if unigram_entropy is not None:
        label = "unigram entropy of targets"
        axes.axhline(unigram_entropy, color="gray", linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="loss", title=str(workdir))
    axes.grid(alpha=0.3)
    axes.legend()
    path = workdir / "loss.png"
    figure.savefig(path, dpi=120)
    return path
