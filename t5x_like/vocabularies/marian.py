"""Marian's tokenizer: a SentencePiece model for each language, with shared ids.

The folders of OPUS-MT (Tiedemann and Thottingal 2020) have source.spm, target.spm, and vocab.json
with the ids of the pieces of both. Inputs are tokenized by the first model, outputs by the second.
No token marks the start of a text; the decoder's inputs begin with padding, the last id.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence

import sentencepiece
from tokenizers import AddedToken

from t5x_like.vocabularies.added_tokens import AddedTokens
from t5x_like.vocabularies.base import Vocabulary

SOURCE, TARGET = "source.spm", "target.spm"
_END, _UNKNOWN, _PADDING = "</s>", "<unk>", "<pad>"
_SPECIAL = (_END, _UNKNOWN, _PADDING)
_LANGUAGE = re.compile(">>.*?<<", re.DOTALL)  # the target language, at the beginning of an input
_BLANK = "\u2581"


class MarianVocabulary(Vocabulary):
    """The pieces of two languages; the name of a special token in a text becomes that token.

    Args:
        ids: {piece: id}, from vocab.json.
        source, target: the contents of the two models.
        added: {id: token} of tokens that were added to the vocabulary.

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
        _load(target, TARGET)  # raises an error now if the file is damaged
        self.suffix_ids = (ids[_END],)
        self.pad_id, self.eos_id, self.unk_id = ids[_PADDING], ids[_END], ids[_UNKNOWN]
        special = {ids[name]: AddedToken(name, special=True) for name in _SPECIAL}
        self._folder_tokens = added or {}
        self._added = AddedTokens({**special, **self._folder_tokens})
        self._lookup = {**ids, **self._added.ids}  # an added token may also be a piece
        self._pieces = {number: piece for piece, number in ids.items()} | self._added.texts
        flagged = (number for number, token in self._folder_tokens.items() if token.special)
        self.special_ids = tuple(sorted({*special, *flagged}))
        added_contents = [self._added.contents] if self._folder_tokens else []
        contents = b"\0".join(
            (json.dumps(ids, sort_keys=True).encode(), *added_contents, source, target)
        )
        super().__init__(vocab_size=max(self._pieces) + 1, contents=contents)

    @functools.cached_property
    def targets(self) -> Vocabulary:
        """The vocabulary with the same ids that tokenizes every text with the target's model."""
        models = {"source": self._target, "target": self._target}
        return MarianVocabulary(self._ids, **models, added=self._folder_tokens)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text in the source language; a leading `>>xxx<<` is one token."""
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

    def _until_end(self, ids: list[int]) -> list[int]:
        return ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text, in either language.

        A blank follows each special token, as in Hugging Face's tokenizer.
        """
        text, begins = "", True
        for number in ids:
            piece = self._pieces.get(number, _UNKNOWN)
            is_special = number in self.special_ids
            text += f"{piece} " if is_special else piece.removeprefix(_BLANK) if begins else piece
            begins = is_special
        return text.replace(_BLANK, " ").strip()

    def piece(self, token: int) -> str:
        """Return the piece in vocab.json, or the added token's text."""
        return self._pieces.get(token, _UNKNOWN)


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(f"{name} beside it is not a SentencePiece model.") from error
