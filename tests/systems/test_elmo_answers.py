"""Answers to questions by ELMo: rows of words with their ranges, windows, a head that learns."""

import json

import numpy as np
import pytest

from configs import elmo as config
from t5x_like import evaluate, infer, train
from t5x_like.batches.labelled_rows import WordRowWriter
from t5x_like.config import parse
from t5x_like.objectives import build
from t5x_like.objectives.objective import ExampleSpec, Feature
from t5x_like.systems import elmo
from t5x_like.vocabularies.words import END, START, WordVocabulary, spell_all
from tests.programs import command_flags

WORDS = WordVocabulary(["<S>", "</S>", "<UNK>", "who", "came", "?", ".", "it", "was", "henson"])
CONTEXT = "It was  Jim Henson. He came."


def test_a_window_has_the_words_and_their_characters():
    writer = WordRowWriter(WORDS, length=16)
    [window] = writer.windows("who came?", CONTEXT)
    words = ["who", "came", "?", END, "It", "was", "Jim", "Henson", ".", "He", "came", "."]
    expected = spell_all([START, *words, END])
    np.testing.assert_array_equal(window.row.characters, expected)
    assert window.row.tokens[-1] == WORDS.eos_id
    start = CONTEXT.index("Jim")
    places = window.places(start, start + len("Jim Henson"))
    assert [words[place - 1] for place in places] == ["Jim", "Henson"]
    first, last = window.characters(*places)
    assert CONTEXT[first:last] == "Jim Henson"
    assert window.places(0, 0) == (0, 0)  # no answer: <S>


def test_a_long_context_is_read_in_overlapping_windows():
    writer = WordRowWriter(WORDS, length=12)
    windows = writer.windows("who", CONTEXT, stride=4, longest_question=3)
    parts = [[CONTEXT[a:b] for a, b in window.offsets] for window in windows]
    assert parts == [
        ["It", "was", "Jim", "Henson", ".", "He", "came", "."],
    ]
    writer = WordRowWriter(WORDS, length=9)
    windows = writer.windows("who", CONTEXT, stride=4, longest_question=3)
    parts = [[CONTEXT[a:b] for a, b in window.offsets] for window in windows]
    assert parts == [["It", "was", "Jim", "Henson", "."], [".", "He", "came", "."]]
    assert all(len(window.row.tokens) <= 9 for window in windows)
    start = CONTEXT.index("He came")
    assert [one.places(start, start + 7) for one in windows] == [(0, 0), (4, 5)]
    with pytest.raises(ValueError, match=r"lengths.inputs=9: with longest_question=3 rows need 14"):
        writer.check_windows(stride=4, longest_question=3)


def test_the_objective_has_the_positions_of_the_answer():
    given = ExampleSpec({"inputs": 24}, {"inputs": Feature(vocabulary=WORDS)})
    made = build("word_question_answering", stride=8, longest_question=8)
    row = {
        "question": "who?",
        "context": CONTEXT,
        "answer_text": "Jim Henson",
        "answer_start": CONTEXT.index("Jim"),
    }
    [example] = made.plan(given)(row, np.random.default_rng(0))
    assert example["answer"].tolist() == [6, 7]  # after <S> who ? </S> It was
    assert len(example["characters"]) == 50 * len(example["inputs"])


COLORS = ("red", "blue", "green")
NAMES = ("Ann", "Bo", "Cy", "Di")
LETTERS = ("<S>", "</S>", "<UNK>", "wears", "what", "does", "wear", "?", ".", *COLORS, *NAMES)
TINY = {
    "filters": ((1, 16), (2, 16), (3, 16)),
    "highways": 1,
    "cell": 32,
    "d_model": 32,
    "vocab_size": len(LETTERS),
    "dropout": 0.0,
    "mix_dropout": 0.0,
    "task_width": 64,
}


def rows(number, *, seed):
    """Persons in clothes of different colors, and a question about one of them."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        names, colors = random.permutation(NAMES)[:2], random.permutation(COLORS)[:2]
        context = " ".join(f"{a} wears {b}." for a, b in zip(names, colors, strict=True))
        asked = random.integers(2)
        answers = {"text": [str(colors[asked])], "answer_start": [context.index(colors[asked])]}
        question = f"what does {names[asked]} wear?"
        made.append({"question": question, "context": context, "answers": answers})
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_elmo_learns_to_answer_from_text_to_text(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in LETTERS))
    for name, number, seed in (("train", 400, 0), ("held_out", 60, 1)):
        lines = "".join(json.dumps(row) + "\n" for row in rows(number, seed=seed))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    made = config.get_config("word_question_answering")
    made.system = "elmo"
    made.model = elmo.SIZES["small"] | TINY | {"head": "question_answering"}
    made.optimizer.frozen = ()
    made.workdir = str(tmp_path / "run")
    made.data.vocabulary = str(tmp_path / "vocab.txt")
    made.data.settings.train = str(tmp_path / "train.jsonl")
    made.data.settings.validation = str(tmp_path / "held_out.jsonl")
    made.data.lengths.inputs = 20
    made.data.objective_settings = {"stride": 8, "longest_question": 8}
    made.data.batch_size = 32
    made.train.steps = 400
    made.optimizer.learning_rate = 5e-3
    made.evaluate.every = made.checkpoint.every = 0
    train.main(parse(made))
    command_flags.give(monkeypatch)
    evaluate.main(parse(made))
    [numbers] = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"].values()
    # Of two colors one is right: this is four standard deviations of 60 guesses above a half.
    assert numbers["squad/exact_match"] > 0.76
    question = {"question": "what does Bo wear?", "context": "Ann wears red. Bo wears blue."}
    (tmp_path / "in.jsonl").write_text(json.dumps(question) + "\n")
    out = tmp_path / "out.jsonl"
    command_flags.give(monkeypatch, input=str(tmp_path / "in.jsonl"), output=str(out))
    infer.main(parse(made))
    [found] = [json.loads(line) for line in out.read_text().splitlines()]
    assert found["prediction"] in ("red", "blue")
