"""Questions without a context: Natural Questions, TriviaQA and WebQuestions.

    --config.data.module=data/closed_book_qa.py --config.data.task=trivia_qa
    --config.data.settings="{'folder': 'questions'}"

`natural_questions`, `trivia_qa` and `web_questions`, and their mixture `closed_book_qa`, have the
prefixes and splits of Roberts et al. 2020 ("How Much Knowledge Can You Pack Into the Parameters of
a Language Model?"): the last tenth of the training file validates, and twins such as
`natural_questions_test` validate on the published validation split, or, for WebQuestions, on the
test split. They are read from FOLDER/natural_questions/train.jsonl and so on, in the schema of
Hugging Face (google-research-datasets/nq_open, mandarjoshi/trivia_qa unfiltered.nocontext,
Stanford/web_questions), the first two also from the output of `tfds build natural_questions_open`
and so on. The tasks have no labelled form. docs/tasks.md has all settings.

A model is trained on the first answer, for TriviaQA on the answer that is not an alias; metrics use
the best match among all answers or aliases.
"""

from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import ChangeRow, Raw


def _first(field: str) -> ChangeRow:
    return lambda raw: {**raw, "first": benchmark.texts(raw, field)[0]}


def _questions(name: str, answers: str, *, train: int, test: str, **more: Any) -> Benchmark:
    """Define a task that trains on the first `train` rows of the training file."""
    settings = {
        "targets": "{first}",
        "prepare": _first(answers),
        "metrics": ("exact_match", "f1"),
        **more,
    }
    return Benchmark(
        inputs=f"{name} question: {{question}}",
        answers=answers,
        splits={"train": f"train[:{train}]", "validation": f"train[{train}:]"},
        test=test,
        **settings,
    )


def _lists(raw: Raw) -> list[Raw]:
    """Drop the pages that TensorFlow Datasets adds to each question of TriviaQA."""
    return [{"question": raw["question"], "answer": raw["answer"]}]


QUESTIONS = {
    "natural_questions": _questions(
        "nq",
        "answer",
        train=79168,
        test="validation",
        prepared="natural_questions_open:1.0.0",
    ),
    "trivia_qa": _questions(
        "trivia_qa",
        "answer.aliases",
        train=78785,
        test="validation",
        targets="{answer.value}",
        prepare=None,
        metrics=("trivia_qa_exact_match", "trivia_qa_f1"),
        prepared="trivia_qa/unfiltered.nocontext:1.1.0",
        from_prepared=_lists,
    ),
    "web_questions": _questions("wq", "answers", train=3417, test="test"),
}

_SUITE = Suite(QUESTIONS, mixture="closed_book_qa", mixed=tuple(QUESTIONS))
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
