"""SQuAD, summaries and other tasks as text, string by string: T5's released code, UnifiedQA."""

from pathlib import Path

import pytest

from t5x_like.preprocessing import sources

DATA = Path(__file__).parents[2] / "data"


def table(module, name):
    return getattr(sources.load_module(str(DATA / f"{module}.py")), name)


def pairs(benchmark, raw):
    return [(row["inputs"], row["targets"]) for row in benchmark.text_rows(raw, split="train")]


@pytest.mark.parametrize(
    ("module", "name", "task", "raw", "inputs", "targets"),
    [
        (
            "summarization",
            "SUMMARIES",
            "cnn_dailymail",
            {"article": "An article.", "highlights": "A summary."},
            "summarize: An article.",
            "A summary.",
        ),
        (
            "summarization",
            "SUMMARIES",
            "xsum",
            {"document": "A\ntext.", "summary": "A summary."},
            "summarize: A\ntext.",
            "A summary.",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "natural_questions",
            {"question": "who came", "answer": ["Ann", "Ann B."]},
            "nq question: who came",
            "Ann",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "trivia_qa",
            {"question": "Who came?", "answer": {"value": "Ann", "aliases": ["A.", "Ann"]}},
            "trivia_qa question: Who came?",
            "Ann",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "web_questions",
            {"question": "who came?", "answers": ["Ann", "Bo"]},
            "wq question: who came?",
            "Ann",
        ),
        (
            "race",
            "RACE",
            "race",
            {"article": "It is.", "question": "Is it?", "options": ["No", "Yes"], "answer": "B"},
            "Is it? \\n (A) No (B) Yes \\n It is.",
            "Yes",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "piqa",
            {"goal": "Stir.", "sol1": "A spoon.", "sol2": "A cloud.", "label": 0},
            "Stir. \\n (A) A spoon. (B) A cloud.",
            "A spoon.",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "arc_easy",
            {
                "question": "Where?",
                "choices": {"text": ["here", "there"], "label": ["1", "2"]},
                "answerKey": "2",
            },
            "Where? \\n (A) here (B) there",
            "there",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "winogrande",
            {
                "sentence": "Ann called Bo since _ left.",
                "option1": "Ann",
                "option2": "Bo",
                "answer": "2",
            },
            "Ann called Bo since _ left. \\n (A) Ann (B) Bo",
            "Bo",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "boolq",
            {"question": "is it", "passage": "It is.", "answer": True},
            "boolq passage: It is. question: is it",
            "True",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "lambada",
            {"text": "She called it the otter", "domain": "None"},
            "She called it the",
            "otter",
        ),
    ],
)
def test_other_tasks(module, name, task, raw, inputs, targets):
    assert pairs(table(module, name)[task], raw) == [(inputs, targets)]


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        (
            '"This  is a string with "punctuation (1845-1986) ".',
            ' " This is a string with " punctuation ( 1845 - 1986 ) " . ',
        ),
        ("a café", "a caf é "),  # the word characters of RE2 are those of ASCII
    ],
)
def test_punctuation_is_spaced_as_in_the_test_of_t5(text, spaced):
    assert table("squad", "spaced")(text) == spaced


def test_squad_as_text():
    raw = {
        "id": "x",
        "context": "Some context.",
        "question": '"A" question?',
        "answers": {"text": ["The answer.", "Another answer."], "answer_start": [0, 0]},
    }
    squad = table("squad", "_SQUAD")
    [row] = squad.text_rows(raw, split="train")
    assert row == {
        "inputs": 'question: " A " question ? context: Some context . ',
        "targets": "The answer . ",
        "answers": ["The answer . ", "Another answer . "],
    }
