"""PyGLUE: the same rows on every run, splits that share nothing, both forms, and baselines."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest
import seqio

from data import pyglue_baselines, pyglue_rows
from t5x_like import vocabularies
from t5x_like.evaluation.metrics import METRICS
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.reading import labelled_text
from tests.programs import in_process

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "sklearn")
pyglue = sources.load_module(str(ROOT / "data" / "pyglue.py"))
TASKS = pyglue.TASKS


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory):
    """The folder of the rows of two packages."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T5X_LIKE_CACHE", str(cache))
        yield pyglue_rows.folder(PACKAGES)


def rows(task, split, **settings):
    return pyglue_rows.rows(task, split, packages=PACKAGES, **settings)


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.json*"))}


@pytest.mark.slow
def test_the_rows_are_the_same_in_another_process(made, tmp_path):
    program = f"from data import pyglue_rows; print(pyglue_rows.folder({PACKAGES}))"
    environment = {"T5X_LIKE_CACHE": str(tmp_path), "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    again = Path(done.stdout.strip())
    assert again.name == made.name
    assert again != made
    assert files(again) == files(made)


def test_the_entries_do_not_depend_on_the_order_of_files():
    found = [
        ("numpy/a.py", [_entry("one", "It does the first thing."), _entry("two", "Another one.")]),
        ("numpy/b.py", [_entry("three", "It does the first thing.")]),
    ]
    forward = pyglue_rows._entries(found)
    backward = pyglue_rows._entries(found[::-1])
    assert [one.summary for one in forward] == [one.summary for one in backward]
    assert len(forward) == 2


def _entry(name, summary):
    fields = dict.fromkeys(("arguments", "parameters"), ())
    return {"name": name, "signature": f"{name}()", "summary": summary, "rest": "", **fields}


@pytest.mark.parametrize("task", TASKS)
def test_no_long_text_is_in_two_splits(task):
    texts = [
        {text for row in rows(task, split) for text in pyglue_rows._long_texts(row)}
        for split in pyglue_rows.SPLITS
    ]
    assert all(len(own) > 10 for own in texts)
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


def test_modules_of_one_name_are_in_one_split():
    names = [f"module_{number}" for number in range(2000)]
    shares = collections.Counter(pyglue_rows._split_of(name) for name in names)
    assert 250 < shares["test"] < 350
    assert 150 < shares["validation"] < 250
    entries = [
        pyglue_rows._tasks.Entry(package=package, module=f"{package}.{name}", **_entry("f", text))
        for package, name, text in (("a", "linalg", "It solves."), ("b", "linalg", "It inverts."))
    ]
    assert sorted(map(len, pyglue_rows._split(entries).values())) == [0, 0, 2]
    copied = pyglue_rows._split(
        [
            pyglue_rows._tasks.Entry(package="a", module=f"a.{name}", **_entry("f", "It solves."))
            for name in names[:100]
        ]
    )
    assert sum(map(bool, copied.values())) == 1


@pytest.mark.parametrize("task", [name for name, one in TASKS.items() if one.balanced])
@pytest.mark.parametrize("split", pyglue_rows.SPLITS)
def test_labels_are_equally_frequent(task, split):
    counts = collections.Counter(row[TASKS[task].balanced] for row in rows(task, split))
    assert len(counts) == (6 if task == "similarity" else 2)
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("task", [name for name, one in TASKS.items() if one.kind])
def test_labelled_rows_are_in_the_schema_of_labelled_files(task, made):
    names = {name: name for name in ("text_a", "label", "value", "choices", "answer")}
    names |= {name: name for name in ("question", "context", "answers")}
    path = made / "labelled" / f"{task}-test.jsonl"
    found = labelled_text.read(str(path), kind=TASKS[task].kind, names=names)
    assert len(found) == len(rows(task, "test"))
    if task in ("continuation", "ranking"):
        places = collections.Counter(row["answer"] for row in found)
        assert set(places) == set(range(4))
        assert all(len(set(row["choices"])) == 4 for row in found)


@pytest.mark.parametrize("task", TASKS)
def test_texts_have_a_prefix_and_the_targets_of_their_labels(task):
    labelled, text = rows(task, "test"), rows(task, "test", form="text")
    prefix = "summarize: " if task == "summary" else f"{task} "
    assert all(row["inputs"].startswith(prefix) for row in text)
    first = labelled[0]
    if task == "ranking":
        assert len(text) == 4 * len(labelled)
        own = [row for row in text if row["group"] == first["text_a"]]
        assert [row["targets"] for row in own[:4]].index("true") == first["answer"]
    else:
        assert len(text) == len(labelled)
        right = pyglue_baselines.target(first)
        wanted = f"choice{right + 1}" if task == "continuation" else str(right)
        assert text[0]["targets"] == wanted


def test_an_unacceptable_sentence_has_the_words_of_no_other_order():
    for row in rows("acceptability", "train")[:200]:
        words = row["text_a"].split()
        assert 8 <= len(words) <= 25
    text = "We add one word after the other until all is said."
    shuffled = pyglue_rows._tasks._shuffled(text)
    assert shuffled != text
    assert sorted(shuffled.split()) == sorted(text.split())
    assert (shuffled.split()[0], shuffled.split()[-1]) == ("We", "said.")


SOURCE = '''
def first(a, *, b=None, **more):
    """Return the sum of both of the arrays, whatever their shape is.

    Parameters
    ----------
    a : array_like, optional
        The array that is added to.

        More about it.
    b, c
        Some others.

    Returns
    -------
    out : ndarray
        The sum.
    """

class Second:
    """It does something."""

    def __init__(self, x=3):
        pass

    def method(self, x):
        """Do it with a number.

        Args:
          x (int): A number that
            is large.
          y: Another one.

        Returns:
          z: Nothing.
        """
'''


def test_parameters_of_both_styles_are_found(tmp_path):
    (tmp_path / "file.py").write_text(SOURCE)
    [found] = pyglue_rows._pydocs.run_worker("documented_code.py", [str(tmp_path / "file.py")])
    first, second, method = found
    assert first["signature"] == "first(a, b=None, **more)"
    assert first["parameters"] == [
        ["a", "array_like, optional", "The array that is added to. More about it."],
        ["b, c", "", "Some others."],
    ]
    assert first["summary"] == "Return the sum of both of the arrays, whatever their shape is."
    assert (second["name"], second["signature"]) == ("Second", "Second(x=3)")
    assert method["name"] == "Second.method"
    assert method["parameters"] == [
        ["x", "int", "A number that is large."],
        ["y", "", "Another one."],
    ]


# On these two packages, whose sets are small; docs/pyglue.md has all of them.
@pytest.mark.parametrize(
    ("task", "metric", "least", "baseline"),
    [
        ("acceptability", "matthews", 0.15, pyglue_baselines.RULES["acceptability"]),
        ("topic", "accuracy", 0.2, pyglue_baselines.bag_of_words),
        ("entailment", "accuracy", 0.15, pyglue_baselines.RULES["entailment"]),
        ("span", "exact_match", 0.5, pyglue_baselines.RULES["span"]),
        ("continuation", "rank_accuracy", 0.1, pyglue_baselines.RULES["continuation"]),
        ("ranking", "mean_reciprocal_rank", 0.15, pyglue_baselines.RULES["ranking"]),
        ("summary", "rouge_1", 0.05, pyglue_baselines.RULES["summary"]),
        ("summary", "rouge_1", 0.05, pyglue_baselines.bag_of_words),
    ],
)
def test_a_constant_solves_no_task_and_a_baseline_does_more(task, metric, least, baseline):
    constant, found = (
        pyglue_baselines.measure(task, one, packages=PACKAGES)[metric]
        for one in (pyglue_baselines.constant, baseline)
    )
    assert constant < 0.55
    assert found > constant + least


def test_similarity_follows_the_words():
    rule = pyglue_baselines.measure(
        "similarity", pyglue_baselines.RULES["similarity"], packages=PACKAGES
    )
    assert rule["pearson"] > 0.2


def test_every_metric_of_a_task_exists():
    for task in TASKS:
        for objective in ("text_to_text", "classification", "regression", "multiple_choice"):
            if task in pyglue.fitting(objective):
                own = pyglue.measure(objective, task=f"pyglue_{task}")
                assert set(own.get("metrics", ())) <= set(METRICS)
    assert pyglue.measure("prefix_lm", task="pyglue_text") == {"kind": "loss"}
    with pytest.raises(
        ValueError, match="tasks of the mixture 'pyglue' have measures of their own"
    ):
        pyglue.measure("text_to_text", task="pyglue")


def register(name):
    objective = seqio_objectives.build(name)
    pyglue.register(vocabularies.load("bytes"), objective, packages=PACKAGES)


def test_text_to_text_has_nine_tasks_and_their_mixture():
    register("text_to_text")
    mixture = seqio.MixtureRegistry.get("pyglue")
    assert {task.name for task in mixture.tasks} == {f"pyglue_{task}" for task in TASKS}
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert rates["pyglue_topic"] == len(rows("topic", "train"))
    test = seqio.TaskRegistry.get("pyglue_topic_test").source
    [first, *_] = test.get_dataset("validation", shuffle=False).as_numpy_iterator()
    assert first["inputs"].decode() == rows("topic", "test", form="text")[0]["inputs"]
    assert test.num_input_examples("validation") == len(rows("topic", "test"))


def test_an_objective_of_labels_has_the_tasks_of_its_kind():
    register("regression")
    source = seqio.TaskRegistry.get("pyglue_similarity").source
    [first, *_] = source.get_dataset("validation", shuffle=False).as_numpy_iterator()
    expected = rows("similarity", "validation")[0]
    assert first["text_b"].decode() == expected["text_b"]
    assert first["value"] == expected["value"]
    assert pyglue.labels("regression", task="pyglue_similarity", packages=PACKAGES) == ()
    assert pyglue.labels("prefix_lm", task="pyglue_text") == ()
    found = pyglue.labels("classification", task="pyglue_topic_test", packages=PACKAGES)
    assert found == PACKAGES


def test_a_task_of_another_kind_is_refused():
    with pytest.raises(
        ValueError, match=r"data.task for data.objective='regression'='pyglue_topic"
    ):
        pyglue.labels("regression", task="pyglue_topic")


def test_the_documents_are_those_of_training_and_fewer_on_request():
    texts = [row["text"] for row in pyglue.documents("train", packages=PACKAGES)]
    few = [row["text"] for row in pyglue.documents("train", packages=PACKAGES, share=0.1)]
    assert few == texts[: len(few)]
    assert len(few) == round(0.1 * len(texts))
    pretraining = "\n".join(bytes(text.numpy()).decode() for text in texts)
    # Single sentences do occur in both: "Training vectors, where n_samples is ...".
    test = rows("summary", "test")
    assert sum(row["inputs"] in pretraining for row in test) < 0.02 * len(test)
    with pytest.raises(ValueError, match=r"data.settings.share=0 must be above 0"):
        pyglue.documents("train", packages=PACKAGES, share=0)


def test_fewer_training_rows_on_request_are_at_equal_distances():
    objective = seqio_objectives.build("pair_classification")
    found = {}
    for share in (1.0, 0.25):
        pyglue.register(vocabularies.load("bytes"), objective, packages=PACKAGES, share=share)
        source = seqio.get_mixture_or_task("pyglue_paraphrase").source
        for split in ("train", "validation"):
            texts = source.get_dataset(split, shuffle=False).as_numpy_iterator()
            found[share, split] = [row["text_a"] for row in texts]
    every = found[1.0, "train"]
    rows = round(0.25 * len(every))
    assert found[0.25, "train"] == [every[row * len(every) // rows] for row in range(rows)]
    assert found[0.25, "validation"] == found[1.0, "validation"]
    assert pyglue.fitting("pair_classification") == ["paraphrase", "entailment"]
    with pytest.raises(ValueError, match=r"data.settings.share=2 must be above 0, and at most 1"):
        pyglue.register(vocabularies.load("bytes"), objective, packages=PACKAGES, share=2)


def test_the_command_prints_a_table(monkeypatch, made):
    monkeypatch.setattr(pyglue_rows, "folder", lambda packages=None: made)
    pyglue_baselines.main(["--tasks=summary"])
    done = in_process.run("data.pyglue_baselines", "--tasks=sumary")
    assert done.status == 2
    assert "Did you mean 'summary'" in done.err


def test_sizes_are_those_of_the_files(made):
    sizes = json.loads((made / pyglue_rows.SIZES).read_text())
    for task in TASKS:
        assert sizes[f"text/{task}-train.jsonl"] == len(rows(task, "train", form="text"))
