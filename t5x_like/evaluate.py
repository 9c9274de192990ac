r"""Evaluate a checkpoint on all evaluation tasks of a config.

    python -m t5x_like.evaluate --config=configs/t5.py:small --config.workdir=runs/small \
        --config.evaluate.batches=0 --checkpoint=runs/small/checkpoints/5000

Without --checkpoint the newest checkpoint of the workdir is evaluated; with --average=N the mean of
the parameters of the newest N. The numbers are printed and written as JSON to --output (by default
WORKDIR/evaluation.json). Each is named after its measure, such as `documents/bits_per_byte`, and
has the 95% bootstrap interval over examples.

Every run reports its held-out loss beside the unigram entropy of the targets. A head for labelled
text also reports metrics of its predictions (`predictions`: accuracy, Matthews correlation,
Pearson, entity F1, ...), question answering exact match and F1 (`squad`), a language model bits per
byte of whole documents (`documents`), translation BLEU (`translation`), and text-to-text tasks
exact match and word F1 (`generation`). All but the loss read as many rows as there are in
`evaluate.batches` batches (docs/metrics.md).

`evaluate.measures` in the config replaces these defaults: predicting the last word of texts,
choosing among several answers, prompts with examples (docs/evaluation.md). Runs, checkpoints and
Hugging Face folders can be evaluated:

    python -m t5x_like.evaluate --config=configs/pretrained.py:last_word \
        --config.initialize=FOLDER --config.data.settings.files=lambada.jsonl

--ensemble=runs/a,runs/b averages the logits of several generating models, or the probabilities of
several models with heads.

--submission=FOLDER writes the predictions for the hidden test rows of GLUE's or SuperGLUE's tasks
as the files that their servers accept.

--harness runs tasks of the package lm-eval instead of the config's measures:

    python -m t5x_like.evaluate --config=configs/pretrained.py --config.initialize=FOLDER \
        --harness=hellaswag,piqa
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line

    SETTINGS = command_line.start(
        __doc__,
        several_processes=True,
        checkpoint=(None, "a checkpoint, or a folder of them; best: the run's best one"),
        output=(None, "JSON file for the metrics; WORKDIR/evaluation.json by default"),
        figure=(None, "PNG file for the numbers by examples in a prompt, of in_context.sweep"),
        average=(1, "newest checkpoints to average"),
        ensemble=(None, "A,B: runs, checkpoints or folders whose predictions are averaged"),
        submission=(None, "folder for the files of hidden test sets, instead of measuring"),
        harness=(None, "A,B: tasks of lm-eval, instead of the config's measures"),
        harness_folder=(None, "YAML files of tasks of your own for --harness"),
        harness_shots=(-1, "examples in a prompt of --harness; -1: as the task has it"),
        harness_limit=(0, "examples of each task of --harness, the first ones; 0: all"),
    )

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from absl import flags

from t5x_like import partitioning, paths, processes, vocabularies
from t5x_like.config import RunSettings, one_line_errors
from t5x_like.config.run_settings import LoraSettings
from t5x_like.evaluation import (
    ensembles,
    harness,
    measures,
    reported_metrics,
    shot_curves,
    submissions,
)
from t5x_like.evaluation.measure import Measure
from t5x_like.evaluation.resources import MeasureResources
from t5x_like.experiment import command_line, completion, fingerprints, model_side, reporting
from t5x_like.experiment.run import Part, Run
from t5x_like.inference import text_model
from t5x_like.pretrained import Pretrained
from t5x_like.pretrained.loading import from_source
from t5x_like.pretrained.weight_source import open_source


@processes.ending_together()
@command_line.memory_errors()
def main(settings: RunSettings) -> None:
    """Run the command; a mistake prints one line and exits with status 2."""
    partitioning.connect_processes()
    if flags.FLAGS.harness:
        _run_harness(settings)
        return
    with one_line_errors():
        run = completion.complete(Run(settings))
    if flags.FLAGS.submission:
        _submit(run)
    else:
        evaluate(run)


def evaluate(run: Run) -> None:
    """Evaluate the parameters of a checkpoint, and write the numbers."""
    settings = run.settings.evaluate
    results: dict[str, dict[str, float]] = {}
    predictions: list[dict[str, Any]] = []
    with one_line_errors():
        output = _output(run.settings.workdir)
        command_line.check_file("--output", output)
        if settings.predictions:
            command_line.check_file("evaluate.predictions", settings.predictions)
        chosen = {
            task: _measures(part, data_task)
            for part in run.parts
            for task, data_task in part.evaluated.items()
        }
        # A wrong name is an error now.
        numbers = reported_metrics.directions(chosen, settings.averages)
        _check_figure(numbers)
        pretrained, trained = _model(run.settings)
        step = trained.get("step", 0)
        merged = run.replace(lora=LoraSettings())  # as LoRA's matrices are in what `_model` loads
        experiments = functools.cache(lambda: model_side.build_tasks(merged))
        for part in run.phase_at(step).parts:
            resources = MeasureResources(pretrained.for_task(part.name), part, make=experiments)
            for task, data_task in part.evaluated.items():
                results[task], task_predictions = _measure(chosen[task], resources, data_task)
                predictions += [{"task": task, **row} for row in task_predictions]
        results |= reported_metrics.averages(results, settings.averages)
    if jax.process_index() == 0:
        with one_line_errors(OSError):
            _write(results, step, output)
            _write_predictions(predictions, settings.predictions)


def _check_figure(numbers: Iterable[str]) -> None:
    """Check that `--figure` can be drawn from the numbers of the evaluation, TASK/NUMBER."""
    if not (figure := flags.FLAGS.figure):
        return
    command_line.check_file("--figure", figure)
    if not any(map(shot_curves.is_on_curve, numbers)):
        raise ValueError(
            f"--figure={figure!r} shows numbers by the examples in a prompt: set "
            "evaluate.measures.in_context.sweep, for example to (0,1,2,4,8)"
        )


def _submit(run: Run) -> None:
    """Write the predictions for the hidden test rows of benchmarks."""
    folder = pathlib.Path(flags.FLAGS.submission)
    with one_line_errors():
        command_line.check_folder("--submission", folder)
        _check_figure(())
        tests = submissions.hidden_tests(run)
        pretrained, _ = _model(run.settings)
        for test in tests:
            predicted = test.predict(pretrained)
            form = test.submission.form
            answers, unknown = submissions.official(form, predicted, test.rows, test.labels)
            if jax.process_index() == 0:
                path = folder / test.submission.file
                submissions.write(path, [row["index"] for row in test.rows], answers)
                texts = f", {unknown} from a text that is not a label" if unknown else ""
                print(f"{path}: {len(answers)} predictions{texts}")


def _run_harness(settings: RunSettings) -> None:
    """Run tasks of lm-eval on the model and write their metrics."""
    options = flags.FLAGS
    tasks = [task for task in options.harness.split(",") if task]
    with one_line_errors():
        _check_figure(())
        manager = harness.check_tasks(tasks, folder=options.harness_folder)  # before loading
        run = completion.complete(Run(settings))
        output = _output(run.settings.workdir)
        command_line.check_file("--output", output)
        pretrained, trained = _model(run.settings)
        model = text_model.build(pretrained.policy(), run.parts[0])
        results = harness.run(
            harness.HarnessModel(model, hugging_face=not trained),
            tasks,
            manager=manager,
            shots=options.harness_shots if options.harness_shots >= 0 else None,
            limit=options.harness_limit or None,
        )
    if jax.process_index() == 0:
        with one_line_errors(OSError):
            _write(results, trained.get("step", 0), output)


def _model(settings: RunSettings) -> tuple[Pretrained, dict[str, Any]]:
    """Load the model, with the heads of all tasks, and the metadata of its run (`Source.run`)."""
    options = flags.FLAGS
    mesh = partitioning.make_mesh(dataclasses.asdict(settings.mesh))
    partitioning.check_batch(settings.data.batch_size, mesh.shape)
    if options.ensemble:
        if options.checkpoint:
            raise ValueError("--ensemble and --checkpoint are both set: name all folders in one")
        folders = options.ensemble.split(",")
        return ensembles.load(folders, settings, mesh=mesh, average=options.average)
    path = completion.model_folder(settings, checkpoint=options.checkpoint)
    source = open_source(path, average=options.average, whole=True)
    _check_vocabulary(source.run, settings.data.vocabulary)
    pretrained = from_source(source, mesh=mesh, param_dtype=settings.weights, **settings.model)
    return pretrained, source.run


def _check_vocabulary(run: Mapping[str, Any], name: str) -> None:
    """Check that the run was trained with this vocabulary, if its fingerprint is known."""
    if before := run.get("fingerprints"):
        digest = vocabularies.load(name).digest
        fingerprints.check_vocabulary(before, digest, vocabulary=name)


def _measures(part: Part, task: str) -> dict[str, Measure]:
    task_measures = measures.of_part(part, data_task=task)
    if flags.FLAGS.ensemble:
        return ensembles.measurable(task_measures, chosen=part.evaluate.measures)
    return task_measures


def _measure(
    chosen: Mapping[str, Measure], resources: MeasureResources, task: str
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the numbers of all measures, and the model's predictions for the rows."""
    results: dict[str, float] = {}
    predictions: list[dict[str, Any]] = []
    for name, measure in chosen.items():
        needed = resources.of(measure, task)
        with resources.layout():
            numbers, predicted = measure.measure(*needed)
        results |= reported_metrics.numbers(name, numbers)
        predictions += [{"measure": name, **row} for row in predicted]
    return results, predictions


def _write(results: Mapping[str, Mapping[str, float]], step: int, path: pathlib.Path) -> None:
    curves = shot_curves.of_results(results)
    for line in reporting.table(shot_curves.others(results), step=step):
        print(line)
    for line in shot_curves.table(curves):
        print(line)
    if figure := flags.FLAGS.figure:
        file = paths.path(figure)
        with command_line.writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(shot_curves.draw(curves))
        print(f"drawn in {file}")
    content = {"step": step, **reported_metrics.to_json(results)}
    command_line.write_json(path, content)
    print(f"written to {path}")


def _output(workdir: str) -> pathlib.Path:
    """Return the path of the JSON file for the numbers."""
    return paths.path(flags.FLAGS.output or paths.path(workdir) / "evaluation.json")


def _write_predictions(predictions: Sequence[Mapping[str, Any]], name: str) -> None:
    """Write a line of JSON for each row, if `evaluate.predictions` names a file."""
    if not name:
        return
    path = paths.path(name)
    with command_line.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(map(command_line.as_standard_json, predictions)))


if __name__ == "__main__":
    main(SETTINGS)
