"""The tasks of a data module with corpora, which need neither seqio nor TensorFlow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from t5x_like import objectives
from t5x_like.batches import converters
from t5x_like.batches.conversion import Converter
from t5x_like.batches.document_cleaning import clean, clean_pair
from t5x_like.batches.sharded_batches import (
    Reading,
    ShardedBatches,
    check_continued,
    check_numbers,
    check_shards,
)
from t5x_like.batches.tokenized_folder import TokenizedFolder
from t5x_like.grain_pipeline.corpus import Corpus, CorpusRow, Split, corpora_of, splits_of
from t5x_like.grain_pipeline.document_stream import DocumentReader
from t5x_like.grain_pipeline.tokenized_documents import TokenPieces, pieces
from t5x_like.grain_pipeline.units import Reads, reads_texts, units_of
from t5x_like.names import choose
from t5x_like.objectives import ExampleSpec, Feature
from t5x_like.objectives.objective import PAIR
from t5x_like.vocabularies import Vocabulary


class CorpusTasks:
    """The corpora of a data module, each as a task.

    Args:
        module: a module with the function `corpora`.
        settings: its settings.
        vocabulary: the vocabulary of all tasks.
        objective: the name of the objective.
        objective_settings: its settings.
        tokenized: a folder of tokenized documents to read instead of tokenizing; "" to tokenize.

    Raises:
        ValueError: an objective, a setting or a file does not exist.
    """

    def __init__(
        self,
        module: ModuleType,
        settings: Mapping[str, Any],
        *,
        vocabulary: Vocabulary,
        objective: str,
        objective_settings: Mapping[str, Any],
        tokenized: str = "",
    ):
        self._vocabulary = vocabulary
        self._objective = objectives.build(objective, **objective_settings)
        self._corpora = corpora_of(module, settings, self._objective)
        self._tokenized = TokenizedFolder(tokenized) if tokenized else None
        if tokenized and reads_texts(self._objective):
            raise ValueError(
                f"data.tokenized={tokenized!r} has the tokens of whole documents, and "
                f"data.objective={objective!r} needs their sentences or characters: tokenize while "
                "training, data.tokenized=''"
            )

    def batches(
        self,
        task: str,
        *,
        split: str,
        batch_size: int,
        lengths: Mapping[str, int],
        converter: Converter,
        pack: bool = False,
        open_rows: int = 16,
        seed: int = 0,
        shuffle: bool = True,
        repeat: bool = True,
        shuffle_buffer: int = 1,
        shards: int = 1,
        rows: Sequence[int] | None = None,
        any_process: Callable[[bool], bool] | None = None,
        phase: str = "",
    ) -> ShardedBatches:
        """Return the batches of a task; for the settings see `preprocessing.pipeline.SeqioBatches`.

        All documents are shuffled at once: `shuffle_buffer` has no effect here.

        Raises:
            ValueError: the task or split is unknown, the features do not suit the converter, a
                length does not fit, numbers do not divide, or the folder of tokenized documents
                was made from other documents, or is damaged.
        """
        check_numbers(seed=seed, batch_size=batch_size)
        check_shards(shards, batch_size=batch_size, rows=rows)
        documents = self._split(task, split)
        converters.check(converter, features=self._objective.features, lengths=lengths, pack=pack)
        check_continued(
            converter,
            task=task,
            mixture=False,
            batch_size=batch_size,
            shards=shards,
            mixed=pack or shuffle,
        )
        lengths = converter.feature_lengths(lengths)
        reading = Reading(split, lengths, seed, shuffle, repeat, shuffle_buffer, shards)
        reader = self._reader(task, documents, reading)
        return ShardedBatches(
            {task: reader},
            {task: 1.0},
            task=task,
            reading=reading,
            batch_size=batch_size,
            converter=converter,
            pack=pack,
            open_rows=open_rows,
            rows=rows,
            any_process=any_process,
            phase=phase,
            sizes={task: None},
        )

    def _reader(self, task: str, documents: Split, reading: Reading) -> DocumentReader:
        """Return the reader of a split; raise ValueError if the objective does not fit."""
        of = {"targets": self._vocabulary.targets}
        features = {
            name: Feature(of.get(name, self._vocabulary)) for name in self._objective.features
        }
        corpus = self._corpora[task]
        spec = ExampleSpec(reading.lengths, features)

        def row(number: int) -> CorpusRow | None:
            fields = documents.row(number)
            return _cleaned_pair(fields, corpus) if fields else fields

        def texts(number: int) -> Sequence[str]:
            text = documents.document(number)
            if text is None:
                return []
            return clean(text, tidy=documents.tidy) if corpus.cleaned else [text]

        def tokens(number: int) -> TokenPieces:
            return [self._vocabulary.encode(text) for text in texts(number)]

        read: Callable[[int], TokenPieces] = tokens
        if self._tokenized is not None:
            key = f"{task}/{reading.split}"
            read = pieces(self._tokenized, key, documents, self._vocabulary)
        reads = Reads(self._vocabulary, corpus.fields, row, texts, read)
        units = units_of(self._objective, spec, reads)
        return DocumentReader(task, documents, units, reading, self._objective.identity(spec))

    def rows(self, task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of a task in order, raw or cleaned as in training.

        Raises:
            ValueError: the task or split is unknown.
        """
        documents, corpus = self._split(task, split), self._corpora[task]
        for row in documents.all_rows():
            if not (cleaned and corpus.cleaned):
                yield dict(row)
            elif "text" in row:
                yield from ({"text": piece} for piece in clean(row["text"], tidy=documents.tidy))
            elif pair := _cleaned_pair(row, corpus):
                yield dict(pair)

    def number_of_rows(self, task: str, *, split: str) -> int:
        """Return the number of documents of a split; raise ValueError if it is unknown."""
        documents = self._split(task, split)
        count = choose("data.task", task, self._corpora).number if split == "train" else None
        if count is None and documents.held_out is None:
            count = len(documents.rows)
        if count is None:
            raise ValueError(
                f"the size of split {split!r} of task {task!r} is not known: set "
                "data.settings.documents, or data.settings.validation_files"
            )
        return count

    def files(self, *tasks: str) -> dict[str, list[str]]:
        """Return the files that tasks read, {"TASK/SPLIT": files in order}."""
        return {key: split.paths for key, split in splits_of(self._corpora, *tasks).items()}

    def _split(self, task: str, split: str) -> Split:
        return choose("split", split, choose("data.task", task, self._corpora).splits)


def _cleaned_pair(row: CorpusRow, corpus: Corpus) -> CorpusRow | None:
    """Return the cleaned sides of a pair, or None to skip it; other rows as they are."""
    is_pair = corpus.cleaned and all(side in row for side in PAIR)
    return clean_pair(row, PAIR) if is_pair else row


def training_texts(module: ModuleType, settings: Mapping[str, Any]) -> Iterator[str]:
    """Return the cleaned training texts of all corpora of a data module, in order.

    Raises:
        ValueError: a setting or a file does not exist.
    """
    return (
        piece
        for corpus in corpora_of(module, settings).values()
        for split in [corpus.splits["train"]]
        for row in split.all_rows()
        for text in corpus.texts(row)
        for piece in clean(text, tidy=split.tidy)
    )
