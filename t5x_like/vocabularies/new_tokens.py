"""Add tokens to the tokenizer of a folder in Hugging Face's format, such as GPT-2's <summarize>.

A new token is found in a text before the text is split into pieces, and is one id wherever it
stands. It is a special token: `decode(skip_special_tokens=True)` leaves it out, and no objective
corrupts it.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from t5x_like.vocabularies import files
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.hugging_face.folder_vocabulary import FolderVocabulary
from t5x_like.vocabularies.hugging_face.tokenizer_files import SETTINGS, TOKENIZER

_DECODER = "added_tokens_decoder"
_FLAGS = {
    "lstrip": False,
    "rstrip": False,
    "single_word": False,
    "normalized": False,
    "special": True,
}
_PROBE = "One 2\n\u00e9\u4e00 three"


def check(tokens: Sequence[str], vocabulary: Vocabulary) -> None:
    """Check that tokens can be added to a vocabulary.

    Raises:
        ValueError: a token is empty, has blanks at its ends, occurs twice, or is a token already.
    """
    special = {vocabulary.piece(number): number for number in vocabulary.special_ids}
    for token in tokens:
        if not token or token != token.strip():
            raise ValueError(f"the token {token!r} is empty or has blanks at its ends")
        if tokens.count(token) > 1:
            raise ValueError(f"the token {token!r} is given twice")
        ids = vocabulary.encode(token)
        is_known = len(ids) == 1 and ids[0] != vocabulary.unk_id
        if token in special or is_known:
            number = special.get(token, ids[0])
            raise ValueError(f"the vocabulary has the token {token!r} already, with id {number}")


def add(folder: pathlib.Path, tokens: Sequence[str]) -> int:
    """Add tokens to the tokenizer of a folder, as special tokens after its last id.

    Return the id of the first.

    tokenizer.json is written, with all tokens of the folder, and `added_tokens_decoder` of
    tokenizer_config.json too if it exists, because transformers prefers it.

    Raises:
        ValueError: see `check`; the folder has no tokenizer, or one without a tokenizer.json
            (ByT5's, Marian's); or the written folder would be read with other ids.
    """
    vocabulary = files.load(folder)
    check(tokens, vocabulary)
    if not isinstance(vocabulary, FolderVocabulary):
        raise ValueError(f"tokens cannot be added to {vocabulary}: its class has no {TOKENIZER}")
    ids = {token: vocabulary.vocab_size + n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken(token, **_FLAGS) for token in tokens])
    content = {TOKENIZER: _with_padding(tokenizer, folder)}
    settings = _object(folder / SETTINGS)
    if _DECODER in settings:
        added = tokenizer.get_added_tokens_decoder()
        settings[_DECODER] = {str(number): _entry(token) for number, token in added.items()}
        content[SETTINGS] = settings
    for name, value in content.items():
        text = json.dumps(value, indent=2, ensure_ascii=False)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    _check_written(folder, vocabulary, ids)
    return vocabulary.vocab_size


def _object(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _with_padding(tokenizer: Tokenizer, folder: pathlib.Path) -> dict[str, Any]:
    """Return tokenizer.json, with the padding and truncation that the folder's file has."""
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    stored = _object(folder / TOKENIZER)
    return content | {name: stored[name] for name in ("padding", "truncation") if name in stored}


def _entry(token: AddedToken) -> dict[str, Any]:
    return {"content": token.content, **{name: getattr(token, name) for name in _FLAGS}}


def _check_written(folder: pathlib.Path, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
    """Check that the folder is read with the old ids, and each new token as its id."""
    written = files.load(folder)
    encoded = {token: written.encode(token) for token in ids}
    if encoded != {token: [number] for token, number in ids.items()}:
        raise ValueError(f"the tokenizer would read the new tokens as {encoded}")
    if written.encode(_PROBE) != vocabulary.encode(_PROBE):
        raise ValueError(f"with the new tokens the tokenizer would read {_PROBE!r} differently")
