"""The tasks of data/harness_tasks: their rows, and what lm-eval measured on given texts."""

import itertools
import json
import pathlib
import sys
import types

import pytest
import yaml

from data.harness_tasks import generated_rows
from t5x_like.evaluation.generated_text import Generation

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "data" / "harness_tasks"
FROZEN = json.loads((ROOT / "tests" / "golden" / "harness_tasks.json").read_text())


class Given:
    """A text model that writes given texts, the first of each prompt without sampling."""

    samples = True

    def __init__(self, texts):
        self.texts = {prompt: itertools.cycle(own) for prompt, own in texts.items()}
        self.first = {prompt: own[0] for prompt, own in texts.items()}

    def greedy(self):
        return Given({prompt: [text] for prompt, text in self.first.items()})

    def tokens(self, text, *, end):
        return [*text]

    def generate(self, prompts):
        return [next(self.texts[prompt]) for prompt in prompts]


@pytest.fixture(autouse=True)
def data_sets(monkeypatch):
    """Puts a list in the place of `datasets.Dataset`, which comes with lm-eval."""
    module = types.ModuleType("datasets")
    module.Dataset = types.SimpleNamespace(from_list=list)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.chdir(ROOT)


def settings_of(task):
    """The settings of a YAML file, with those of the file that it includes."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    own = yaml.load((FOLDER / f"{task}.yaml").read_text(), Loader)
    included = own.pop("include", "").removesuffix(".yaml")
    return (settings_of(included) if included else {}) | own


def rows_of(task):
    settings = settings_of(task)
    assert (settings["task"], settings["custom_dataset"]) == (task, "generated_rows.splits")
    found = generated_rows.splits(**settings["dataset_kwargs"], config_source="as lm-eval adds")
    assert len(found[settings["fewshot_split"]]) == 1000
    return found[settings["test_split"]][: len(FROZEN[task]["texts"])]


@pytest.mark.parametrize("task", FROZEN)
def test_the_harness_asked_the_rows_of_the_corpus(task):
    asked = list(FROZEN[task]["texts"])
    assert [row["inputs"] for row in rows_of(task)] == asked
    assert len(asked) == 40


@pytest.mark.parametrize("task", ["sums_direct", "sums_with_steps"])
def test_the_final_answers_are_as_right_as_in_the_harness(task):
    frozen = FROZEN[task]
    kind = Generation(metrics=("final_answer",))
    found, _ = kind.measure(Given(frozen["texts"]), rows_of(task))
    assert found["final_answer"] == frozen["results"]["exact_match,final-answer"] == 0.6


def test_the_majority_is_as_right_as_in_the_harness():
    frozen = FROZEN["sums_self_consistency"]
    kind = Generation(metrics=("final_answer",), samples=8)
    found, _ = kind.measure(Given(frozen["texts"]), rows_of("sums_self_consistency"))
    assert found["majority_accuracy"] == frozen["results"]["exact_match,majority"] == 0.975
    assert found["greedy_accuracy"] == frozen["results"]["exact_match,first-sample"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "data/nowhere.py"}, "dataset_kwargs.module='data/nowhere.py' cannot be read"),
        ({"task": "with_step"}, "dataset_kwargs.task='with_step' does not exist. Did you mean"),
        ({"settings": {"step": 3}}, "dataset_kwargs.settings.step does not exist"),
        ({"settings": {"steps": 0}}, "steps=0 must be 1 or more"),
    ],
)
def test_a_mistake_in_a_task_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        generated_rows.splits(**settings_of("sums_with_steps")["dataset_kwargs"] | changes)
