r"""Evaluates a checkpoint on all evaluation tasks of a config.

    python -m t5x_like.evaluate --config=configs/t5.py:small --config.workdir=runs/small \
        --config.evaluate.batches=0 --checkpoint=runs/small/checkpoints/5000

Without --checkpoint it is the newest of the workdir. The metrics, and beside them the unigram
entropy of the targets, go to the terminal and as JSON to --output (by default
WORKDIR/evaluation.json). Question answering has also exact match and F1, as SQuAD measures them.
"""

import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping

import jax
import ml_collections
import numpy as np
from absl import flags
from jaxtyping import PyTree

from t5x_like import (
    checkpoints,
    config,
    experiment,
    initialization,
    inputs,
    partitioning,
    predictions,
)
from t5x_like.config import one_line_errors
from t5x_like.evaluation import question_answering
from t5x_like.experiment import Experiment
from t5x_like.inputs import Inputs
from t5x_like.training import metrics


def evaluate(settings: ml_collections.ConfigDict) -> None:
    """Measures a checkpoint's parameters and writes the metrics."""
    partitioning.connect_processes()
    with one_line_errors():
        settings = initialization.complete(settings)
        workdir = pathlib.Path(settings.workdir)
        model = experiment.build(settings)
        path = flags.FLAGS.checkpoint or workdir / "checkpoints"
        params, step = checkpoints.restore_params(path, model.abstract_state.params)
        data = inputs.build(config.phase_at(settings, step=step).settings, model.mesh)
    results: dict[str, dict[str, float]] = {}
    size = settings.model.vocab_size
    with partitioning.layout(model.mesh):
        for task in data.eval_tasks:
            counts = inputs.target_counts(data.eval_batches(task), size=size)
            results[task] = measure(model, params, data.eval_batches(task))
            if counts.any():
                results[task]["unigram_entropy"] = inputs.unigram_entropy(counts)
            if settings.model.get("head") == "question_answering":
                results[task] |= measure_answers(model, params, data, task)
    if jax.process_index() == 0:
        _write(results, step, pathlib.Path(flags.FLAGS.output or workdir / "evaluation.json"))


def measure(
    model: Experiment, params: PyTree, batches: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, float]:
    """The metrics of some parameters, over all batches together; call it within the layout."""
    return metrics.compute(
        metrics.merge(model.eval_step(params, model.put(batch)) for batch in batches)
    )


def measure_answers(model: Experiment, params: PyTree, data: Inputs, task: str) -> dict[str, float]:
    """Exact match and F1 of whole questions, see `question_answering.measure`.

    Call it on all processes, within the layout.
    """
    settings = data.config
    head = predictions.make_head(
        settings.model.head,
        vocabulary=data.vocabulary,
        labels=(),
        length=settings.data.lengths.inputs,
        settings={**settings.data.objective_settings.to_dict(), **settings.predict.to_dict()},
    )
    assert isinstance(head, predictions.Answers)  # for the type checker
    predict = predictions.Predictor(
        model.module,
        params,
        head,
        length=settings.data.lengths.inputs,
        batch_size=settings.data.batch_size,
        put=lambda batch: model.put(data.part(batch)),
    )
    number = settings.evaluate.batches * settings.data.batch_size or None
    rows = list(itertools.islice(data.held_out_rows(task), number))
    said = predict([{k: row[k].decode() for k in ("question", "context")} for row in rows])
    answers = [question_answering.Answer(one["answer"], one["null_margin"]) for one in said]
    references = [[answer.decode() for answer in row["answers"]] for row in rows]
    return question_answering.measure(answers, references, threshold=head.threshold)


def _write(results: Mapping[str, Mapping[str, float]], step: int, path: pathlib.Path) -> None:
    for task, values in results.items():
        print(f"{task} at step {step}:")
        for name, value in values.items():
            print(f"  {name:20} {value:.4f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": step, "tasks": results}, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "a checkpoint, or a folder of them")
    flags.DEFINE_string("output", None, "JSON file for the metrics")
    config.run(evaluate)
