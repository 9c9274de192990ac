"""Write predictions for hidden test sets as the files that a benchmark's server accepts."""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like.batches import data_modules
from t5x_like.evaluation.metrics.groups import same_noun
from t5x_like.experiment import command_line
from t5x_like.experiment.run import Part, Run
from t5x_like.inference import predictions, text_model
from t5x_like.names import choose
from t5x_like.pretrained import Pretrained

_REFERENT = ("referent", "referent_name")


@dataclasses.dataclass(frozen=True)
class HiddenTest:
    """The hidden test rows of a task, and the file for their predictions.

    Attributes:
        part: the task of the run.
        submission, labels, rows: see `benchmark_tasks.suite.Suite.hidden_test`.
    """

    part: Part
    submission: Any
    labels: Sequence[str]
    rows: Sequence[Mapping[str, Any]]

    def predict(self, pretrained: Pretrained) -> list[dict[str, Any]]:
        """Return the model's generated text, or its head's prediction, for each row."""
        model = pretrained.for_task(self.part.name)
        with model.layout():
            if predictions.name_of(model) != predictions.TEXT:
                return predictions.build(model, self.part)(self.rows)
            texts = text_model.build(model, self.part)
            generated = texts.generate([row["inputs"] for row in self.rows])
        return [{"prediction": text} for text in generated]


def hidden_tests(run: Run) -> list[HiddenTest]:
    """Return the hidden test sets of all tasks that a config evaluates on.

    Raises:
        ValueError: the data module or a task has no hidden test set, or its file is missing or
            invalid.
    """
    tests = []
    for part in run.parts:
        data = part.data
        find = getattr(data_modules.load(data.module), "hidden_test", None)
        if find is None:
            raise ValueError(f"--submission: data.module={data.module!r} has no hidden test sets")
        choices = data.objective_settings.get("choices", 0)
        for task in part.evaluated.values():
            hidden = find(data.objective, task=task, choices=choices, **data.settings)
            tests.append(HiddenTest(part, *hidden))
    return tests


def official(
    form: str,
    predicted: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
) -> tuple[list[Any], int]:
    """Return predictions in a server's format, and how many texts were not one of the labels.

    A text that is not a label counts as the first label, since every row needs a prediction.

    Args:
        form: see `preprocessing.benchmark_tasks.submission.Submission`.
        predicted: results with `prediction`, a text or a label, and for choices `answer`.
        rows: the rows; their `targets` are read for generated referents.
        labels: the labels, in the order of their ids.
    """
    write = choose("form of a submission", form, _FORMS)
    converted, unknown = [], 0
    for prediction, row in zip(predicted, rows, strict=True):
        text = prediction["prediction"]
        if form in _REFERENT and "targets" in row:
            number = int(same_noun(text, row["targets"]))
        elif form in ("text", "value"):
            converted.append(write(text, 0, labels))
            continue
        elif "answer" in prediction:
            number = prediction["answer"]
        else:
            unknown += text.strip() not in labels
            number = labels.index(text.strip()) if text.strip() in labels else 0
        converted.append(write(text, number, labels))
    return converted, unknown


def _as_number(text: Any, number: int, labels: Sequence[str]) -> int:
    return number


def _as_name(text: Any, number: int, labels: Sequence[str]) -> str:
    return labels[number]


def _in_lower_case(text: Any, number: int, labels: Sequence[str]) -> str:
    return labels[number].lower()


def _as_text(text: Any, number: int, labels: Sequence[str]) -> str:
    return text.strip()


def _as_value(text: Any, number: int, labels: Sequence[str]) -> float:
    """Parse a number and clip it to [0, 5]; 0 if the text is not a number."""
    try:
        return round(min(5.0, max(0.0, float(text))), 3)
    except ValueError:
        return 0.0


_FORMS: dict[str, Callable[[Any, int, Sequence[str]], Any]] = {
    "number": _as_number,
    "name": _as_name,
    "lower": _in_lower_case,
    "text": _as_text,
    "value": _as_value,
    "referent": _as_number,
    "referent_name": _as_name,
}


def write(path: pathlib.Path, indices: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Write a TSV file with a header, or JSON Lines (MultiRC's nested by passage and question).

    Args:
        path: the file.
        indices: the indices of the rows; for MultiRC {"paragraph", "question", "answer"}.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".tsv":
        lines = [
            f"{index}\t{prediction}" for index, prediction in zip(indices, predictions, strict=True)
        ]
        path.write_text("\n".join(["index\tprediction", *lines]) + "\n")
        return
    pairs = list(zip(indices, predictions, strict=True))
    if isinstance(indices[0], Mapping):
        objects = _by_passage(pairs)
    else:
        objects = [{"idx": index, "label": prediction} for index, prediction in pairs]
    path.write_bytes(b"".join(map(command_line.as_standard_json, objects)))


def _by_passage(pairs: Sequence[tuple[Mapping[str, int], Any]]) -> list[dict[str, Any]]:
    passages: dict[int, dict[int, list[dict[str, Any]]]] = collections.defaultdict(dict)
    for index, label in pairs:
        answers = passages[index["paragraph"]].setdefault(index["question"], [])
        answers.append({"idx": index["answer"], "label": label})
    return [
        {
            "idx": passage,
            "passage": {
                "questions": [{"idx": n, "answers": answers} for n, answers in questions.items()]
            },
        }
        for passage, questions in passages.items()
    ]
