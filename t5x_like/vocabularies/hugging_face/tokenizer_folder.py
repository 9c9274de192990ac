"""Resolve a folder's tokenizer from all its files, like transformers 5.

| file | content |
|---|---|
| tokenizer.json | the pieces, and how text is split; takes precedence over the next two rows |
| spiece.model, spm.model, tokenizer.model, sentencepiece.bpe.model | pieces of Unigram or BPE |
| vocab.json and merges.txt, vocab.txt | pieces of BPE, of WordPiece |
| tokenizer_config.json | the class, the special tokens, the added tokens, the class's settings |
| special_tokens_map.json, added_tokens.json | special and added tokens of older folders |
| config.json, generation_config.json | ids that the tokenizer does not name |
"""

import base64
import dataclasses
import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from t5x_like.vocabularies.hugging_face import sentence_pieces, token_settings, tokenizer_class
from t5x_like.vocabularies.hugging_face.token_settings import NAMED, Token, TokenSettings
from t5x_like.vocabularies.hugging_face.tokenizer_files import TOKENIZER, TokenizerFiles
from t5x_like.vocabularies.hugging_face.tokenizer_recipe import Pieces, Recipe
from t5x_like.vocabularies.rust_errors import as_value_errors

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
    settings = token_settings.read(files)
    if recipe is None:
        tokenizer, own = _as_written(files, settings)
        extra = settings.extra(settings.additional)
        usual = tokenizer_class.RECIPES[name].named if name in tokenizer_class.RECIPES else {}
        ids = tokenizer.get_vocab()
        own = {**{key: one for key, one in usual.items() if str(one) in ids}, **own}
    else:
        tokenizer, extra = _by_recipe(files, settings, recipe)
        own = dict(recipe.named)
    given = {key: settings.arguments[key] for key in NAMED if key in settings.arguments}
    named = {key: one for key in NAMED if (one := {**own, **given}.get(key))}
    tokens = {**named, **settings.others}
    said = {*map(str, given.values()), *map(str, settings.extra(settings.additional))}
    optional = {*map(str, own.values()), *map(str, extra)} - said
    _add(tokenizer, tokens, extra, settings, rows=files.model.get("vocab_size"), optional=optional)
    if name == "Qwen2" and recipe is not None:
        # This class adds them once more, without their flags.
        every = map(str, [*tokens.values(), *extra])
        tokenizer.add_tokens([AddedToken(one, special=True) for one in every])
    texts = {key: str(one) for key, one in tokens.items()}
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
        settings.added = {number: _raw(one) for number, one in settings.added.items()}
    legacy = settings.arguments.get("legacy", True)
    renamed = {number: str(one) for number, one in settings.added.items()}
    tokenizer, own = sentence_pieces.as_written(proto, renamed=renamed, legacy=bool(legacy))
    tokens = sentence_pieces.pieces(proto, model="BPE").tokens or ()
    of_user = {one.piece for one in proto.pieces if one.type == 4}
    settings.arguments["additional_special_tokens"] = [
        one for one in tokens if str(one) not in of_user
    ]
    return tokenizer, dict(own)


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
    pieces, given = _pieces(files, recipe), settings.additional
    if pieces.tokens is not None:
        given = list(pieces.tokens)
        if recipe.model == "Unigram":
            scores = recipe.reorder(pieces.scores, settings.arguments)
            pieces = dataclasses.replace(pieces, vocabulary=scores)
    tokenizer = recipe.make(pieces, settings.arguments)
    return tokenizer, settings.extra(recipe.additional(given, settings.arguments))


def _pieces(files: TokenizerFiles, recipe: Recipe) -> Pieces:
    if files.has(TOKENIZER):
        return _pieces_of_json(files.tokenizer)
    names = recipe.files if recipe.model != "Unigram" else (_SENTENCE_PIECE, *recipe.files)
    found = files.find(*names)
    if not found:
        kind = files.settings.get("tokenizer_class")
        raise ValueError(
            f"has tokenizer_class={kind!r}, whose vocabulary is in a file that the folder lacks: "
            f"{TOKENIZER} or {' and '.join(recipe.files)}."
        )
    if found.endswith(".model"):
        return sentence_pieces.pieces(files.sentence_piece(found), model=recipe.model)
    if found.endswith(".txt"):
        ids = {line.rstrip(): number for number, line in enumerate(files.lines(found))}
        return Pieces(ids)
    if not files.has("merges.txt"):
        raise ValueError(f"{found} needs the file {os.fspath(files.folder / 'merges.txt')!r}.")
    lines = [one for one in files.lines("merges.txt") if one and not one.startswith("#version")]
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    return Pieces(files.ids(found), merges)


def _pieces_of_json(content: Mapping[str, Any]) -> Pieces:
    """Return the pieces of a tokenizer.json."""
    model = content["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = [(piece, float(score)) for piece, score in vocabulary]
    pairs = (one.split(" ") if isinstance(one, str) else one for one in model.get("merges", ()))
    merges = [(first, second) for first, second in pairs]
    normalizer = content.get("normalizer") or {}
    parts = normalizer.get("normalizers", [normalizer])
    charsmaps = (one.get("precompiled_charsmap") for one in parts)
    charsmap = next((one for one in charsmaps if one), "")
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
    known = {repr(one) for one in present}
    added: list[Token] = [
        one for _, one in sorted(settings.added.items()) if repr(one) not in known
    ]
    texts = {str(one) for one in (*present, *added)}
    for one in [*named.values(), *extra]:
        if str(one) in texts or one in added:  # tokens that differ only in flags are both added
            continue
        is_new = tokenizer.token_to_id(str(one)) is None
        is_full = isinstance(rows, int) and tokenizer.get_vocab_size() >= rows
        if not (is_new and is_full and str(one) in optional):
            added.append(one)
    special = {str(one) for one in named.values()}
    tokenizer.add_tokens([_marked(one, special) for one in added])


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
    says = {"add_bos_token", "add_eos_token"} & settings.arguments.keys()
    template, yields = (recipe.template, recipe.yields) if recipe else (None, True)
    if (
        recipe is not None
        and (template is None or yields)
        and files.tokenizer.get("post_processor")
    ):
        tokenizer.post_processor = from_json(files).post_processor
    has_own = tokenizer.post_processor is not None
    if template is not None and not (yields and (says or has_own)):
        before, after = template(named, settings.arguments)
    elif has_own and not says:
        return
    else:
        flags = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
        before, after = (
            [named[key]] if key in named and settings.arguments.get(flag) else []
            for key, flag in flags.items()
        )
    found = {one: tokenizer.token_to_id(one) for one in [*before, *after]}
    ids = {one: number for one, number in found.items() if number is not None}
    before, after = ([one for one in own if one in ids] for own in (before, after))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=list(ids.items())
    )
