"""Marian's tokenizer: a SentencePiece model for each language, and ids that both share.

The folders of OPUS-MT (Tiedemann and Thottingal 2020) have source.spm, target.spm and vocab.json,
the ids of the pieces of both. An input is tokenized by the first model and an output by the second.
There is no token that begins a text; padding, the last id, begins the decoder's inputs.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping

import sentencepiece
from tokenizers import AddedToken

from t5x_like.vocabularies.added_tokens import AddedTokens
from t5x_like.vocabularies.base import Vocabulary, to_list

SOURCE, TARGET = "source.spm", "target.spm"
_END, _UNKNOWN, _PADDING = "</s>", "<unk>", "<pad>"
_SPECIAL = (_END, _UNKNOWN, _PADDING)
_LANGUAGE = re.compile(">>.*?<<", re.DOTALL)  # the target language, first in an input
_BLANK = "\u2581"


class MarianVocabulary(Vocabulary):
    """The pieces of two languages; the name of a special token in a text is that token.

    Args:
        ids: the id of each piece, from vocab.json.
        source, target: the contents of the two models.
        added: tokens that were added to the vocabulary, by id.

    Raises:
        ValueError: a special token is missing, an id is not a number, or a model cannot be read.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        source: bytes,
        target: bytes,
        added: Mapping[int, AddedToken] | None = None,
    ):
        if missing := {_END, _UNKNOWN, _PADDING} - set(ids):
            raise ValueError(f"has no {', '.join(sorted(missing))}, which Marian needs.")
        self._ids, self._target = ids, target
        self._model = _load(source, SOURCE)
        _load(target, TARGET)  # so that a damaged file is found at once
        self.suffix_ids = (ids[_END],)
        self.pad_id, self.eos_id, self.unk_id = ids[_PADDING], ids[_END], ids[_UNKNOWN]
        special = {ids[name]: AddedToken(name, special=True) for name in _SPECIAL}
        self._own = added or {}
        self._added = AddedTokens({**special, **self._own})
        self._lookup = {**ids, **self._added.ids}  # an added token may also be a piece
        self._pieces = {number: piece for piece, number in ids.items()} | self._added.texts
        flagged = (number for number, token in self._own.items() if token.special)
        self.special_ids = tuple(sorted({*special, *flagged}))
        own = [self._added.contents] if self._own else []
        contents = b"\0".join((json.dumps(ids, sort_keys=True).encode(), *own, source, target))
        super().__init__(vocab_size=max(self._pieces) + 1, contents=contents)

    @functools.cached_property
    def targets(self) -> Vocabulary:
        """The same ids, with the target's model for every text."""
        models = {"source": self._target, "target": self._target}
        return MarianVocabulary(self._ids, **models, added=self._own)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text of the source language; a leading `>>xxx<<` is one token."""
        ids: list[int] = []
        for part, token in self._added.split(text):
            if token is not None:
                ids.append(token)
                continue
            language = _LANGUAGE.match(part)
            pieces = [language.group()] if language else []
            pieces += self._model.EncodeAsPieces(part[language.end() if language else 0 :])
            ids += [self._lookup.get(piece, self._ids[_UNKNOWN]) for piece in pieces]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Detokenize ids of either language up to the first end of sequence.

        A blank follows each special token, as in Hugging Face's tokenizer.
        """
        kept = to_list(ids)
        kept = kept[: kept.index(self.eos_id)] if self.eos_id in kept else kept
        text, begins = "", True
        for one in kept:
            piece = self._pieces.get(one, _UNKNOWN)
            is_special = one in self.special_ids
            text += f"{piece} " if is_special else piece.removeprefix(_BLANK) if begins else piece
            begins = is_special
        return text.replace(_BLANK, " ").strip()

    def piece(self, token: int) -> str:
        """The piece as vocab.json has it."""
        return self._pieces.get(token, _UNKNOWN)


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(f"{name} beside it is not a SentencePiece model.") from error
