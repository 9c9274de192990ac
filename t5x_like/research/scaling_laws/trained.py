"""Read trained runs from their config.json and metrics.jsonl."""

import math
import pathlib

import numpy as np

from t5x_like import config
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import reporting
from t5x_like.research.scaling_laws import cost
from t5x_like.research.scaling_laws.runs import TrainedRun

_DECAYING = ("cosine", "linear")


def read_folder(
    folder: pathlib.Path, *, count: str = "counted"
) -> tuple[list[TrainedRun], list[str]]:
    """Return the finished runs in a folder's subfolders, and a sentence about each run left out.

    The loss of a run is its held-out loss at the last step, its curve the training loss.

    Args:
        count: how FLOPs are counted, one of `cost.COUNTS`.

    Raises:
        ValueError: no subfolder is a run, or a config is invalid.
    """
    folders = sorted(path.parent for path in folder.glob("*/config.json"))
    if not folders:
        raise ValueError(
            f"{folder} has no folders of runs: each needs the config.json that training writes"
        )
    runs, left_out = [], []
    for run_folder in folders:
        settings = config.parse(config.load(run_folder / "config.json"))
        loss = final_loss(settings, run_folder)
        if loss is None:
            left_out.append(f"{run_folder.name} is not finished, and left out")
        else:
            runs.append(_run(settings, run_folder, loss, count=count))
    return runs, left_out


def final_loss(settings: RunSettings, folder: pathlib.Path) -> float | None:
    """Return the held-out loss of a run at its last step; None if it is not finished."""
    if not (folder / reporting.LOG).is_file():
        return None
    log = reporting.read_log(folder)
    task = next(iter(settings.evaluate.tasks), settings.data.task)
    held_out = log.get(f"{task}/cross_entropy", log.get(f"{task}/loss", {}))
    return held_out.get(settings.train.steps)


def _run(settings: RunSettings, folder: pathlib.Path, loss: float, *, count: str) -> TrainedRun:
    run_cost = cost.of_settings(settings, count=count)
    log = reporting.read_log(folder)
    curve = log.get("train/cross_entropy", log.get("train/loss", {}))
    steps = sorted(curve)
    *along, tokens = cost.tokens_at(settings, [*steps, settings.train.steps])
    points = (np.array(along, float), np.array([curve[step] for step in steps]))
    optimizer = settings.optimizer
    decay_steps = optimizer.get("decay_steps") or math.inf
    decays = optimizer.get("schedule") in _DECAYING
    return TrainedRun(
        name=folder.name,
        n=run_cost.parameters,
        d=tokens,
        c=run_cost.flops_per_token * tokens,
        loss=loss,
        n_without_embeddings=run_cost.without_embeddings,
        decay_tokens=tokens * decay_steps / settings.train.steps if decays else math.inf,
        steps=settings.train.steps,
        curve=points if len(steps) > 1 else None,
    )
