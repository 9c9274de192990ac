"""Load several runs or folders as one model, for `evaluate --ensemble`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from t5x_like import paths, vocabularies
from t5x_like.config.run_settings import RunSettings
from t5x_like.evaluation.held_out import HeldOutLoss
from t5x_like.evaluation.measure import Measure
from t5x_like.experiment import fingerprints
from t5x_like.pretrained import Pretrained
from t5x_like.pretrained.loading import ensemble, from_source
from t5x_like.pretrained.weight_source import data_settings, open_source


def load(
    folders: Sequence[str], settings: RunSettings, *, mesh: Mesh, average: int
) -> tuple[Pretrained, dict[str, Any]]:
    """Load the ensemble of the models in several folders, and the metadata of the first's run.

    Args:
        folders: paths that `from_pretrained` reads.
        settings: settings of the evaluation, with the vocabulary and the names of the labels.
        mesh: the mesh to place the parameters on.
        average: number of newest checkpoints of each run to average.

    Raises:
        ValueError: a folder has no model, its vocabulary or labels differ from the config's, or
            the outputs of the models cannot be averaged.
    """
    if settings.tasks:
        raise ValueError("--ensemble: runs of several tasks are not supported")
    members = [paths.path(folder) for folder in folders]
    for path in members:
        if not path.is_dir():
            raise ValueError(f"--ensemble: there is no folder {path}")
    sources = [open_source(path, average=average) for path in members]
    wanted = vocabularies.load(settings.data.vocabulary)
    for path, source in zip(members, sources, strict=True):
        member_data = data_settings(source)
        name = member_data.get("vocabulary", str(path))
        if vocabularies.load(name) != wanted:
            raise ValueError(
                f"--ensemble: the vocabulary of {path}, {name!r}, differs from the config's, "
                f"{settings.data.vocabulary!r}, so that their predictions cannot be averaged"
            )
        before = source.run.get("fingerprints", {})  # the file may have changed since
        fingerprints.check_vocabulary(before, wanted.digest, vocabulary=name)
        named = (member_data.get("settings", {}), settings.data.settings)
        labels = [tuple(module_settings.get("labels", ())) for module_settings in named]
        if all(labels) and labels[0] != labels[1]:
            raise ValueError(
                f"--ensemble: the labels of {path} are {', '.join(map(str, labels[0]))}, and those "
                f"of the config {', '.join(map(str, labels[1]))}"
            )
    models = [from_source(source, mesh=mesh, param_dtype=settings.weights) for source in sources]
    return ensemble(models), sources[0].run


def measurable(measures: Mapping[str, Measure], *, chosen: Mapping[str, Any]) -> dict[str, Measure]:
    """Return the measures of an ensemble: all but the held-out loss of a single model.

    Args:
        measures: the measures of a task, by name.
        chosen: the setting `evaluate.measures` of the task.

    Raises:
        ValueError: the config names the loss, or the task has no other measure.
    """
    remaining = {
        name: measure for name, measure in measures.items() if not isinstance(measure, HeldOutLoss)
    }
    if not chosen and remaining:
        return remaining
    if lost := [name for name in measures if name not in remaining]:
        others = {
            name: measure_settings for name, measure_settings in chosen.items() if name in remaining
        } or "{NAME: {}}"
        raise ValueError(
            f"--ensemble: evaluate.measures.{lost[0]} is the loss of one model, and not of several "
            f'whose outputs are averaged: leave it out, --config.evaluate.measures="{others}"'
        )
    return remaining
