"""Benchmarks from folders and from prepared data: both forms, measures, mixtures, bad input."""

import json
import re

import numpy as np
import pytest
import seqio

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.evaluation.generated_text import Generation
from t5x_like.evaluation.head_predictions import HeadPredictions, Squad
from t5x_like.evaluation.metrics import METRICS
from t5x_like.inference.decoder_predictions import Choices
from t5x_like.inference.document_answers import SupportingFacts
from t5x_like.inference.encoder_predictions import AnswerPrediction, Classes, Number
from t5x_like.preprocessing import mixtures, seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from tests.programs import benchmark_rows
from tests.programs.benchmark_tasks import CHANGED, DATA, MODULES, SUITE_OF, TASKS, benchmark, rows
from tests.programs.tiny_encoder import SPECIAL_TOKENS


class Oracle:
    """A text model that generates the first target of each prompt, or another text."""

    def __init__(self, texts):
        self.texts = texts

    def tokens(self, text, *, end):
        return [text]

    def generate(self, prompts):
        return [self.texts[prompt] for prompt in prompts]


def measured(numbers):
    """The numbers that depend on the predictions: not what a constant or a random choice has."""
    of_data = ("examples", "constant_", "chance_")
    return {name: value for name, value in numbers.items() if not name.startswith(of_data)}


@pytest.mark.parametrize(("suite", "task"), TASKS)
def test_the_measure_of_a_task_is_best_for_the_right_texts(suite, task, folders):
    found = rows(suite, task, folders)
    own = MODULES[suite].measure("text_to_text", task=task)
    assert own.pop("kind") == "generation"
    right = {row["inputs"]: row["targets"] for row in found}
    if "referent" in own["metrics"]:  # where the noun is not the referent, another is right
        right = {
            row["inputs"]: row["targets"] if row["group"] == "True" else "nobody" for row in found
        }
    numbers, _ = Generation(**own).measure(Oracle(right), found)
    best = measured(numbers)
    assert best
    assert list(best.values()) == pytest.approx([100.0 if n == "bleu" else 1.0 for n in best])
    if "pearson" not in own["metrics"]:
        wrong = Generation(**own).measure(Oracle(dict.fromkeys(right, "zzz")), found)[0]
        assert all(wrong[name] < best[name] for name in best)


@pytest.mark.parametrize(("suite", "task"), TASKS)
def test_both_splits_are_rows_with_the_same_fields(suite, task, folders):
    splits = {split: rows(suite, task, folders, split=split) for split in splits_of(suite, task)}
    fields = {frozenset(row) for own in splits.values() for row in own}
    assert len(fields) == 1
    assert all(row["inputs"] and row["targets"] for own in splits.values() for row in own)
    for row in (row for own in splits.values() for row in own if "choices" in row):
        assert row["targets"] in row["choices"]


def splits_of(suite, task):
    return benchmark(suite, task).splits


LABELLED = [
    (suite, task)
    for suite, task in TASKS
    if benchmark(suite, task).kind and not task.endswith("_test")
]
FITS = {
    "classification": "class",
    "regression": "number",
    "multiple_choice": "choice",
    "supporting_facts": "facts",
    "long_answers": "spans",
}


@pytest.mark.parametrize(("suite", "task"), LABELLED)
def test_the_labelled_form_has_the_fields_of_its_objective(suite, task, folders):
    kind = benchmark(suite, task).kind
    found = rows(suite, task, folders, objective=kind)
    assert len(found) == (5 if suite in CHANGED else 20)
    labels = MODULES[suite].labels(kind, task=task)
    assert bool(labels) == (kind == "classification")
    assert all(row["label"] in range(len(labels)) for row in found if labels)
    own = MODULES[suite].measure(kind, task=task)
    assert own["kind"] == ("squad" if kind == "question_answering" else "predictions")
    assert all(FITS[kind] in METRICS[name].fits for name in own.get("metrics", ()))


@pytest.mark.parametrize(
    ("suite", "task", "feature"),
    [
        ("glue", "glue_mrpc", "label"),
        ("glue", "glue_stsb", "value"),
        ("squad", "squad_v2", "answer"),
        ("commonsense", "arc_easy", "label"),
    ],
)
def test_the_labelled_form_makes_batches_for_an_encoder(suite, task, feature, folders, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "otter", "heron", "the", "a", "?", "."]) + "\n")
    objective = seqio_objectives.build(benchmark(suite, task).kind)
    MODULES[suite].register(vocabularies.load(path), objective, folder=folders[suite])
    rows_converter = "encoder_rows" if suite == "commonsense" else "encoder"
    batch = next(
        SeqioBatches(
            task,
            split="validation",
            batch_size=5,
            lengths={"inputs": 200},
            converter=converters.build(rows_converter, **objective.converter_settings),
            shuffle=False,
            repeat=False,
        )
    )
    assert batch[feature].shape[0] == 5
    assert np.ptp(batch[feature]) > 0


class Head:
    """A predictor of a head that predicts what is given for each row."""

    def __init__(self, kind, predicted, labels):
        self.prediction = object.__new__(kind)  # without a vocabulary, which nothing here needs
        object.__setattr__(self.prediction, "labels", labels)
        self.predicted = predicted

    def __call__(self, items):
        return [{"prediction": one, "answer": one} for one in self.predicted]


HEADS = {
    "classification": (Classes, "label"),
    "regression": (Number, "value"),
    "multiple_choice": (Choices, "answer"),
}


@pytest.mark.parametrize(
    ("suite", "task"), [one for one in LABELLED if benchmark(*one).kind in HEADS]
)
def test_the_measure_of_a_head_is_best_for_the_right_labels(suite, task, folders):
    kind = benchmark(suite, task).kind
    found = rows(suite, task, folders, objective=kind)
    names = MODULES[suite].labels(kind, task=task)
    head, field = HEADS[kind]
    right = [names[row[field]] if names else row[field] for row in found]
    own = MODULES[suite].measure(kind, task=task)
    assert own.pop("kind") == "predictions"
    numbers, _ = HeadPredictions(**own).measure(Head(head, right, names), found)
    assert {round(value, 6) for value in measured(numbers).values()} == {1.0}
    wrong, _ = HeadPredictions(**own).measure(Head(head, right[::-1], names), found)
    assert all(wrong[name] < 1 for name in measured(numbers))


class Reader:
    """A predictor that gives the answers of a list, or none where the list has none and it may."""

    def __init__(self, answers, *, no_answer=True):
        self.prediction = object.__new__(AnswerPrediction)
        object.__setattr__(self.prediction, "no_answer", no_answer)
        self.predicted = [
            {"answer": text or "zzz", "null_margin": -1.0 if text else 1.0} for text in answers
        ]

    def __call__(self, items):
        assert all(item["question"] and item["context"] for item in items)
        return self.predicted


@pytest.mark.parametrize("task", ["squad", "squad_v2"])
def test_the_measure_of_spans_is_best_for_the_right_answers(task, folders):
    found = rows("squad", task, folders, objective="question_answering")
    assert MODULES["squad"].measure("question_answering", task=task) == {"kind": "squad"}
    right = [row["answers"][-1] if row["answers"] else "" for row in found]
    numbers, _ = Squad().measure(Reader(right), found)
    assert (numbers["exact_match"], numbers["f1"]) == (1.0, 1.0)
    assert numbers.get("best_f1", 1.0) == 1.0
    # The animals are in another order, and in SQuAD 2.0 each second question has no answer.
    wrong, _ = Squad().measure(Reader(right[::-1]), found)
    assert wrong["exact_match"] < 0.5
    always, _ = Squad().measure(Reader(right, no_answer=False), found)
    assert always["exact_match"] == (0.5 if task == "squad_v2" else 1.0)


def test_the_rows_of_hotpot_qa_have_paragraphs_and_facts_for_its_measure(folders):
    found = rows("reading_qa", "hotpot_qa", folders, objective="supporting_facts")
    raw = benchmark_rows.hotpot_qa(benchmark_rows.ROWS)  # the first of the second split
    titles, facts = raw["context"]["title"], raw["supporting_facts"]
    assert found[0] == {
        "question": raw["question"],
        "context": [
            f"{titles[0]}\n{raw['context']['sentences'][0][0]}\nIt rained.",
            f"{titles[1]}\n{raw['context']['sentences'][1][0]}",
        ],
        "answer": raw["answer"],
        "fact_titles": facts["title"],
        "fact_numbers": facts["sent_id"],
    }
    own = MODULES["reading_qa"].measure("supporting_facts", task="hotpot_qa")
    assert own == {"kind": "predictions", "metrics": ("supporting_facts",)}
    right = [{"prediction": row["answer"], "facts": facts_of(row)} for row in found]
    numbers, _ = HeadPredictions(metrics=own["metrics"]).measure(Evidence(right), found)
    assert set(measured(numbers).values()) == {1.0}
    wrong, _ = HeadPredictions(metrics=own["metrics"]).measure(Evidence(right[::-1]), found)
    assert all(wrong[name] < 1 for name in measured(numbers))


def facts_of(row):
    return [*map(list, zip(row["fact_titles"], row["fact_numbers"], strict=True))]


class Evidence:
    """A predictor of answers with facts that are given for each row."""

    def __init__(self, predicted):
        self.prediction = object.__new__(SupportingFacts)
        object.__setattr__(self.prediction, "labels", ())
        self.predicted = predicted

    def __call__(self, items):
        assert all(item.keys() == {"question", "context"} for item in items)
        return self.predicted


def test_labelled_rows_have_numbers_of_labels_and_places_of_answers(folders):
    [first, second, *_] = rows("glue", "glue_sst2", folders, objective="classification")
    assert (first["label"], second["label"]) == (0, 1)
    assert second["text_a"] == "a bright and funny film about a heron "
    row = rows("super_glue", "super_glue_wsc", folders, objective="classification")[0]
    assert (row["text_a"].count("*she*"), row["text_b"], row["label"]) == (1, "Osei", 1)
    row = rows("super_glue", "super_glue_record", folders, objective="multiple_choice")[1]
    assert row["choices"][row["answer"]] == "Osei met Lin in the orchard"
    assert len(row["choices"]) == 2  # Tomas is right too, and no wrong choice
    row = rows("squad", "squad", folders, objective="question_answering")[0]
    start = row["answer_start"]
    assert row["context"][start : start + len(row["answer_text"])] == row["answers"][0]
    row = rows("race", "race_high", folders, objective="multiple_choice")[1]
    assert row["choices"][row["answer"]] == "A heron"
    row = rows("commonsense", "winogrande", folders, objective="multiple_choice")[1]
    assert row["text_a"].endswith("because")
    assert row["choices"][row["answer"]].endswith(" was missed.")


def test_the_mixture_follows_the_examples_and_its_settings(folders):
    rows("glue", "glue_cola", folders)
    found = seqio.get_mixture_or_task("glue")
    assert {task.name for task in found.tasks} == {f"glue_{task}" for task in MODULES["glue"].MIXED}
    assert mixtures.shares(found, split="train")["glue_mnli"] == pytest.approx(1 / 8)
    rows("super_glue", "super_glue_wsc", folders, splits={"train": "train[:10]"})
    own = mixtures.shares(seqio.get_mixture_or_task("super_glue"), split="train")
    # Half of WSC's rows are trained on; each right entity of ReCoRD is an example.
    assert own["super_glue_wsc"] * 10 == pytest.approx(own["super_glue_cb"] * 5)
    assert own["super_glue_record"] * 10 == pytest.approx(own["super_glue_cb"] * 15)
    limit = {"rate_settings": {"limit": 5}}
    rows("super_glue", "super_glue_wsc", folders, splits={"train": "train[:10]"}, **limit)
    own = mixtures.shares(seqio.get_mixture_or_task("super_glue"), split="train")
    assert [*own.values()] == pytest.approx([1 / 9] * 9)
    rows("super_glue", "super_glue_wsc", folders, rate="equal")
    own = mixtures.shares(seqio.get_mixture_or_task("super_glue"), split="train")
    assert [*own.values()] == pytest.approx([1 / 9] * 9)
    warm = {"rate": "temperature", "rate_settings": {"value": 2.0}}
    rows("super_glue", "super_glue_wsc", folders, splits={"train": "train[:16]"}, **warm)
    own = mixtures.shares(seqio.get_mixture_or_task("super_glue"), split="train")
    assert own["super_glue_cb"] / own["super_glue_wsc"] == pytest.approx(2**0.5)
    rows("glue", "glue_cola", folders, leave_out=("glue_rte", "glue_mnli"))
    left = {task.name for task in seqio.get_mixture_or_task("glue").tasks}
    every = {f"glue_{task}" for task in MODULES["glue"].MIXED}
    assert left == every - {"glue_rte", "glue_mnli"}
    with pytest.raises(ValueError, match=r"leave_out='glue_wnli' does not exist"):
        rows("glue", "glue_cola", folders, leave_out=("glue_wnli",))
    with pytest.raises(ValueError, match=r"rate='equl' does not exist\. Did you mean 'equal'"):
        rows("glue", "glue_cola", folders, rate="equl")


def test_a_part_of_a_file_is_a_split(folders):
    splits = {"train": "train[:3]", "validation": "train[3:7]"}
    train = rows("glue", "glue_sst2", folders, split="train", splits=splits)
    validation = rows("glue", "glue_sst2", folders, splits=splits)
    assert (len(train), len(validation)) == (3, 4)
    published = [benchmark_rows.sst2(n) for n in range(7)]
    assert [row["inputs"] for row in (*train, *validation)] == [
        f"sst2 sentence: {row['sentence']}" for row in published
    ]


def test_pairs_without_a_majority_label_are_left_out(tmp_path):
    folder = benchmark_rows.write(tmp_path / "entailment", {"snli": benchmark_rows.snli})
    path = folder / "snli" / "validation.jsonl"
    made = [json.loads(line) for line in path.read_text().splitlines()]
    made[3]["label"] = made[7]["label"] = -1  # as Hugging Face hosts them
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    here = {"entailment": str(folder)}
    assert len(rows("entailment", "snli", here)) == 18
    labelled = rows("entailment", "snli", here, objective="classification")
    assert [row["text_b"] for row in labelled] == [
        row["hypothesis"] for row in made if row["label"] >= 0
    ]


def test_a_twin_validates_on_the_test_set(folders):
    [first, *_] = rows("race", "race_high_test", folders)
    assert first["inputs"].startswith("What slept?")
    assert benchmark_rows.race(80)["article"] in first["inputs"]


def test_shards_divide_the_rows(folders):
    rows("glue", "glue_cola", folders)
    source = seqio.TaskRegistry.get("glue_cola").source
    parts = [
        [
            row["inputs"]
            for row in source.get_dataset("train", seed=1, shard_info=one).as_numpy_iterator()
        ]
        for one in (seqio.ShardInfo(0, 2), seqio.ShardInfo(1, 2))
    ]
    assert sum(map(len, parts)) == len(set(parts[0] + parts[1])) == 20


def test_texts_for_a_vocabulary(folders):
    found = MODULES["glue"].documents("validation", folder=folders["glue"], tasks=("glue_cola",))
    texts = [row["text"].decode() for row in found.as_numpy_iterator()]
    assert texts[0].startswith("cola sentence: The otter")
    assert texts[1] == "acceptable"
    assert len(texts) == 40


def test_the_page_of_the_docs_names_each_task():
    text = (DATA.parent / "docs" / "tasks.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    for suite in SUITE_OF.values():
        for task, (name, _) in suite._tasks.items():
            assert {task, name, task.removesuffix("_test")} & named, task
