"""Your own text: .txt, .jsonl or .parquet files, one document per row.

    --config.data.module=data/text_files.py --config.data.task=text_files
    --config.data.settings.files="corpus/*.jsonl.gz"

| files | row | columns |
|---|---|---|
| .txt | a line | none |
| .jsonl, .json | a line with a JSON object | its fields |
| .parquet | a row | its columns of strings |

Text may be compressed (.txt.gz, .jsonl.zst, ...); docs/data.md has the rules of reading.

`files` is a path, a pattern (`*`, `?`, `[a-z]`) or a list of these, all of one format. They are
streamed: a few lines of text files are in memory, or two row groups of Parquet files (so write
thousands of rows per group, not millions).

Pretraining reads the column `text`. Fine-tuning, with `--config.data.objective=text_to_text` (or
`marked_text_to_text` for BART, `masked_targets` for UniLM), reads pairs:
`--config.data.settings.inputs=question --config.data.settings.targets=answer`.

For validation 1% of the rows (`held_out`) are held out, chosen by their text or the inputs of a
pair (`sources.held_out`), so that copies are never in both splits. Or set `validation_files`: then
all of `files` is for training, and you must make sure that the two have no text in common.

A row that is not a JSON object, or has no string in the column, is an error with its file and line.
Documents are cleaned by the rules of `preprocessing/cleaning.py`, which also join runs of white
space, so that indentation is lost: `tidy=False` keeps it, for code. Those without text are skipped.
The sides of pairs stay as they are, and a pair with an empty side is skipped. A run prints the
counts at its end.
"""

import functools
from typing import TYPE_CHECKING, Any

from t5x_like.grain_pipeline import corpus
from t5x_like.names import check_settings
from t5x_like.vocabularies import Vocabulary

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf

    from t5x_like.preprocessing.seqio_objectives import SeqioObjective


def corpora(*, name: str = "text_files", **settings: Any) -> dict[str, corpus.Corpus]:
    """Return {task name: corpus of the files}; `settings` are arguments of `corpus.from_files`."""
    check_settings("data.settings", corpus.from_files, settings)
    return {name: corpus.from_files(**settings)}


def register(
    vocabulary: Vocabulary,
    objective: "SeqioObjective",
    *,
    name: str = "text_files",
    tidy: bool = True,
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation", to seqio.

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns the rows into examples; for pairs one of `sources.OF_PAIRS`.
        name: name of the task.
        tidy: whether cleaning tidies white space in documents.
        settings: the other arguments of `corpus.from_files`.

    Raises:
        ValueError: see `source`; or the objective reads documents and the rows are pairs, or the
            reverse.
    """
    from t5x_like.preprocessing import sources  # loads TensorFlow

    rows = source(**settings)
    is_pairs = bool(settings.get("inputs"))
    if is_pairs and objective.name not in sources.OF_PAIRS:
        raise ValueError(
            f"objective={objective.name!r} reads documents, and `inputs` and `targets` are pairs: "
            f"set one of {', '.join(sources.OF_PAIRS)}, or the column `text` instead."
        )
    if not is_pairs and objective.name in sources.OF_PAIRS:
        raise ValueError(
            f"objective={objective.name!r} reads pairs: set their columns `inputs` and `targets`."
        )
    add = sources.add_pair_task
    if not is_pairs:
        add = functools.partial(sources.add_document_task, tidy=tidy)
    add(name, source=rows, vocabulary=vocabulary, objective=objective)


def documents(split: str, *, tidy: bool = True, **settings: Any) -> "tf.data.Dataset":
    """Return the documents of a split, or both sides of its pairs, {"text": scalar string}."""
    del tidy  # of cleaning
    from t5x_like.preprocessing import sources  # loads TensorFlow

    rows = source(**settings)
    if settings.get("inputs"):
        return sources.both_sides(rows, split)
    return rows.get_dataset(split, shuffle=False)


def source(**settings: Any) -> "seqio.DataSource":
    """Return the rows of the files as a source of seqio; see `line_datasets.rows_of_files`."""
    from t5x_like.preprocessing import line_datasets, sources  # loads TensorFlow

    sources.check_settings(line_datasets.rows_of_files, settings)
    return line_datasets.rows_of_files(**settings)
