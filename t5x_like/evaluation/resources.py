"""The resources that measures need of a model and its data, made when first needed."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.batches.sharded_batches import Tasks
from t5x_like.evaluation.held_out import HeldOut
from t5x_like.evaluation.in_context import InContext
from t5x_like.evaluation.measure import Measure, Row, RowMeasure
from t5x_like.experiment import data_side
from t5x_like.experiment.data_side import TaskData
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Part
from t5x_like.inference import predictions, text_model
from t5x_like.inference.predictor import Predictor
from t5x_like.inference.text_model import TextModel
from t5x_like.pretrained import Pretrained

_FEW = 8  # rows on which a measure is checked before training


class MeasureResources:
    """The resources that a measure may name in its `needs`, one method for each.

    Each method takes the measure and the name of an evaluation task.

    Args:
        pretrained: the model.
        part: the task of the run, or of a phase.
        make: builds the model side of the run, {task: model}.

    The parameters of `pretrained` may be replaced between measures, without recompilation.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        part: Part,
        *,
        make: Callable[[], Mapping[str, TaskProgram]],
    ):
        self._pretrained, self._part, self._make = pretrained, part, make

    def of(self, measure: Measure, task: str) -> list[Any]:
        """Return the resources that a measure needs, in the order of its `needs`."""
        return [getattr(self, need)(measure, task) for need in measure.needs]

    def layout(self) -> contextlib.AbstractContextManager[None]:
        """Return the layout within which measures run."""
        return self._pretrained.layout()

    def held_out(self, measure: Measure, task: str) -> HeldOut:
        """Return the model with its loss, and the held-out batches of the task.

        Raises:
            ValueError: the data has the labels of the model's head in another order.
        """
        names = self._pretrained.head_labels.names
        if names and predictions.outputs_of(self._part.text.labels, self._pretrained):
            raise ValueError(
                f"the labels of the data are {', '.join(self._part.text.labels)}, and the model's "
                f"{', '.join(names)}: its held-out loss would compare other labels; set "
                "data.settings.labels to the model's order, or evaluate.measures without the loss"
            )
        return HeldOut(
            self._make()[self._part.name],
            self._pretrained.params,
            functools.partial(self._data.eval_batches, task),
            self._part.model["vocab_size"],
        )

    def text_model(self, measure: Measure, task: str) -> TextModel:
        """Return the model with its vocabulary, to score and generate texts."""
        return self._text_model

    def predictor(self, measure: Measure, task: str) -> Predictor:
        """Return the model as a predictor of its head's labels."""
        return self._predictor

    def rows(self, measure: RowMeasure, task: str) -> list[Row]:
        """Return the first rows of the task's source, in the split "validation".

        There are as many as in `evaluate.batches` batches, or all.

        Raises:
            ValueError: the split is empty.
        """
        return asked_rows(self._part.text.tasks(), self._part, task, cleaned=measure.cleaned)

    def examples(self, measure: InContext, task: str) -> list[Row]:
        """Return the first rows of the task's training split; [] for a measure without shots."""
        if not measure.most_shots:
            return []
        rows = self._part.text.tasks().rows(task, split="train", cleaned=measure.cleaned)
        return list(map(_plain, itertools.islice(rows, measure.pool)))

    @functools.cached_property
    def _data(self) -> TaskData:
        return data_side.build(self._part, self._make()[self._part.name].mesh)

    @functools.cached_property
    def _text_model(self) -> TextModel:
        return text_model.build(self._pretrained.policy(), self._part)

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return predictions.build(self._pretrained, self._part)


class DryRunResources(MeasureResources):
    """The resources with few rows and a model that computes nothing, to check a measure."""

    def text_model(self, measure: Measure, task: str) -> TextModel:
        """Return a model that only checks its prompts and settings."""
        return super().text_model(measure, task).dry()

    def rows(self, measure: RowMeasure, task: str) -> list[Row]:
        """Return the first few rows."""
        tasks = self._part.text.tasks()
        return asked_rows(tasks, self._part, task, cleaned=measure.cleaned, most=_FEW)

    def examples(self, measure: InContext, task: str) -> list[Row]:
        """Return as many rows as prompts need of the training split."""
        few = min(measure.pool, _FEW * (measure.most_shots + 1))
        return super().examples(dataclasses.replace(measure, pool=few), task)


def asked_rows(
    tasks: Tasks, part: Part, task: str, *, cleaned: bool, most: int | None = None
) -> list[Row]:
    """Return the first rows of a task, at most `most` if set (see `MeasureResources.rows`)."""
    number = most or part.evaluate.batches * part.data.batch_size or None
    rows = tasks.rows(task, split="validation", cleaned=cleaned)
    if not (plain_rows := list(map(_plain, itertools.islice(rows, number)))):
        raise ValueError(f"data.task={task!r} has no row in its split 'validation'")
    return plain_rows


def _plain(row: Row) -> Row:
    """Return a row of a source with bytes converted to strings and arrays to lists."""
    return {name: data_side.plain(value) for name, value in row.items()}
