"""The vocabulary of a folder in Hugging Face's format: its tokenizer, and the ids that it names.

The tokenizer is resolved from all the files, like transformers 5.
"""

import base64
import dataclasses
import functools
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from t5x_like.vocabularies.hugging_face import sentence_pieces, tokenizer_class, tokenizer_files
from t5x_like.vocabularies.hugging_face.tokenizer_files import (
    NAMED,
    TOKENIZER,
    Token,
    TokenizerFiles,
    TokenSettings,
)
from t5x_like.vocabularies.hugging_face.tokenizer_recipes import Pieces, Recipe
from t5x_like.vocabularies.tokenizer import TokenizerVocabulary, as_value_errors

_SENTENCE_PIECE = "tokenizer.model"
_PROBE = "One 2\n\u00e9\u4e00\U0001f600 <s> [MASK] \ue000"


@dataclasses.dataclass(frozen=True)
class ResolvedTokenizer:
    """A tokenizer and its special tokens.

    Attributes:
        tokenizer: the tokenizer with all added tokens, and with the special tokens that it puts
            before and after a text.
        named: {name: text} of the special tokens, with names such as "eos_token".
        special: the texts of all special tokens.
        end: the piece that ends a text, for a class without an end token; otherwise "".
        cleans: whether decoding removes the blanks that WordPiece puts before punctuation.
    """

    tokenizer: tokenizers.Tokenizer
    named: Mapping[str, str]
    special: frozenset[str]
    end: str
    cleans: bool


def resolve(files: TokenizerFiles, name: str) -> ResolvedTokenizer:
    """Make the tokenizer of a folder.

    Args:
        name: its class, from `tokenizer_class.class_name`.

    Raises:
        ValueError: a file is missing or damaged, or a setting has a wrong value.
    """
    with as_value_errors("has a damaged tokenizer"):
        resolved = _resolve(files, name, tokenizer_class.recipe(files, name))
        # Some damage shows only in a text with characters that have no piece.
        resolved.tokenizer.encode(_PROBE)
    return resolved


def _resolve(files: TokenizerFiles, name: str, recipe: Recipe | None) -> ResolvedTokenizer:
    settings = tokenizer_files.read_settings(files)
    if recipe is None:
        tokenizer, class_tokens = _as_written(files, settings)
        extra = settings.extra(settings.additional)
        usual = tokenizer_class.RECIPES[name].named if name in tokenizer_class.RECIPES else {}
        ids = tokenizer.get_vocab()
        class_tokens = {
            **{key: token for key, token in usual.items() if str(token) in ids},
            **class_tokens,
        }
    else:
        tokenizer, extra = _by_recipe(files, settings, recipe)
        class_tokens = dict(recipe.named)
    folder_tokens = {key: settings.arguments[key] for key in NAMED if key in settings.arguments}
    named = {key: token for key in NAMED if (token := {**class_tokens, **folder_tokens}.get(key))}
    tokens = {**named, **settings.others}
    required = {*map(str, folder_tokens.values()), *map(str, settings.extra(settings.additional))}
    optional = {*map(str, class_tokens.values()), *map(str, extra)} - required
    _add(tokenizer, tokens, extra, settings, rows=files.model.get("vocab_size"), optional=optional)
    if name == "Qwen2" and recipe is not None:
        # This class adds them once more, without their flags.
        every = map(str, [*tokens.values(), *extra])
        tokenizer.add_tokens([AddedToken(token, special=True) for token in every])
    texts = {key: str(token) for key, token in tokens.items()}
    _frame(tokenizer, texts, settings, recipe, files=files)
    return ResolvedTokenizer(
        tokenizer,
        {key: texts[key] for key in named},
        frozenset([*texts.values(), *map(str, extra)]),
        end=recipe.end if recipe else "",
        cleans=bool(settings.arguments.get("clean_up_tokenization_spaces", False)),
    )


def _as_written(
    files: TokenizerFiles, settings: TokenSettings
) -> tuple[tokenizers.Tokenizer, dict[str, Token | None]]:
    """Read tokenizer.json, or a SentencePiece model, without the rules of a class."""
    if files.has(TOKENIZER):
        tokenizer = from_json(files)
        padding = tokenizer.padding
        return tokenizer, {"pad_token": padding["pad_token"]} if padding else {}
    if not files.has(_SENTENCE_PIECE):
        raise ValueError(f"has no {TOKENIZER} and no {_SENTENCE_PIECE}, which its class needs.")
    proto = files.sentence_piece(_SENTENCE_PIECE)
    prefix = proto.normalizer_spec.add_dummy_prefix
    if prefix:  # the parts between added tokens are tokenized separately
        settings.added = {number: _raw(token) for number, token in settings.added.items()}
    legacy = settings.arguments.get("legacy", True)
    renamed = {number: str(token) for number, token in settings.added.items()}
    tokenizer, special = sentence_pieces.as_written(proto, renamed=renamed, legacy=bool(legacy))
    tokens = sentence_pieces.pieces(proto, model="BPE").tokens or ()
    of_user = {piece.piece for piece in proto.pieces if piece.type == 4}
    settings.arguments["additional_special_tokens"] = [
        token for token in tokens if str(token) not in of_user
    ]
    return tokenizer, dict(special)


def from_json(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """Read the tokenizer of a tokenizer.json, after checking for damage that ends the process."""
    assert files.tokenizer  # reading it checks it
    return tokenizers.Tokenizer.from_str(files.text(TOKENIZER))


def _raw(token: AddedToken) -> AddedToken:
    """Copy a token so that it is found in a text before normalization."""
    flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "special")}
    return AddedToken(token.content, normalized=False, **flags)


def _by_recipe(
    files: TokenizerFiles, settings: TokenSettings, recipe: Recipe
) -> tuple[tokenizers.Tokenizer, list[Token]]:
    """Make the tokenizer of a class; return it with its special tokens without a name."""
    pieces, additional = _pieces(files, recipe), settings.additional
    if pieces.tokens is not None:
        additional = list(pieces.tokens)
        if recipe.model == "Unigram":
            scores = recipe.reorder(pieces.scores, settings.arguments)
            pieces = dataclasses.replace(pieces, vocabulary=scores)
    tokenizer = recipe.make(pieces, settings.arguments)
    return tokenizer, settings.extra(recipe.additional(additional, settings.arguments))


def _pieces(files: TokenizerFiles, recipe: Recipe) -> Pieces:
    if files.has(TOKENIZER):
        return _pieces_of_json(files.tokenizer)
    names = recipe.files if recipe.model != "Unigram" else (_SENTENCE_PIECE, *recipe.files)
    file = files.find(*names)
    if not file:
        kind = files.settings.get("tokenizer_class")
        raise ValueError(
            f"has tokenizer_class={kind!r}, whose vocabulary is in a file that the folder lacks: "
            f"{TOKENIZER} or {' and '.join(recipe.files)}."
        )
    if file.endswith(".model"):
        return sentence_pieces.pieces(files.sentence_piece(file), model=recipe.model)
    if file.endswith(".txt"):
        ids = {line.rstrip(): number for number, line in enumerate(files.lines(file))}
        return Pieces(ids)
    if not files.has("merges.txt"):
        raise ValueError(f"{file} needs the file {os.fspath(files.folder / 'merges.txt')!r}.")
    lines = [line for line in files.lines("merges.txt") if line and not line.startswith("#version")]
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    return Pieces(files.ids(file), merges)


def _pieces_of_json(content: Mapping[str, Any]) -> Pieces:
    """Return the pieces of a tokenizer.json."""
    model = content["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = [(piece, float(score)) for piece, score in vocabulary]
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    merges = [(first, second) for first, second in pairs]
    normalizer = content.get("normalizer") or {}
    parts = normalizer.get("normalizers", [normalizer])
    charsmaps = (part.get("precompiled_charsmap") for part in parts)
    charsmap = next((charsmap for charsmap in charsmaps if charsmap), "")
    unknown = model.get("unk_id")
    return Pieces(
        vocabulary,
        merges,
        charsmap=base64.b64decode(charsmap),
        stored_unknown=unknown if type(unknown) is int else None,
    )


def _add(
    tokenizer: tokenizers.Tokenizer,
    named: Mapping[str, Token],
    extra: Sequence[Token],
    settings: TokenSettings,
    *,
    rows: int | None,
    optional: Container[str],
) -> None:
    """Add the folder's tokens in the same order as transformers.

    Args:
        rows: the rows of the network's embedding table; None if config.json does not contain them.
        optional: the texts of tokens that only the class defines: they are not added if the table
            has no row for them.
    """
    present = tokenizer.get_added_tokens_decoder().values()
    known = {repr(token) for token in present}
    added: list[Token] = [
        token for _, token in sorted(settings.added.items()) if repr(token) not in known
    ]
    texts = {str(token) for token in (*present, *added)}
    for token in [*named.values(), *extra]:
        if str(token) in texts or token in added:  # tokens that differ only in flags are both added
            continue
        is_new = tokenizer.token_to_id(str(token)) is None
        is_full = isinstance(rows, int) and tokenizer.get_vocab_size() >= rows
        if not (is_new and is_full and str(token) in optional):
            added.append(token)
    special = {str(token) for token in named.values()}
    tokenizer.add_tokens([_marked(token, special) for token in added])


def _marked(token: Token, special: Container[str]) -> AddedToken:
    """Return the token as an `AddedToken`, marked special if it is a string or in `special`."""
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if str(token) in special:
        token.special = True
    return token


def _frame(
    tokenizer: tokenizers.Tokenizer,
    named: Mapping[str, str],
    settings: TokenSettings,
    recipe: Recipe | None,
    *,
    files: TokenizerFiles,
) -> None:
    """Set the special tokens that the tokenizer puts before and after a text."""
    flagged = {"add_bos_token", "add_eos_token"} & settings.arguments.keys()
    template, yields = (recipe.template, recipe.yields) if recipe else (None, True)
    if (
        recipe is not None
        and (template is None or yields)
        and files.tokenizer.get("post_processor")
    ):
        tokenizer.post_processor = from_json(files).post_processor
    has_processor = tokenizer.post_processor is not None
    if template is not None and not (yields and (flagged or has_processor)):
        before, after = template(named, settings.arguments)
    elif has_processor and not flagged:
        return
    else:
        flags = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
        before, after = (
            [named[key]] if key in named and settings.arguments.get(flag) else []
            for key, flag in flags.items()
        )
    numbers = {token: tokenizer.token_to_id(token) for token in [*before, *after]}
    ids = {token: number for token, number in numbers.items() if number is not None}
    before, after = ([token for token in tokens if token in ids] for tokens in (before, after))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=list(ids.items())
    )


_CLEANED = {
    **{f" {mark}": mark for mark in ".?!,"},
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}


class FolderVocabulary(TokenizerVocabulary):
    """The vocabulary of a folder's tokenizer.

    Attributes:
        cleans: whether decoding removes the blanks that WordPiece puts before punctuation.

    Args:
        resolved: the tokenizer and its special tokens.
        generation: generation_config.json, with settings of config.json for settings that it lacks.
        name: the class of the tokenizer.
    """

    def __init__(self, resolved: ResolvedTokenizer, *, generation: Mapping[str, Any], name: str):
        tokenizer, self.cleans = resolved.tokenizer, resolved.cleans
        recipe = tokenizer_class.RECIPES.get(name)
        self._word = recipe.begins_word if recipe else None
        ids = _ids(resolved, generation)
        self._padding = ids["pad"]
        super().__init__(
            tokenizer,
            special_tokens=resolved.special,
            decides=json.dumps([ids, self.cleans]).encode(),
        )
        self.special_ids = tuple(sorted({*self.special_ids, *self._flagged}))
        self.bos_id, self.eos_id = ids["bos"], ids["eos"]
        self.unk_id, self.sep_id = ids["unk"], ids["sep"]
        self.cls_id, self.mask_id = ids["cls"], ids["mask"]
        self._start = ids["start"]
        self.prefix_ids, self.suffix_ids = _frame_ids(tokenizer)
        first, self.extra_ids = _sentinels(tokenizer.get_vocab())
        self._first_sentinel = self.vocab_size - 1 if first is None else first

    @property
    def padding_id(self) -> int | None:
        """The id of the padding token; None if the folder has none, and `pad_id` is 0."""
        return self._padding

    @property
    def start_id(self) -> int:
        """The folder's decoder start token, or otherwise the token that begins a text."""
        return self.pad_id if self._start is None else self._start

    @property
    def first_sentinel(self) -> int:
        """The id of <extra_id_0>, or the last id if the vocabulary lacks this token."""
        return self._first_sentinel

    def _begins_word(self, piece: str) -> bool:
        return self._word(piece) if self._word else super()._begins_word(piece)

    def _decode(self, ids: Sequence[int]) -> str:
        text = super()._decode(ids)
        if self.cleans and not self.is_bpe:
            for written, clean in _CLEANED.items():
                text = text.replace(written, clean)
        return text


def load(files: TokenizerFiles, name: str) -> FolderVocabulary:
    """Load the vocabulary of a folder.

    Args:
        name: the class of its tokenizer, from `tokenizer_class.class_name`.

    Raises:
        ValueError: a file is missing or damaged, or a setting has a wrong value.
    """
    return FolderVocabulary(resolve(files, name), generation=files.generation, name=name)


def _ids(resolved: ResolvedTokenizer, generation: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the ids of the special tokens, and of the token that a decoder reads first."""
    named = {
        key.removesuffix("_token"): resolved.tokenizer.token_to_id(text)
        for key, text in resolved.named.items()
    }

    def first(*candidates: int | None) -> int | None:
        return next((number for number in candidates if number is not None), None)

    def stored(name: str) -> int | None:
        number = generation.get(f"{name}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        return number if type(number) is int and number >= 0 else None

    end = resolved.tokenizer.token_to_id(resolved.end) if resolved.end else None
    eos = first(named.get("eos"), named.get("sep"), stored("eos"), end)
    before, _ = _frame_ids(resolved.tokenizer)
    bos = first(
        named.get("bos"), named.get("cls"), *before
    )  # LLaMA 3 may have it only in the template
    pad = first(named.get("pad"), stored("pad"), eos)
    ids = {name: named.get(name) for name in ("unk", "sep", "cls", "mask")}
    # Without config.json: BART's decoder begins with its end token, T5's with padding, LLaMA's
    # with <s>.
    encodes_marks = ids["mask"] is not None and ids["cls"] is not None
    otherwise = eos if encodes_marks else first(bos, stored("bos"), pad, eos)
    start = None
    if generation.get("is_encoder_decoder", stored("decoder_start") not in (None, 0)):
        start = first(stored("decoder_start"), stored("bos"), pad)
    return {**ids, "bos": bos, "eos": eos, "pad": pad, "start": first(start, otherwise)}


def _frame_ids(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the tokenizer puts before and after a text."""
    for probe in ("a", "0", ".", "\u2581", "A"):
        bare = tokenizer.encode(probe, add_special_tokens=False).ids
        if bare:
            framed = tokenizer.encode(probe, add_special_tokens=True)
            marks = framed.special_tokens_mask
            first = marks.index(0) if 0 in marks else 0
            return tuple(framed.ids[:first]), tuple(framed.ids[first + len(bare) :])
    return (), ()


def _sentinels(ids: Mapping[str, int]) -> tuple[int | None, int]:
    """Return the id of the first sentinel, and the number of sentinels counting down from it."""

    @functools.cache
    def find(number: int) -> int | None:
        name = f"<extra_id_{number}>"
        return ids.get(name, ids.get("\u2581" + name))

    first = find(0)
    if first is None:
        return None, 0
    count: Iterable[int] = range(len(ids))
    return first, next(number for number in count if find(number) != first - number)
