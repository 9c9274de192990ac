"""The measures by name, and the default measures if `evaluate.measures` is empty.

| kind | needs | paper |
|---|---|---|
| loss | held-out batches | |
| documents | rows with text | Radford et al. 2019, section 3.1 |
| last_word | rows with text | LAMBADA: the same, section 3.3 |
| choice | rows with inputs with a blank, choices, targets | Children's Book Test: section 3.2 |
| in_context | rows with inputs, targets, by likelihood choices | Brown et al. 2020, section 2 |
| generation | rows with inputs, targets or answers | Raffel et al. 2020, section 2.3 |
| predictions | rows with labels | Devlin et al. 2019, section 4 |
| translation | rows with inputs, targets | Vaswani et al. 2017, section 6.1 |
| squad | rows with question, context, answers | Rajpurkar et al. 2016, section 6.1 |
| rewards | held-out batches of comparisons, a reward model | Ouyang et al. 2022, section 3.5 |
| toxicity | rows with inputs, a classifier | Gehman et al. 2020, section 3.1 |
| replies | rows with context, phrases of labels | Thoppilan et al. 2022, section 4 |
| benchmark | as the data module's measure for a task | |

Rows come from `data.task` (or `evaluate.tasks`), as in `data.module`, before any objective.
"""

from collections.abc import Mapping
from typing import Any

from t5x_like.batches import data_modules
from t5x_like.evaluation.cloze import ClozeChoice, LastWord
from t5x_like.evaluation.dialog_replies import Replies
from t5x_like.evaluation.documents import Documents
from t5x_like.evaluation.generated_text import Generation, Translation
from t5x_like.evaluation.head_predictions import HeadPredictions, Squad
from t5x_like.evaluation.held_out import HeldOutLoss, Rewards
from t5x_like.evaluation.in_context import InContext
from t5x_like.evaluation.measure import Measure
from t5x_like.evaluation.toxicity import Toxicity
from t5x_like.experiment.run import Part
from t5x_like.inference import predictions
from t5x_like.names import check_settings, choose
from t5x_like.systems.system import Task

MEASURES: dict[str, type[Measure]] = {
    "loss": HeldOutLoss,
    "documents": Documents,
    "last_word": LastWord,
    "choice": ClozeChoice,
    "in_context": InContext,
    "translation": Translation,
    "squad": Squad,
    "generation": Generation,
    "predictions": HeadPredictions,
    "rewards": Rewards,
    "replies": Replies,
    "toxicity": Toxicity,
}

# Default measures of a task that generates text, besides the loss and the measures it declares
# (`systems.system.Task.measures`).
OF_OBJECTIVES: dict[str, dict[str, dict[str, Any]]] = {
    "language_modeling": {"documents": {"cleaned": True}},
    "translation": {"translation": {}},
    "text_to_text": {"generation": {}},
    "marked_text_to_text": {"generation": {}},
    "masked_targets": {"generation": {}},
}


# The kind that selects the data module's measure for a task (data/glue.py).
BENCHMARK = "benchmark"


def default_settings(task: Task, *, objective: str) -> dict[str, dict[str, Any]]:
    """Return the `evaluate.measures` of a run whose config sets none."""
    chosen: dict[str, dict[str, Any]] = {name: {} for name in ("loss", *task.measures)}
    if task.prediction != predictions.TEXT:
        return chosen
    return chosen | OF_OBJECTIVES.get(objective, {})


def of_part(part: Part, *, data_task: str) -> dict[str, Measure]:
    """Return the measures of a run's task by name, from its settings or by default.

    Args:
        part: the task of the run.
        data_task: the data task to evaluate on, whose measure in the data module replaces
            `benchmark`.

    Raises:
        ValueError: the data module has no measure for its tasks; see also `make`.
    """
    data, chosen = part.data, dict(part.evaluate.measures)
    of_benchmark = getattr(data_modules.load(data.module), "measure", None)
    if not chosen and of_benchmark:
        chosen = {name: {} for name in ("loss", BENCHMARK)}
    elif not chosen:
        chosen = default_settings(part.task, objective=data.objective)
    for name, settings in chosen.items():
        if not isinstance(settings, dict) or settings.get("kind", name) != BENCHMARK:
            continue
        if not of_benchmark:
            raise ValueError(
                f"evaluate.measures.{name}: data.module={data.module!r} has no measure "
                "for its tasks"
            )
        of_task = of_benchmark(data.objective, task=data_task, **data.settings)
        chosen[name] = {
            **of_task,
            **{key: value for key, value in settings.items() if key != "kind"},
        }
    return {name: make(name, settings, task=part.task) for name, settings in chosen.items()}


def make(name: str, settings: Mapping[str, Any], *, task: Task) -> Measure:
    """Make a measure of `evaluate.measures`.

    Args:
        name: its key there.
        settings: `kind`, a name in MEASURES, by default the name itself; and the kind's fields.
        task: the task of the model's head.

    Raises:
        ValueError: the kind or a setting does not exist, a value is invalid, or the measure does
            not fit the model's predictions.
    """
    kind = settings.get("kind", name)
    measure_class = choose(f"evaluate.measures.{name}.kind", kind, MEASURES)
    arguments = {key: value for key, value in settings.items() if key != "kind"}
    check_settings(f"evaluate.measures.{name}", measure_class, arguments)
    try:
        measure = measure_class(**arguments)
        measure.check(task.prediction)
    except ValueError as error:
        raise ValueError(f"evaluate.measures.{name}: {error}") from error
    return measure
