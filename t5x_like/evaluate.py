r"""Evaluates a checkpoint on all evaluation tasks of a config.

    python -m t5x_like.evaluate --config=configs/t5.py:small --config.workdir=runs/small \
        --config.evaluate.batches=0 --checkpoint=runs/small/checkpoints/5000

Without --checkpoint it is the newest of the workdir. The metrics, and beside them the unigram
entropy of the targets, go to the terminal and as JSON to --output (by default
WORKDIR/evaluation.json). Question answering has also exact match and F1, as SQuAD measures them; a
language model (objective language_modeling) has bits per byte and the like of whole documents, as
many as `evaluate.batches` has rows; translation (objective translation) BLEU, of as many sources,
decoded as `decode` says. With --average=N the parameters are the mean of the newest N checkpoints.

With `score` in the config something else is measured in place of all that: the last word of texts,
one of several choices, prompts with examples (docs/evaluation.md). It reads runs, checkpoints and
folders of Hugging Face's:

    python -m t5x_like.evaluate --config=configs/pretrained.py:last_word \
        --config.initialize=FOLDER --config.data.settings.files=lambada.jsonl
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment import command_line

    CONFIG = command_line.read(
        __doc__,
        checkpoint=(None, "a checkpoint, or a folder of them"),
        output=(None, "JSON file for the metrics; WORKDIR/evaluation.json by default"),
        average=(1, "newest checkpoints to average"),
    )

import itertools
import json
import pathlib
from collections.abc import Mapping

import jax
import ml_collections
from absl import flags
from jaxtyping import PyTree

from t5x_like import checkpoints, config, partitioning
from t5x_like.config import one_line_errors
from t5x_like.decoding.spans import Answer
from t5x_like.evaluation import question_answering, scoring
from t5x_like.evaluation.documents import Documents
from t5x_like.evaluation.translation import Translation
from t5x_like.experiment import completion, data_side, model_side
from t5x_like.experiment.data_side import Inputs
from t5x_like.experiment.model_side import Experiment
from t5x_like.experiment.tasks import run_tasks
from t5x_like.hf import folder as files
from t5x_like.inference import predictions, text_model
from t5x_like.inference.encoder_predictions import Answers
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.training import metrics


def evaluate(settings: ml_collections.ConfigDict) -> None:
    """Measures a checkpoint's parameters and writes the metrics."""
    partitioning.connect_processes()
    with one_line_errors():
        settings = completion.complete(settings)
        path = completion.model_folder(settings, checkpoint=flags.FLAGS.checkpoint)
    if settings.get("score"):
        _score(path, settings)
    else:
        _evaluate(path, settings)


def _score(path: pathlib.Path, settings: ml_collections.ConfigDict) -> None:
    with one_line_errors():
        model = settings.model.to_dict()
        pretrained = from_pretrained(
            path,
            mesh=partitioning.make_mesh(settings.mesh.to_dict()),
            param_dtype="float32",
            average=flags.FLAGS.average,
            **model,
        )
        step = 0 if files.is_hugging_face(path) else checkpoints.read_metadata(path)["step"]
        _write(scoring.measure(pretrained, settings), step, settings)


def _evaluate(path: pathlib.Path, settings: ml_collections.ConfigDict) -> None:
    with one_line_errors():
        models = model_side.build_tasks(settings)
        first = next(iter(models.values()))
        params, step = checkpoints.restore_params(
            path, first.abstract_state.params, average=flags.FLAGS.average
        )
        phase = config.phase_at(settings, step=step)
        data = {
            task.name: data_side.build(task.settings, first.mesh)
            for task in run_tasks(phase.settings)
        }
    results: dict[str, dict[str, float]] = {}
    with partitioning.layout(first.mesh):
        for name, model in models.items():
            prefix = f"{name}/" if name else ""
            for task in data[name].eval_tasks:
                results[prefix + task] = _measure_task(model, params, data[name], task)
    _write(results, step, settings)


def _measure_task(model: Experiment, params: PyTree, data: Inputs, task: str) -> dict[str, float]:
    """All metrics of one evaluation task."""
    settings = data.config
    counts = data_side.target_counts(data.eval_batches(task), size=settings.model.vocab_size)
    found, _ = metrics.split(model.measure(params, data.eval_batches(task)))
    if counts.any():
        found["unigram_entropy"] = data_side.unigram_entropy(counts)
    if settings.model.get("head") == "question_answering":
        found |= measure_answers(model, params, data, task)
    if settings.data.objective == "language_modeling":
        found |= measure_texts(Documents(), model, params, data, task)
    if settings.data.objective == "translation" and _is_alone("BLEU"):
        found |= measure_texts(Translation(), model, params, data, task)
    return found


def measure_answers(model: Experiment, params: PyTree, data: Inputs, task: str) -> dict[str, float]:
    """Exact match and F1 of whole questions, see `question_answering.measure`.

    Call it on all processes, within the layout.
    """
    settings = data.config
    pretrained = _pretrained(model, params, settings)
    predict = predictions.build(pretrained, settings, data.text)
    assert isinstance(predict.prediction, Answers)  # for the type checker
    number = settings.evaluate.batches * settings.data.batch_size or None
    rows = list(itertools.islice(data.held_out_rows(task), number))
    said = predict([{k: row[k].decode() for k in ("question", "context")} for row in rows])
    answers = [Answer(one["answer"], one["null_margin"]) for one in said]
    references = [[answer.decode() for answer in row["answers"]] for row in rows]
    return question_answering.measure(answers, references, threshold=predict.prediction.threshold)


def _pretrained(
    model: Experiment, params: PyTree, settings: ml_collections.ConfigDict
) -> Pretrained:
    return Pretrained(
        model.module,
        params,
        system=settings.system,
        config=settings.model.to_dict(),
        mesh=model.mesh,
    )


def measure_texts(
    kind: Documents | Translation, model: Experiment, params: PyTree, data: Inputs, task: str
) -> dict[str, float]:
    """What `kind` measures of the held-out texts of a task as its source has them.

    Call it on all processes. What is of a token of a document is so of the same tokens as the loss
    is, but each document is read from its own beginning.
    """
    settings = data.config
    pretrained = _pretrained(model, params, settings)
    cleaned = isinstance(kind, Documents)  # as the model has read them; references as they stand
    rows = scoring.text_rows(task, split="validation", cleaned=cleaned)
    some = list(itertools.islice(rows, scoring.limit(settings)))
    found, _ = kind.measure(text_model.build(pretrained, settings, data.text), some)
    name = type(kind).__name__.lower()
    return {f"{name}/{key}": value for key, value in found.items()}


def _is_alone(measure: str) -> bool:
    """Whether there is one process; else it says that a measure, which needs that, is left out."""
    alone = jax.process_count() == 1
    if not alone and jax.process_index() == 0:
        print(f"{measure} is left out: what is written is measured by one process alone")
    return alone


def _write(
    results: Mapping[str, Mapping[str, float]], step: int, settings: ml_collections.ConfigDict
) -> None:
    if jax.process_index() != 0:
        return
    path = pathlib.Path(flags.FLAGS.output or pathlib.Path(settings.workdir) / "evaluation.json")
    for task, values in results.items():
        print(f"{task} at step {step}:")
        for name, value in values.items():
            print(f"  {name:28} {value:.4f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": step, "tasks": results}, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    evaluate(CONFIG)
