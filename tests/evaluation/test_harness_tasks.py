"""The tasks of data/harness_tasks: their rows, and what lm-eval measured on given texts."""

import itertools
import json
import pathlib
import sys
import types

import pytest
import yaml

from configs import pretrained
from data import gpt3_arithmetic, word_scrambles
from data.harness_tasks import generated_rows
from t5x_like.evaluation.generated_text import Generation
from t5x_like.evaluation.in_context import InContext

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "data" / "harness_tasks"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "harness_tasks.json").read_text())
FROZEN = GOLDEN["tasks"]
SUMS = ("sums_direct", "sums_with_steps", "sums_self_consistency")
# {tag of lm-eval: (the kind of configs/pretrained.py, its tasks here)}
PROMPTED = {
    "gpt3_arithmetic": ("arithmetic", gpt3_arithmetic.TASKS),
    "gpt3_scrambles": ("scrambles", word_scrambles.TASKS),
}


class Scored:
    """A text model with given log-likelihoods of continuations, which begin with a space."""

    length = 100

    def __init__(self, scores):
        self.scores = scores

    def excess(self, prompt, answer):
        return 0

    def score(self, pairs):
        known = (self.scores.get(prompt.removesuffix(" "), {}) for prompt, _ in pairs)
        totals = [own.get(f" {choice}", 0.0) for own, (_, choice) in zip(known, pairs, strict=True)]
        return [types.SimpleNamespace(total=one, per_token=one) for one in totals]


class Given:
    """A text model that writes given texts, the first of each prompt without sampling."""

    samples = True
    length = 100

    def __init__(self, texts):
        self.texts = {prompt: itertools.cycle(own) for prompt, own in texts.items()}
        self.first = {prompt: own[0] for prompt, own in texts.items()}

    def greedy(self):
        return Given({prompt: [text] for prompt, text in self.first.items()})

    def tokens(self, text, *, end):
        return [*text]

    def excess(self, prompt, answer):
        return 0

    def generate(self, prompts):
        return [next(self.texts[prompt]) for prompt in prompts]


@pytest.fixture(autouse=True)
def data_sets(monkeypatch, tmp_path):
    """Puts a list in the place of `datasets.Dataset`, which comes with lm-eval.

    The words of the scrambles are where the command runs, beside the modules.
    """
    module = types.ModuleType("datasets")
    module.Dataset = types.SimpleNamespace(from_list=list)
    monkeypatch.setitem(sys.modules, "datasets", module)
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "count_1w.txt").write_text(GOLDEN["words"].replace(" ", "\n"))
    monkeypatch.chdir(tmp_path)


def settings_of(task):
    """The settings of a YAML file, with those of the file that it includes."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    own = yaml.load((FOLDER / f"{task}.yaml").read_text(), Loader)
    included = own.pop("include", "").removesuffix(".yaml")
    return (settings_of(included) if included else {}) | own


def splits_of(task):
    settings = settings_of(task)
    assert (settings["task"], settings["custom_dataset"]) == (task, "generated_rows.splits")
    found = generated_rows.splits(**settings["dataset_kwargs"], config_source="as lm-eval adds")
    return found[settings["fewshot_split"]], found[settings["test_split"]]


def rows_of(task):
    return splits_of(task)[1][: len(FROZEN[task]["scores" if task == "analogies" else "texts"])]


@pytest.mark.parametrize("task", SUMS)
def test_the_harness_asked_the_rows_of_the_corpus(task):
    asked = list(FROZEN[task]["texts"])
    assert [row["inputs"] for row in rows_of(task)] == asked
    assert len(asked) == 40
    assert len(splits_of(task)[0]) == 1000


def test_every_task_was_loaded_by_the_harness_under_its_name():
    files = {path.stem: settings_of(path.stem) for path in FOLDER.glob("*.yaml")}
    assert {name: own["task"] for name, own in files.items()} == {name: name for name in FROZEN}
    for tag, (_, tasks) in PROMPTED.items():
        assert {name for name, own in files.items() if own.get("tag") == tag} == {
            f"gpt3_{task}" for task in tasks
        }
        for task in tasks:
            assert files[f"gpt3_{task}"]["dataset_kwargs"]["task"] == task


def measure_of(kind, **changes):
    settings = dict(pretrained.get_config(kind).evaluate.measures[kind])
    settings.pop("kind")
    return InContext(**settings | changes)


def examples_in(prompt, kind, examples):
    """The examples that a prompt shows, in its order."""
    texts = {kind.template.format(**row): row for row in examples}
    found = {prompt.index(text): row for text, row in texts.items() if f"{text}\n" in prompt}
    return [found[place] for place in sorted(found)]


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *((kind, f"gpt3_{task}") for kind, tasks in PROMPTED.values() for task in tasks),
        ("analogies", "analogies"),
    ],
)
def test_prompts_and_accuracy_are_the_ones_of_in_context(kind, task):
    """In the harness the space after a prompt is a part of what the model writes."""
    frozen, rows = FROZEN[task], rows_of(task)
    own = measure_of(kind, shots=0)
    assert settings_of(task)["num_fewshot"] == measure_of(kind).shots
    prompts = [own.prompt(row, []) for row in rows]
    answers = frozen["scores" if kind == "analogies" else "texts"]
    assert [prompt.removesuffix(" ") for prompt in prompts] == list(answers)
    shown = examples_in(frozen["prompt"], own, splits_of(task)[0])
    assert len(shown) == 2
    assert own.prompt(rows[0], shown).removesuffix(" ") == frozen["prompt"]

    [(name, accuracy)] = frozen["results"].items()
    assert name == ("acc,none" if kind == "analogies" else "exact_match,answer")
    texts = {f"{prompt} ": own for prompt, own in frozen["texts"].items()}
    model = Scored(frozen["scores"]) if kind == "analogies" else Given(texts)
    assert own.measure(model, rows, [])[0]["accuracy"] == accuracy
    assert 0 < accuracy < 1


@pytest.mark.parametrize("task", ["sums_chain_of_thought", "sums_standard_prompting"])
def test_eight_examples_show_their_steps_or_only_their_answers(task):
    frozen = FROZEN[task]
    examples, rows = splits_of(task)
    assert (settings_of(task)["num_fewshot"], settings_of(task)["tag"]) == (8, "prompted_sums")
    own = InContext(template="{inputs} {targets}", separator="\n")
    shown = examples_in(frozen["prompt"], own, examples)
    assert len(shown) == 2
    assert own.prompt(rows[0], shown).removesuffix(" ") == frozen["prompt"]
    assert all((" so " in row["targets"]) == (task == "sums_chain_of_thought") for row in shown)


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
