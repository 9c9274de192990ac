r"""Augment labelled text by replacing words, as TinyBERT did (Jiao et al. 2019, algorithm 1).

    python -m data.generators.augment --input reviews.jsonl --output augmented \
        --model bert-base-uncased --text text_a

Each row is written unchanged, and --copies times with replaced words: each word is replaced with
--probability by one of its --candidates. If the word is a single token, these are the most likely
words at its position under the masked language model in --model; if it is several tokens, its
nearest neighbours by word vectors made from the counts of --corpus
(data/generators/word_vectors.py). A word without candidates stays. All other fields, including the
label, stay unchanged.

The paper's numbers are the defaults: 20 copies, 15 candidates, probability 0.4. As in its code,
stop words stay, and so do words with anything but letters in them; candidates are whole words; they
are found once for a text, and not again after other words were replaced; a copy that was already
written is left out. Unlike its code, a masked text is read by itself and not paired with the
original text, the model's candidates have only letters, stop words are scikit-learn's, and the
vectors are not GloVe's.

The copies of a row depend only on its texts, the model, the corpus and --seed, not on other rows.
"""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from data.filters import json_lines
from data.generators import word_vectors
from t5x_like.config import one_line_errors
from t5x_like.names import hint

if TYPE_CHECKING:
    from t5x_like.pretrained import Pretrained
    from t5x_like.vocabularies import Vocabulary

_TOGETHER = 64  # rows whose words are predicted together, and masked texts in a batch
_HEADS = ("pretraining", "masked_lm")  # heads that predict masked tokens


@dataclasses.dataclass(frozen=True)
class Word:
    """A word that may be replaced.

    Attributes:
        text: the word.
        start, end: the range of its characters in the text.
        token: the index of its token; None if it is several tokens.
    """

    text: str
    start: int
    end: int
    token: int | None


class MaskedWords:
    """Predicts the most likely words at a position of a text, with a masked language model.

    Args:
        model: a model with a head that predicts masked tokens.
        vocabulary: its vocabulary, with special tokens.
    """

    def __init__(self, model: "Pretrained", vocabulary: "Vocabulary"):
        import jax

        from t5x_like.vocabularies import check_special_tokens

        self._model, self._vocabulary = model, check_special_tokens(vocabulary)
        self._words = [vocabulary.decode([n]).strip() for n in range(vocabulary.vocab_size)]
        starts = self._vocabulary.word_starts
        whole = np.array([word.isalpha() for word in self._words]) & starts
        whole[list(vocabulary.special_ids)] = False
        never = np.where(whole, 0, -np.inf).astype(np.float32)

        @functools.partial(jax.jit, static_argnames="most")
        def likeliest(params: Any, batch: Mapping[str, Any], *, most: int) -> Any:
            logits = model.module.apply({"params": params}, batch)["logits"][:, 0]
            return jax.lax.top_k(logits[:, : len(never)] + never, most)[1]

        self._likeliest = likeliest
        self._most = int(whole.sum())

    def words(self, text: str) -> list[Word]:
        """Return the words of a text that may be replaced: only letters, and not a stop word."""
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
        from tokenizers import pre_tokenizers

        _, offsets = self._vocabulary.encode_with_offsets(text)
        starts = [start for start, _ in offsets]
        found = []
        for word, (start, end) in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text):
            if word.isalpha() and word.lower() not in ENGLISH_STOP_WORDS:
                first, last = np.searchsorted(starts, [start, end])
                token = int(first) if last - first == 1 else None
                found.append(Word(word, start, end, token))
        return found

    def likeliest(self, asked: Sequence[tuple[str, int]], *, most: int) -> list[list[str]]:
        """Return the most likely replacements of a token, for each (text, index of a token).

        Empty for a token beyond the model's maximum length.
        """
        longest = self._model.config["positions"]
        rows = [self._masked(*one, longest=longest) for one in asked]
        found: list[list[str]] = []
        for some in _together(rows):
            tokens = self._predict(some, most=min(most, self._most), longest=longest)
            found += [
                [self._words[token] for token in row] if one else []
                for one, row in zip(some, tokens, strict=False)
            ]
        return found

    def _masked(self, text: str, place: int, *, longest: int) -> tuple[list[int], int] | None:
        """Return the masked text with special tokens and the mask's position, or None."""
        own = self._vocabulary
        ids = own.encode(text)[: longest - 2]
        if place >= len(ids):
            return None
        ids[place] = own.required_id("mask_id")
        return [own.required_id("cls_id"), *ids, own.required_id("sep_id")], place + 1

    def _predict(
        self, rows: Sequence[tuple[list[int], int] | None], *, most: int, longest: int
    ) -> np.ndarray:
        """Return the most likely tokens [B, most] at the masked positions."""
        sizes = [len(one[0]) for one in rows if one]
        # Use only a few row lengths, so that few programs are compiled.
        length = min(longest, -(-max(sizes, default=1) // 32) * 32)
        tokens, segments = np.zeros([2, _TOGETHER, length], np.int32)
        places = np.zeros([_TOGETHER, 1], np.int32)
        for number, one in enumerate(rows):
            if one:
                tokens[number, : len(one[0])], places[number] = one
                segments[number, : len(one[0])] = 1
        batch = {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": segments,
            "predicted_positions": places,
        }
        return np.asarray(self._likeliest(self._model.params, batch, most=most))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of algorithm 1.

    Attributes:
        copies, candidates, probability: N_a, K and p_t of the paper.
        seed: seed of the random choices.

    Raises:
        ValueError: a number is out of range.
    """

    copies: int = 20
    candidates: int = 15
    probability: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("copies", "candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}={getattr(self, name)} must be 1 or more")
        if not 0 < self.probability <= 1:
            raise ValueError(f"--probability={self.probability} must be above 0, and at most 1")


def augmented(
    rows: Iterable[Sequence[str]],
    masked: MaskedWords,
    vectors: word_vectors.WordVectors,
    settings: Settings,
) -> Iterator[list[tuple[str, ...]]]:
    """Yield the copies of each row, the row itself first.

    Args:
        rows: the texts of each row.
        masked, vectors: the sources of candidates.
    """
    for some in _together(rows):
        words = [[masked.words(text) for text in row] for row in some]
        asked = [
            (text, word.token)
            for row, of_row in zip(some, words, strict=True)
            for text, of_text in zip(row, of_row, strict=True)
            for word in of_text
            if word.token is not None
        ]
        likeliest = iter(masked.likeliest(asked, most=settings.candidates))

        def candidates(word: Word, likeliest: Iterator[list[str]] = likeliest) -> list[str]:
            if word.token is not None:
                return next(likeliest)
            return vectors.nearest(word.text, most=settings.candidates)

        for row, of_row in zip(some, words, strict=True):
            choices = [[(word, candidates(word)) for word in of_text] for of_text in of_row]
            yield _copies(row, choices, settings)


def _together(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the rows in lists of `_TOGETHER`."""
    left = iter(rows)
    while some := list(itertools.islice(left, _TOGETHER)):
        yield some


def _copies(
    row: Sequence[str], choices: Sequence[Sequence[tuple[Word, list[str]]]], settings: Settings
) -> list[tuple[str, ...]]:
    """Return the different copies of a row."""
    key = json.dumps([settings.seed, *row]).encode()
    draw = random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))
    found = {tuple(row): None}
    for _ in range(settings.copies):
        texts = (
            _replaced(text, of_text, draw, settings.probability)
            for text, of_text in zip(row, choices, strict=True)
        )
        found[tuple(texts)] = None
    return list(found)


def _replaced(
    text: str, choices: Sequence[tuple[Word, list[str]]], draw: random.Random, probability: float
) -> str:
    """Replace some words of a text; an upper-case first letter stays upper-case."""
    parts, done = [], 0
    for word, candidates in choices:
        if draw.random() < probability and candidates:
            new = draw.choice(candidates)
            parts += [text[done : word.start], new.title() if word.text.istitle() else new]
            done = word.end
    return "".join([*parts, text[done:]])


def read_masked_words(folder: str, vocabulary: str) -> MaskedWords:
    """Load the masked language model in a folder.

    Args:
        vocabulary: the file of its vocabulary; "" for the vocabulary of the run or the folder.

    Raises:
        ValueError: the model or vocabulary is missing, or the model does not predict masked tokens.
    """
    from t5x_like.experiment import completion, recipes, run
    from t5x_like.pretrained import from_pretrained

    config = recipes.fine_tuning("")
    config.initialize, config.data.vocabulary = folder, vocabulary
    [part] = completion.complete(run.of_config(config)).parts
    if part.model.get("head") not in _HEADS or "positions" not in part.model:
        raise ValueError(
            f"--model={folder}: an encoder with a head of masked tokens is needed, and this is a "
            f"{part.system} with the head {part.model.get('head')!r}: give the model as it was "
            "pretrained"
        )
    model = from_pretrained(folder, head="masked_lm")
    return MaskedWords(model, part.text.vocabulary)


def augment_files(
    files: Sequence[str],
    output: str,
    *,
    fields: Sequence[str],
    masked: MaskedWords,
    vectors: word_vectors.WordVectors,
    settings: Settings,
) -> dict[str, int]:
    """Write the rows of files with their copies into a folder.

    Args:
        fields: the fields with the texts to augment.

    Returns:
        Counts of rows `read` and `written`.

    Raises:
        ValueError: a row lacks a text.
    """
    counts = {"read": 0, "written": 0}
    with json_lines.Writer(output, files) as writer:
        read, again = itertools.tee(json_lines.rows(files))
        texts = (tuple(_text(row, field) for field in fields) for row in read)
        for copies, row in zip(augmented(texts, masked, vectors, settings), again, strict=True):
            counts["read"] += 1
            counts["written"] += len(copies)
            for copy in copies:
                writer.write(row.path, {**row.row, **dict(zip(fields, copy, strict=True))})
    return counts


def _text(row: json_lines.Row, field: str) -> str:
    if not isinstance(row.row.get(field), str):
        raise ValueError(f"{row.where}: there is no string {field!r}.{hint(field, row.row)}")
    return row.row[field]


def _parser() -> argparse.ArgumentParser:
    parser = json_lines.parser("data.generators.augment", __doc__)
    parser.add_argument("--second_text", metavar="FIELD", help="of pairs, to augment as well")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="of masked tokens")
    parser.add_argument("--vocabulary", default="", metavar="FILE", help="(the model's)")
    parser.add_argument("--corpus", nargs="+", metavar="FILES", help="for vectors (--input)")
    parser.add_argument("--dimensions", type=int, default=100, help="of a word vector (100)")
    parser.add_argument("--copies", type=int, default=20, help="of a row (20)")
    parser.add_argument("--candidates", type=int, default=15, help="for a word (15)")
    parser.add_argument("--probability", type=float, default=0.4, help="to replace a word (0.4)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    given = _parser().parse_args(arguments)
    with one_line_errors():
        settings = Settings(
            copies=given.copies,
            candidates=given.candidates,
            probability=given.probability,
            seed=given.seed,
        )
        files = json_lines.find("--input", given.input)
        fields = [given.text, *([given.second_text] if given.second_text else [])]
        corpus = files if given.corpus is None else json_lines.find("--corpus", given.corpus)
        masked = read_masked_words(given.model, given.vocabulary)
        texts = (
            _text(row, field)
            for row in json_lines.rows(corpus)
            for field in fields
            if given.corpus is None or field in row.row
        )
        vectors = word_vectors.train(texts, dimensions=given.dimensions)
        found = augment_files(
            files,
            given.output,
            fields=fields,
            masked=masked,
            vectors=vectors,
            settings=settings,
        )
        sys.stdout.write(f"wrote {found['written']:,} rows of {found['read']:,}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
