"""The rows that tasks of benchmarks make of the folders of tests/programs/benchmark_rows.py."""

from pathlib import Path

import numpy as np

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import source_rows
from tests.programs import benchmark_rows

DATA = Path(__file__).parents[2] / "data"
SUITES = {
    "glue": benchmark_rows.GLUE,
    "super_glue": benchmark_rows.SUPER_GLUE,
    "squad": benchmark_rows.SQUAD,
    "race": benchmark_rows.RACE,
    "summarization": benchmark_rows.SUMMARIZATION,
    "closed_book_qa": benchmark_rows.CLOSED_BOOK_QA,
    "commonsense": benchmark_rows.COMMONSENSE,
    "entailment": benchmark_rows.ENTAILMENT,
    "sentiment": benchmark_rows.SENTIMENT,
    "reading_qa": benchmark_rows.READING_QA,
}
MODULES = {name: sources.load_module(str(DATA / f"{name}.py")) for name in SUITES}
SUITE_OF = {name: module._SUITE for name, module in MODULES.items()}
TASKS = [(name, task) for name, suite in SUITE_OF.items() for task in suite._tasks]
CHANGED = {"closed_book_qa": {"train": "train[:15]", "validation": "train[15:]"}}
UNPARTED = {"closed_book_qa": {"validation": "validation"}}
BYTES = vocabularies.load("bytes:0")


def benchmark(suite, task):
    return SUITE_OF[suite]._tasks[task][1]


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [plain(one) for one in value] if np.ndim(value) else np.asarray(value).item()


def rows(suite, task, folders, *, objective="text_to_text", split="validation", **settings):
    settings = {"folder": folders[suite], "splits": CHANGED.get(suite), **settings}
    MODULES[suite].register(BYTES, seqio_objectives.build(objective), **settings)
    found = source_rows(task, split=split)
    return [{name: plain(value) for name, value in row.items()} for row in found]
