r"""RACE (Lai et al. 2017): questions of English exams for middle and high schools.

    --config.data.module=data/race.py --config.data.task=race_high
    --config.data.settings="{'folder': 'race'}"

`race_middle` and `race_high`, and `race` for both, are read from FOLDER/high/train.jsonl and so on,
in the schema of Hugging Face (ehovy/race), or from the output of `tfds build race/high`. Each has a
twin that validates on the test set: `race_high_test`. docs/tasks.md has all settings.

T5 did not include RACE: the text form follows UnifiedQA (Khashabi et al. 2020), which fine-tuned
T5, except for its lower case; "\n" there is a backslash and an n.
"""

from collections.abc import Iterable

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw


def _questions(raw: Raw) -> Iterable[Raw]:
    """Split an article into one row per question; TensorFlow Datasets has all in one row."""
    for question, options, answer in zip(
        raw["questions"], raw["options"], raw["answers"], strict=True
    ):
        own = {"question": question, "options": options, "answer": answer}
        yield {"article": raw["article"], "example_id": raw["example_id"], **own}


def _race(folder: str) -> Benchmark:
    return Benchmark(
        inputs="{question} \\n {options} \\n {article}",
        targets="{choice}",
        kind="multiple_choice",
        text_a="{article}",
        text_b="{question}",
        label="answer",
        labels=("A", "B", "C", "D"),
        choices="options",
        test="test",
        folder=folder,
        prepared="" if folder == "all" else f"race/{folder}:2.0.0",
        from_prepared=_questions,
    )


RACE = {"race": _race("all"), "race_middle": _race("middle"), "race_high": _race("high")}

_SUITE = Suite(RACE)
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
