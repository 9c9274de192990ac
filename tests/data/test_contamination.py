"""The questions of tasks that are in a training text, and a model's score without them."""

import json
import random

import pytest

from configs import pretrained
from data import word_scrambles
from data.filters import contamination
from t5x_like import evaluate
from t5x_like.config import parse
from t5x_like.evaluation import overlaps
from tests.programs import command_flags, tiny_writer

# Lines of github.com/openai/gpt-3, data/, and their N in Brown et al. 2020, table C.1.
RELEASED = {
    "cycle_letters_in_word": ("asinoc = casino", 2),
    "mid_word_1_anagrams": ("skicts = sticks", 2),
    "mid_word_2_anagrams": ("volwskagen = volkswagen", 2),
    "random_insertion_in_word": ("d o m i!n a n.t = dominant", 7),
    "reversed_words": ("taefed = defeat", 2),
}


def test_the_sizes_of_word_scrambles_are_of_table_c_1(tmp_path):
    """The released words have 6 to 15 letters, so that the shortest insertion has 6 and a word."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [letters[first : first + 6 + first % 10] for first in range(16)]
    words = [first + word[1:] for first in letters for word in words]
    (tmp_path / "words.txt").write_text("\n".join(words))
    made = word_scrambles.corpora(words=str(tmp_path / "words.txt"), shortest=6, longest=15)
    for task, corpus in made.items():
        rows = list(corpus.splits["validation"].all_rows())
        [found] = overlaps.find({task: rows}, (), shortest=1).values()
        assert found.size == RELEASED[task][1]
    assert overlaps.words(RELEASED["random_insertion_in_word"][0]) == [*"dominant", "dominant"]


@pytest.mark.parametrize(
    ("lengths", "settings", "size"),
    [
        (range(100), {}, 8),  # the percentile is 4
        (range(9, 109), {}, 13),
        (range(5, 105), {}, 9),
        (range(100), {"shortest": 2}, 4),
        ([1], {"shortest": 2}, 2),
        ([*[3] * 4, *[40] * 96], {}, 13),
    ],
)
def test_the_size_is_the_fifth_percentile_within_limits(lengths, settings, size):
    assert overlaps.size_of(lengths, **settings) == size


def test_overlaps_are_what_a_search_for_strings_finds():
    """Texts of four different words share many sequences, in other case and punctuation."""
    generator = random.Random(0)
    rows = [
        {"inputs": " ".join(generator.choices("abcd", k=k)), "targets": generator.choice("abcd")}
        for k in (1, *range(2, 14)) * 3
    ]
    documents = [generator.choices("abcde", k=12) for _ in range(4)]
    texts = [" ".join(map(generator.choice([str.upper, "({})!".format]), one)) for one in documents]
    [found] = overlaps.find({"": rows}, texts, shortest=4).values()
    assert found.size == 4

    def shares(row):
        own = " ".join({row["inputs"]: 0, row["targets"]: 0}).split()
        runs = [f" {' '.join(own[n : n + 4])} " for n in range(len(own) - 3)]
        return any(run in f" {' '.join(document)} " for run in runs for document in documents)

    assert found.overlapping.tolist() == list(map(shares, rows))
    assert 5 < found.overlapping.sum() < len(rows) - 5
    assert found.short == sum(len(row["inputs"].split()) + 1 < 4 for row in rows)


def test_a_row_is_all_its_strings_each_once():
    row = {"inputs": "a b", "targets": "c", "answers": ["c", "d"], "choices": ["e", "c"], "id": 3}
    [found] = overlaps.find({"": [row]}, ["a b c d e"], shortest=5).values()
    assert (found.size, found.short, found.overlapping.tolist()) == (5, 0, [True])


QUESTIONS = [
    "Where is it",  # six words with its choices, the fifth percentile
    "Which of the two towers was built first and by whom",
    "What is it that the people of the valley call the great stone",
    "Why did nobody in the village want to open the gate",
]
SHARED = [1, 3]


@pytest.fixture
def files(tmp_path):
    rows = [
        {"inputs": text, "targets": "ab"[n % 2], "choices": ["a", "b"]}
        for n, text in enumerate(QUESTIONS)
    ]
    documents = [{"body": "Nothing."}, *({"body": f"So: {QUESTIONS[n].upper()}!"} for n in SHARED)]
    for name, own in (
        ("test", rows),
        ("clean", [row for n, row in enumerate(rows) if n not in SHARED]),
        ("overlapping", [rows[n] for n in SHARED]),
        ("corpus", documents),
        ("empty", []),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    return tmp_path


def settings_of(folder, name, **changes):
    made = pretrained.get_config("in_context")
    made.data.settings.validation = str(folder / f"{name}.jsonl")
    made.evaluate.measures.in_context.metrics = ("bleu",)
    made.update(changes)
    return made


def give(monkeypatch, folder, **flags):
    known = {"text": "body", "shortest": 8, "input": str(folder / "corpus.jsonl")}
    command_flags.give(monkeypatch, **known | flags)


def test_a_model_is_measured_on_the_questions_of_each_kind(files, monkeypatch, capsys):
    run = tiny_writer.write(files / "run", tiny_writer.settings("gpt2", positions=160))
    expected = {}
    for kind, name in (("all", "test"), ("overlapping", "overlapping"), ("clean", "clean")):
        command_flags.give(monkeypatch, output=str(files / "numbers.json"))
        evaluate.main(parse(settings_of(files, name, initialize=str(run))))
        expected[kind] = json.loads((files / "numbers.json").read_text())["tasks"]["prompted_files"]
    give(monkeypatch, files, output=str(files / "report.json"))
    contamination.main(parse(settings_of(files, "test", initialize=str(run))))
    [found] = json.loads((files / "report.json").read_text())
    numbers = found.pop("numbers")
    assert found == {"task": "prompted_files", "N": 8, "rows": 4, "overlapping": 2, "short": 1}
    # The number of examples in a prompt compares no models.
    assert list(numbers) == [
        f"in_context/{name}"
        for name in ("accuracy", "accuracy_per_token", "accuracy_calibrated", "bleu")
    ]
    for name, own in numbers.items():
        assert own == {kind: expected[kind][name] for kind in expected}
    assert len({tuple(own.values()) for own in numbers.values()}) > 1
    printed = capsys.readouterr().out.splitlines()[-5:]
    assert printed[0].split() == [*contamination._HEAD]
    assert printed[1].split()[:6] == ["prompted_files", "8", "4", "2", "1", "in_context/accuracy"]


def test_without_a_model_questions_of_any_module_are_counted(files, monkeypatch, capsys):
    """A module of seqio tasks, and the same module read by grain."""
    for driver in ("seqio", "grain"):
        given = settings_of(files, "test")
        given.data.driver = driver
        give(monkeypatch, files)
        contamination.main(parse(given))
        assert capsys.readouterr().out.splitlines() == [
            "task            N  rows  overlapping  short",
            "prompted_files  8  4     2            1",
        ]
    given = pretrained.get_config("arithmetic")
    given.data.settings = {"validation": 20, "seed": 0}
    give(monkeypatch, files, shortest=2)
    contamination.main(parse(given))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[:-1] == [[task, "6", "20", "0", "0"] for task in list(given.evaluate.tasks)[:-1]]


def test_the_change_is_of_table_c_1():
    """The rows of PIQA and Winogrande there."""
    entries = [
        ("PIQA", 8, 1838, 526, {"all": 0.823, "overlapping": 0.899, "clean": 0.793}),
        ("Winogrande", 13, 1267, 0, {"all": 0.777, "overlapping": None, "clean": 0.777}),
    ]
    report = [
        {"task": task, "N": size, "rows": rows, "overlapping": found, "short": 0}
        | {"numbers": {"acc": numbers}}
        for task, size, rows, found, numbers in entries
    ]
    assert [" ".join(line.split()) for line in contamination.table(report)] == [
        "task N rows overlapping short number all overlapping clean change",
        "PIQA 8 1838 526 0 acc 0.8230 0.8990 0.7930 -3.6%",  # -4% in the paper
        "Winogrande 13 1267 0 0 acc 0.7770 - 0.7770 +0.0%",
    ]


@pytest.mark.parametrize(
    ("flags", "changes", "message"),
    [
        ({"input": None}, {}, "--input is not set: name the files of the training text"),
        ({"shortest": 0}, {}, "--shortest=0 must be 1 or more"),
        ({"input": "nowhere.jsonl"}, {}, "--input='nowhere.jsonl' matches no file"),
        ({"input": "{files}/empty.jsonl"}, {}, "the 1 files of --input have no documents"),
        ({"text": "txt"}, {}, "corpus.jsonl:1: there is no string 'txt'"),
        ({}, {"evaluate": {"measures": {"loss": {}}}}, "no measure of data.task='prompted_files'"),
    ],
)
def test_a_mistake_is_one_line(flags, changes, message, files, monkeypatch, capsys):
    given = settings_of(files, "test")
    if changes:
        given.initialize = str(tiny_writer.write(files / "run", tiny_writer.settings("gpt2")))
        given.evaluate.measures = changes["evaluate"]["measures"]
    if flags.get("input"):
        flags = flags | {"input": flags["input"].format(files=files)}
    give(monkeypatch, files, **flags)
    with pytest.raises(SystemExit, match="2"):
        contamination.main(parse(given))
    assert message in capsys.readouterr().err
