"""The files of a folder that define its tokenizer; the JSON files are read once."""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from t5x_like.paths import Path
from t5x_like.vocabularies.hugging_face import tokenizer_checks

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_SPECIAL, _ADDED = "special_tokens_map.json", "added_tokens.json"
_MODEL, _GENERATION = "config.json", "generation_config.json"


class TokenizerFiles:
    """The tokenizer's files of a folder in Hugging Face's format.

    Args:
        folder: the folder.
        only: the name of the vocabulary file that the user named; "" to use any.
    """

    def __init__(self, folder: Path, *, only: str = ""):
        self.folder, self._only = folder, only

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """tokenizer_config.json; empty without the file, like the following properties."""
        return self._object(SETTINGS)

    @functools.cached_property
    def special(self) -> Mapping[str, Any]:
        """special_tokens_map.json: the names of the special tokens, in folders from before 2023."""
        return self._object(_SPECIAL)

    @functools.cached_property
    def added(self) -> Mapping[str, int]:
        """added_tokens.json: the ids of tokens that the vocabulary file lacks."""
        return self._object(_ADDED)

    @functools.cached_property
    def model(self) -> Mapping[str, Any]:
        """config.json, the settings of the network."""
        return self._object(_MODEL)

    @functools.cached_property
    def generation(self) -> Mapping[str, Any]:
        """generation_config.json, with settings of config.json for settings that it lacks."""
        stored = self._object(_GENERATION)
        return {**self.model, **{name: one for name, one in stored.items() if one is not None}}

    @functools.cached_property
    def tokenizer(self) -> Mapping[str, Any]:
        """tokenizer.json.

        Raises:
            ValueError: it is damaged.
        """
        if not self.has(TOKENIZER):
            return {}
        content = self._object(TOKENIZER)
        tokenizer_checks.check(content)
        return content

    def has(self, name: str) -> bool:
        """Return whether the folder has a vocabulary file, and the user did not name another."""
        return self._name(name) is not None

    def find(self, *names: str) -> str:
        """Return the first of the files that the folder has; "" if it has none of them."""
        return next((found for name in names if (found := self._name(name))), "")

    def text(self, name: str) -> str:
        """Read the text of a file.

        Raises:
            ValueError: it is not UTF-8.
        """
        path = self.folder / name
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{os.fspath(path)!r} is not UTF-8 text: {error}.") from error

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a file; other line separators, such as U+2028, may be pieces."""
        text = self.text(name).replace("\r\n", "\n").removesuffix("\n")
        return iter(text.split("\n"))

    def ids(self, name: str) -> dict[str, int]:
        """Read {piece: id} from a vocab.json.

        Raises:
            ValueError: it is not a JSON object of integers.
        """
        found = self._object(name)
        wrong = [piece for piece, number in found.items() if type(number) is not int or number < 0]
        if wrong:
            raise ValueError(f"{name} has {wrong[0]!r}: {found[wrong[0]]!r}; allowed: an id.")
        return found

    def sentence_piece(self, name: str) -> Any:
        """Read a SentencePiece model, and return its ModelProto.

        Raises:
            ValueError: it is not such a model.
        """
        content = (self.folder / name).read_bytes()
        try:
            sentencepiece.SentencePieceProcessor(model_proto=content)
            return sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]
        except (DecodeError, RuntimeError) as error:
            raise ValueError(f"{name} is not a SentencePiece model.") from error

    def _name(self, name: str) -> str | None:
        """Return the name if the file may be used and exists: the user may have named another."""
        if not self._only:
            return name if (self.folder / name).exists() else None
        partner = "merges.txt" if self._only == "vocab.json" else self._only
        return name if name in (self._only, partner) and (self.folder / name).exists() else None

    def _object(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.exists():
            return {}
        try:
            content = json.loads(self.text(name))
        except RecursionError as error:
            raise ValueError(f"{os.fspath(path)!r} is nested too deeply.") from error
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r} is not valid JSON: {error}.") from error
        if not isinstance(content, dict):
            raise ValueError(f"{os.fspath(path)!r} is not a JSON object.")
        return content
