"""Write the tokenizer of a model into a folder in Hugging Face's format.

The files of such a folder are copied unchanged. For other vocabularies, such as those that
`python -m t5x_like.vocabulary` trains, tokenizer.json of the library `tokenizers` is written with
the same ids, and tokenizer_config.json, which names the class that uses it as it is: the classes of
BERT, T5 and others have rules of their own.
"""

import dataclasses
import fnmatch
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from t5x_like import hub, paths
from t5x_like.paths import Path
from t5x_like.vocabularies import files
from t5x_like.vocabularies.albert_pieces import AlbertPieces
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.byte_tokens import TOKENIZER_CLASS, ByteTokens
from t5x_like.vocabularies.hugging_face import exact_pieces
from t5x_like.vocabularies.hugging_face.folder_vocabulary import FolderVocabulary
from t5x_like.vocabularies.hugging_face.tokenizer_files import SETTINGS, TOKENIZER, TokenizerFiles
from t5x_like.vocabularies.marian import MarianVocabulary
from t5x_like.vocabularies.sentence_piece import Bytes, LosslessSentencePiece, SentencePiece
from t5x_like.vocabularies.tokenizer import TokenizerVocabulary

# The class of transformers that uses tokenizer.json as it is.
AS_WRITTEN = "PreTrainedTokenizerFast"
_SETTINGS = (TOKENIZER, SETTINGS, "special_tokens_map.json", "added_tokens.json")
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TYPES = "token_type_ids"
_INPUTS = ["input_ids", _TYPES, "attention_mask"]
_PROBES = (
    "The quick brown fox, don't: (12,345.67) = 3e-4!",
    "  several   blanks  ",
    "Cr\u00e8me br\u00fbl\u00e9e, cafe\u0301, \u0130stanbul, Stra\u00dfe",
    "\u5317\u4eac \uc11c\uc6b8 \u041c\u0438\u0440 \u05e2\u05d1 \u0939\u093f\u0928",
    "emoji \U0001f600\U0001f1e9\U0001f1ea \u00bd \ufb01",
    "tabs\tand\nlines\r\n  indented",
)


@dataclasses.dataclass(frozen=True)
class Network:
    """What a tokenizer's files depend on, apart from the vocabulary.

    Attributes:
        config: the config.json of the network's folder.
        encodes: whether the network has an encoder, which reads a text up to its end token.
        length: the number of tokens that the network has positions for; None if not limited.
    """

    config: Mapping[str, Any]
    encodes: bool
    length: int | None = None


def _has_token_types(network: Network) -> bool:
    """Return whether a network reads token types; the config of XLNet's does not count them."""
    kind, types = (network.config.get(name) for name in ("model_type", "type_vocab_size"))
    return kind == "xlnet" or (types or 0) > 1


def save(spec: str, folder: pathlib.Path, network: Network) -> None:
    """Write the tokenizer of a vocabulary; remove other files that would change how it is read.

    Args:
        spec: the vocabulary, see `vocabularies.load`.
        folder: the folder that has the network.

    Raises:
        ValueError: the vocabulary cannot be read, it is in the same folder, or transformers has no
            tokenizer with its ids. Then nothing is written.
    """
    path = files.find(spec) if hub.names(spec) else paths.path(spec)
    if path.is_dir() and "model_type" in TokenizerFiles(path).model:
        content = _copies(path, network)
    else:
        vocabulary = files.load(spec)
        content = _copied(vocabulary, path, network) or _new(vocabulary, path, folder, network)
    for name in _SETTINGS if content else ():
        if name not in content:
            (folder / name).unlink(missing_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)


def _copied(vocabulary: Vocabulary, path: Path, network: Network) -> dict[str, bytes]:
    """Return the files of a tokenizer's folder; {} for a vocabulary that has no such folder."""
    of_folder = isinstance(vocabulary, FolderVocabulary) and path.is_dir()
    if of_folder or isinstance(vocabulary, MarianVocabulary | ByteTokens):
        return _copies(path if path.is_dir() else path.parent, network)
    return {}


def _copies(folder: Path, network: Network) -> dict[str, bytes]:
    content = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, name) for name in hub.TOKENIZER)
    }
    if content and _has_token_types(network):
        # The classes of ALBERT and XLNet in transformers 5 return none unless they are asked to.
        settings = {"model_input_names": _INPUTS} | json.loads(content.get(SETTINGS, b"{}"))
        content[SETTINGS] = _json(settings)
    return content


def _new(
    vocabulary: Vocabulary, path: Path, folder: pathlib.Path, network: Network
) -> dict[str, bytes]:
    """Return new files for the vocabulary in a file, after checking their ids."""
    if path.exists() and folder.resolve() in (path.resolve(), path.parent.resolve()):
        raise ValueError(f"the folder has the vocabulary {str(path)!r}: choose another folder.")
    content = _tokenizer_files(vocabulary, network)
    _check(vocabulary, content, network)
    return content


def _tokenizer_files(vocabulary: Vocabulary, network: Network) -> dict[str, bytes]:
    settings: dict[str, Any] = {"model_max_length": network.length} if network.length else {}
    if isinstance(vocabulary, Bytes) and network.encodes:
        # This class has no other file. It ends every text with </s>, which a decoder must not read.
        sentinels = _sentinels(vocabulary)
        settings |= {"tokenizer_class": TOKENIZER_CLASS, "extra_ids": len(sentinels)}
        settings |= {"additional_special_tokens": sentinels} if sentinels else {}
        return {SETTINGS: _json(settings)}
    make = next((make for kind, make in _KINDS.items() if isinstance(vocabulary, kind)), None)
    if make is None:
        raise ValueError(f"transformers has no tokenizer for the vocabulary {vocabulary}.")
    tokenizer = make(vocabulary)
    names = _names(vocabulary, tokenizer)
    if tokenizer.post_processor is None:
        tokenizer.post_processor = _frame(vocabulary, tokenizer, encodes=network.encodes)
    inputs = [name for name in _INPUTS if name != _TYPES or _has_token_types(network)]
    settings |= {
        "tokenizer_class": AS_WRITTEN,
        "clean_up_tokenization_spaces": getattr(vocabulary, "cleans", False),
        "model_input_names": inputs,
        **{f"{role}_token": name for role, name in names.items()},
    }
    sentinels = _sentinels(vocabulary)
    if sentinels:
        settings |= {"extra_ids": len(sentinels), "additional_special_tokens": sentinels}
    return {TOKENIZER: tokenizer.to_str().encode(), SETTINGS: _json(settings)}


def _json(settings: Mapping[str, Any]) -> bytes:
    return (json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _sentinels(vocabulary: Vocabulary) -> list[str]:
    """Return the names of the sentinels in the order of their ids, the first one last."""
    return [f"<extra_id_{number}>" for number in reversed(range(vocabulary.extra_ids))]


def _names(vocabulary: Vocabulary, tokenizer: tokenizers.Tokenizer) -> dict[str, str]:
    """Return the texts of the special tokens, by names such as "eos"."""
    ids = {role: getattr(vocabulary, f"{role}_id") for role in _NAMED}
    ids["pad"] = vocabulary.padding_id
    names = {
        role: tokenizer.id_to_token(number) for role, number in ids.items() if number is not None
    }
    return {role: text for role, text in names.items() if text is not None}


def _frame(vocabulary: Vocabulary, tokenizer: tokenizers.Tokenizer, *, encodes: bool) -> Any:
    """Return the post-processor that puts the special tokens around a text that the network reads.

    A decoder reads the token that begins a text, but no end token, before it continues the text.
    """
    before, after = vocabulary.prefix_ids, vocabulary.suffix_ids
    if not encodes:
        begins = vocabulary.mask_id is None and vocabulary.bos_id is not None
        before, after = (vocabulary.required_id("bos_id"),) if begins else (), ()
    elif not before and not after and vocabulary.eos_id is not None:
        after = (vocabulary.eos_id,)
    first, last = ([tokenizer.id_to_token(number) for number in ids] for ids in (before, after))
    pair = [*first, "$A", *last, *(f"{token}:1" for token in ("$B", *last))]
    single = [*first, "$A", *last]
    if vocabulary.class_last:  # XLNet's <sep> and <cls>
        separator, end = last
        single = ["$A", separator, f"{end}:2"]
        pair = ["$A", separator, "$B:1", f"{separator}:1", f"{end}:2"]
    return processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=list(zip([*first, *last], [*before, *after], strict=True)),
    )


def _of_tokenizer(vocabulary: TokenizerVocabulary) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(vocabulary.tokenizer.to_str())


def _of_sentence_piece(vocabulary: SentencePiece) -> tokenizers.Tokenizer:
    return exact_pieces.make(_proto(vocabulary.model), sentinels=vocabulary.extra_ids)


def _of_lossless(vocabulary: LosslessSentencePiece) -> tokenizers.Tokenizer:
    return exact_pieces.make(_proto(vocabulary.model))


def _of_albert(vocabulary: AlbertPieces) -> tokenizers.Tokenizer:
    text = vocabulary.prepare
    letters = exact_pieces.plain_letters(keep_accents=text.keep_accents, lower_case=text.lower_case)
    tokenizer = exact_pieces.make(_proto(vocabulary.model), prepare=letters)
    names = [name for name in vocabulary.special_tokens if name.startswith("[")]
    blanks = [
        decoders.Replace(tokenizers.Regex(rf"\A{re.escape(name)}\z"), f" {name}") for name in names
    ]
    tokenizer.decoder = decoders.Sequence([*blanks, tokenizer.decoder])
    return tokenizer


def _proto(model: bytes) -> Any:
    return sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]


def _of_bytes(vocabulary: Bytes) -> tokenizers.Tokenizer:
    special = ["<pad>", "</s>", "<unk>"]
    ids = {name: number for number, name in enumerate(special)}
    ids |= {letter: vocabulary.first + byte for byte, letter in enumerate(_byte_letters())}
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [*special, *_sentinels(vocabulary)]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def _byte_letters() -> Sequence[str]:
    """Return the letters that stand for the bytes 0 to 255 in byte-level vocabularies."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_KINDS: Mapping[type[Vocabulary], Callable[[Any], tokenizers.Tokenizer]] = {
    TokenizerVocabulary: _of_tokenizer,
    SentencePiece: _of_sentence_piece,
    LosslessSentencePiece: _of_lossless,
    AlbertPieces: _of_albert,
    Bytes: _of_bytes,
}


def _check(vocabulary: Vocabulary, content: Mapping[str, bytes], network: Network) -> None:
    """Check that the files are read with the ids of the vocabulary.

    Raises:
        ValueError: they are not.
    """
    with tempfile.TemporaryDirectory() as name:
        for file, data in {**content, "config.json": _json(network.config)}.items():
            pathlib.Path(name, file).write_bytes(data)
        written = files.load(name)
    texts = (text for text in _PROBES if written.encode(text) != vocabulary.encode(text))
    wrong = next(texts, None)
    if wrong is not None:
        kind = network.config.get("model_type")
        raise ValueError(
            f"transformers would read {wrong!r} with other ids, in a folder with "
            f"model_type={kind!r}."
        )
