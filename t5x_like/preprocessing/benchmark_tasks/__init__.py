"""Benchmarks as tables: a task is a row of fields, templates, labels, splits and metrics.

A data module (data/glue.py) has a table of `Benchmark`s and makes a `Suite` from it, whose methods
are the functions of the data module. Each task has two forms: text to text (Raffel et al. 2020,
section 2.4 and appendix D), and labelled, for models with a head.
"""

from t5x_like.preprocessing.benchmark_tasks.benchmark import (
    LABELLED_OBJECTIVES,
    TEXT_TO_TEXT,
    Benchmark,
    Submission,
)
from t5x_like.preprocessing.benchmark_tasks.suite import Suite

__all__ = ["LABELLED_OBJECTIVES", "TEXT_TO_TEXT", "Benchmark", "Submission", "Suite"]
