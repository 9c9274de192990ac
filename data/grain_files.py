"""Your own text, read without TensorFlow: .txt, .jsonl, .parquet or .array_record files.

    --config.data.module=data/grain_files.py --config.data.task=grain_files
    --config.data.settings.files="corpus/*.jsonl"

Settings, rows and examples are as in data/text_files.py, which `data.driver=grain` also reads
without TensorFlow. All rows of an epoch are shuffled at once, not within a buffer. docs/data.md has
formats and limits.
"""

from typing import Any

from t5x_like.grain_pipeline import corpus
from t5x_like.names import check_settings


def corpora(*, name: str = "grain_files", **settings: Any) -> dict[str, corpus.Corpus]:
    """Return {task name: corpus of the files}; `settings` are arguments of `from_files`."""
    check_settings("data.settings", corpus.from_files, settings)
    return {name: corpus.from_files(**settings)}
