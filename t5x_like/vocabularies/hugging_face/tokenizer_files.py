"""The files of a folder that define its tokenizer, and the settings and tokens in them.

The JSON files are read once.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken

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
        return {
            **self.model,
            **{name: value for name, value in stored.items() if value is not None},
        }

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
        """Return the first of the files that the folder has; "" if it has none."""
        return next((file for name in names if (file := self._name(name))), "")

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
        ids = self._object(name)
        wrong = [piece for piece, number in ids.items() if type(number) is not int or number < 0]
        if wrong:
            raise ValueError(f"{name} has {wrong[0]!r}: {ids[wrong[0]]!r}; allowed: an id.")
        return ids

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


Token = str | AddedToken
NAMED = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclasses.dataclass
class TokenSettings:
    """The settings of a folder about its tokens.

    Attributes:
        arguments: the settings of the tokenizer's class, including special tokens by their names.
        added: {id: added token}.
        others: {name: special token} for names that are not in `NAMED`.
    """

    arguments: dict[str, Any]
    added: dict[int, AddedToken]
    others: dict[str, Token]

    def extra(self, additional: Sequence[Token] | None) -> list[Token]:
        """Return the special tokens without a name: the folder's, or otherwise `additional`."""
        extra = self.arguments.get(_EXTRA, additional)
        if extra is not None and not isinstance(extra, Sequence):
            raise ValueError(f"has {_EXTRA}={extra!r:.80}; allowed: a list of tokens.")
        return list(extra or ())

    def with_extra(self, *, first: int, known: Collection[str]) -> dict[int, AddedToken]:
        """Return the added tokens, and the special tokens without an id, which get new ids.

        Args:
            first: the first new id.
            known: the texts that have ids in the vocabulary.
        """
        texts = {*map(str, self.added.values()), *known}
        named = [self.arguments[key] for key in NAMED if self.arguments.get(key)]
        every = [*named, *self.others.values(), *self.extra(self.additional)]
        new = {str(token): token for token in every if str(token) not in texts}
        return self.added | {
            number: AddedToken(token, special=True) if isinstance(token, str) else token
            for number, token in enumerate(new.values(), start=first)
        }

    def named_ids(self, tokens: Mapping[int, AddedToken]) -> dict[str, int]:
        """Return the ids of the named tokens among added tokens, by names such as "mask_id"."""
        ids = {str(token): number for number, token in tokens.items()}
        numbers = {key: ids.get(str(self.arguments.get(key))) for key in NAMED}
        return {
            key.replace("token", "id"): number
            for key, number in numbers.items()
            if number is not None
        }

    @property
    def additional(self) -> list[Token] | None:
        """`additional_special_tokens`, if `extra_special_tokens` is also set; otherwise None."""
        return self.arguments.get(_ADDITIONAL)


def read_settings(files: TokenizerFiles) -> TokenSettings:
    """Read the settings of a folder's tokenizer.

    Raises:
        ValueError: a token is neither a string nor an object with its text, or an id is not a
            number.
    """
    arguments = {key: _token(key, value) for key, value in files.settings.items()}
    if files.has("tokenizer.json"):  # its post-processor decides instead
        arguments = {
            key: value
            for key, value in arguments.items()
            if key not in ("add_bos_token", "add_eos_token")
        }
    if _ADDITIONAL in arguments and not arguments.get(_EXTRA):
        arguments[_EXTRA] = arguments.pop(_ADDITIONAL)
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in arguments:
        added = _decoder(arguments.pop("added_tokens_decoder"))
    else:
        arguments |= _special(files, arguments)
        added = _from_files(files, arguments)
    others = _take_others(arguments)
    by_name = {str(token): token for token in added.values()}
    for key in NAMED:
        if arguments.get(key) is not None:
            arguments[key] = by_name.get(str(arguments[key]), arguments[key])
    return TokenSettings(arguments, added, others)


def _token(key: str, value: Any) -> Any:
    """Convert the tokens in a setting, which are objects in JSON, to `AddedToken`s."""
    if key == "added_tokens_decoder":
        return value
    if isinstance(value, list):
        return [_token(key, token) for token in value]
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        return _added_token(value, special=bool(value.get("special", True)))
    if key in NAMED and not isinstance(value, str | None):
        raise ValueError(f"has {key}={value!r:.80}; allowed: a text, or an object with `content`.")
    if isinstance(value, Mapping) and key == _EXTRA:
        return {name: _token(name, token) for name, token in value.items()}
    return value


def _added_token(value: Mapping[str, Any], *, special: bool) -> AddedToken:
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    return AddedToken(value["content"], **{**flags, "special": special})


def _decoder(stored: Any) -> dict[int, AddedToken]:
    if not isinstance(stored, Mapping):
        raise ValueError(f"has added_tokens_decoder={stored!r:.80}; allowed: an object.")
    added = {}
    for number, value in stored.items():
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise ValueError(f"has the added token {number!r}: {value!r:.80} without `content`.")
        if not str(number).isdecimal():
            raise ValueError(f"has an added token with the id {number!r}; allowed: an integer.")
        added[int(number)] = _added_token(value, special=bool(value.get("special", False)))
    return added


def _special(files: TokenizerFiles, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in special_tokens_map.json."""
    settings: dict[str, Any] = {}
    for key, value in files.special.items():
        if key == _EXTRA and isinstance(value, list):
            known = list(arguments.get(_EXTRA) or ())
            settings[key] = known + [token for token in _token(key, value) if token not in known]
        else:
            settings[key] = _token(key, value)
    return settings


def _from_files(files: TokenizerFiles, arguments: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens in added_tokens.json and tokenizer.json, by id."""
    special = {str(arguments[key]) for key in NAMED if arguments.get(key)}
    extra = arguments.get(_EXTRA) or ()
    special |= {str(token) for token in (extra.values() if isinstance(extra, Mapping) else extra)}
    added = {
        number: AddedToken(text, normalized=text not in special, special=text in special)
        for text, number in files.added.items()
    }
    for entry in files.tokenizer.get("added_tokens", ()):
        added[entry["id"]] = _added_token(entry, special=bool(entry.get("special", False)))
    return added


def _take_others(arguments: dict[str, Any]) -> dict[str, Token]:
    """Remove special tokens with other names from the settings, and return them."""
    others = {
        key: arguments.pop(key)
        for key in list(arguments)
        if key.endswith("_token")
        and key not in NAMED
        and isinstance(arguments[key], str | AddedToken)
    }
    if isinstance(arguments.get(_EXTRA), Mapping):
        others |= arguments.pop(_EXTRA)
    return others
