"""The classes of transformers' tokenizers: their pieces, and how they split text.

WordPiece and BPE (BERT's, GPT-2's, LLaMA's), and Unigram models (T5's, ALBERT's, mBART's).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.albert_pieces import begins_word
from t5x_like.vocabularies.hugging_face.tokenizer_files import Token
from t5x_like.vocabularies.tokenizer import as_value_errors

Scores = list[tuple[str, float]]  # the pieces of a Unigram model in order of id, with their log p
# The settings of a class, including special tokens by their names.
TokenizerSettings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a tokenizer.

    Attributes:
        vocabulary: {piece: id}, or for a Unigram model the scores in the order of the ids.
        merges: the pairs of BPE, in the order in which they are merged.
        charsmap: the compiled normalization of a SentencePiece model; b"" for none.
        unknown: the id of the unknown piece in a SentencePiece model; None for other files.
        stored_unknown: the id of the unknown piece in a tokenizer.json; None for other files.
        tokens: the control symbols and user-defined symbols of a SentencePiece model; None for
            other files.
    """

    vocabulary: dict[str, int] | Scores
    merges: Sequence[tuple[str, str]] = ()
    charsmap: bytes = b""
    unknown: int | None = None
    stored_unknown: int | None = None
    tokens: Sequence[Token] | None = None

    @property
    def ids(self) -> dict[str, int]:
        """The ids of the pieces of WordPiece or BPE.

        Raises:
            ValueError: it is another kind of model.
        """
        if not isinstance(self.vocabulary, dict):
            raise ValueError("has scores of pieces, and its tokenizer_class needs ids.")
        return self.vocabulary

    @property
    def scores(self) -> Scores:
        """The pieces of a Unigram model, with their scores.

        Raises:
            ValueError: it is another kind of model.
        """
        if isinstance(self.vocabulary, dict):
            raise ValueError("has no scores of pieces, which its tokenizer_class needs.")
        return self.vocabulary


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The rules by which a class of transformers makes its tokenizer.

    Attributes:
        model: the kind of model: "BPE", "WordPiece" or "Unigram".
        files: the names of its vocabulary files, apart from tokenizer.json.
        named: {name: special token}, for names that a folder does not set.
        make: returns the tokenizer without added tokens, from pieces and settings.
        template: returns the tokens before and after a text, from the texts of the named tokens and
            the settings; None if `add_bos_token` and `add_eos_token` decide.
        yields: whether the post-processor of a tokenizer.json, and these two settings, take
            precedence over the template.
        reorder: puts the pieces of a SentencePiece model in the order of the network's ids.
        additional: returns the special tokens without a name, from the given tokens (None if none
            are given) and the settings.
        end: the piece that ends a text, for a class without an end token.
        begins_word: returns whether a piece begins a word; None if its mark of a blank decides.
    """

    model: str
    files: tuple[str, ...]
    named: Mapping[str, Token | None]
    make: Callable[[Pieces, TokenizerSettings], tokenizers.Tokenizer]
    template: (
        Callable[[Mapping[str, str], TokenizerSettings], tuple[list[str], list[str]]] | None
    ) = None
    yields: bool = False
    reorder: Callable[[Scores, TokenizerSettings], Scores] = lambda scores, settings: scores
    additional: Callable[[Sequence[Token] | None, TokenizerSettings], Sequence[Token] | None] = (
        lambda stored, settings: stored
    )
    end: str = ""
    begins_word: Callable[[str], bool] | None = None


def around(before: str, after: str) -> Callable[..., tuple[list[str], list[str]]]:
    """Return a template with named tokens around a text, such as "cls_token"; "" for none."""

    def template(
        named: Mapping[str, str], settings: TokenizerSettings
    ) -> tuple[list[str], list[str]]:
        del settings
        first, last = ([named[name]] if name in named else [] for name in (before, after))
        return first, last

    return template


def text(settings: TokenizerSettings, name: str, otherwise: str) -> str:
    """Return the text of a named token in the settings, or `otherwise`."""
    token = settings.get(name)
    return otherwise if token is None else str(token)


_JSON = ("vocab.json", "merges.txt")
_BLANK = "\u2581"
_END_OF_TEXT = "<|endoftext|>"
_BERT = dict.fromkeys(("bos_token", "eos_token"), None) | {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_GPT_2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT)
# Qwen2's pattern of words, with single digits; the library `tokenizers` contains GPT-2's.
_QWEN_2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bert(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    unknown = text(settings, "unk_token", "[UNK]")
    if unknown not in pieces.ids:
        raise ValueError(f"lacks the piece {unknown!r} for what it does not know.")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(pieces.ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _bpe(pieces: Pieces, **settings: Any) -> tokenizers.Tokenizer:
    with as_value_errors("has merges that do not fit"):
        return tokenizers.Tokenizer(models.BPE(pieces.ids, list(pieces.merges), **settings))


def _byte_level(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Make the tokenizer of GPT-2, RoBERTa and DeBERTa."""
    tokenizer = _bpe(pieces, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    blank = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt_neox(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _byte_level(pieces, settings)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _qwen_2(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _gpt_neox(pieces, settings)
    blank = bool(settings.get("add_prefix_space"))
    words = pre_tokenizers.Split(tokenizers.Regex(_QWEN_2_WORDS), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=blank, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    return tokenizer


def _gpt(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _bpe(
        pieces,
        continuing_subword_prefix="",
        end_of_word_suffix="</w>",
        fuse_unk=False,
        unk_token=text(settings, "unk_token", "<unk>"),
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def _llama(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _bpe(pieces, fuse_unk=True, byte_fallback=True)
    blank = settings.get("add_prefix_space")
    scheme = "always" if settings.get("legacy") else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_BLANK,
        prepend_scheme=scheme if blank or blank is None else "never",
        split=False,
    )
    parts = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if blank or blank is None:
        parts.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _gemma(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    unknown = text(settings, "unk_token", "<unk>")
    tokenizer = _bpe(pieces, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer.normalizer = normalizers.Replace(" ", _BLANK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


_WORDPIECE = Recipe(
    "WordPiece", ("vocab.txt",), _BERT, _bert, template=around("cls_token", "sep_token")
)
_OF_ROBERTA = Recipe("BPE", _JSON, _ROBERTA, _byte_level, around("cls_token", "sep_token"))
PIECE_RECIPES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert"), _WORDPIECE),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), _OF_ROBERTA),
    "GPT2": Recipe("BPE", _JSON, _GPT_2, _byte_level),
    "GPTNeoX": Recipe("BPE", _JSON, _GPT_2 | {"pad_token": "<|padding|>"}, _gpt_neox),
    "Qwen2": Recipe(
        "BPE",
        _JSON,
        dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT),
        _qwen_2,
    ),
    "OpenAIGPT": Recipe("BPE", _JSON, {"unk_token": "<unk>"}, _gpt, end="\n</w>"),
    "Deberta": Recipe(
        "BPE",
        _JSON,
        _BERT | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
        _byte_level,
        around("cls_token", "sep_token"),
    ),
    "Llama": Recipe(
        "BPE",
        ("tokenizer.model",),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        _llama,
    ),
    "Gemma": Recipe(
        "BPE",
        ("tokenizer.model",),
        {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        _gemma,
    ),
}


_ALBERT_FILES, _XLM_FILES = ("spiece.model",), ("sentencepiece.bpe.model",)
_MASK = AddedToken("<mask>", lstrip=True)  # it includes the blank before it, as a word does
_XLM_R = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_ALBERT = _XLM_R | {
    **dict.fromkeys(("bos_token", "cls_token"), "[CLS]"),
    **dict.fromkeys(("eos_token", "sep_token"), "[SEP]"),
    "mask_token": "[MASK]",
}
_MBART_LANGUAGES = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
"""
_MORE_LANGUAGES = """
    af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
    sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
_OF_MBART = tuple(_MBART_LANGUAGES.split())
_OF_MBART_50 = (*_OF_MBART, *_MORE_LANGUAGES.split())


def _unigram(
    pieces: Pieces,
    *,
    unknown: int,
    scheme: str = "always",
    before: Sequence[pre_tokenizers.PreTokenizer] = (),
) -> tokenizers.Tokenizer:
    """Make a tokenizer whose blanks are part of the words after them.

    Args:
        unknown: the id of the unknown piece.
        scheme: Metaspace's rule of when to put a blank before a text: "always", "first" or "never".
        before: pre-tokenizers that split the text first.
    """
    with as_value_errors("has pieces that do not fit"):
        model = models.Unigram(pieces.scores, unk_id=unknown, byte_fallback=False)
    tokenizer = tokenizers.Tokenizer(model)
    blanks = pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme=scheme)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, blanks]) if before else blanks
    tokenizer.decoder = decoders.Metaspace(replacement=_BLANK, prepend_scheme=scheme)
    return tokenizer


def _scheme(settings: TokenizerSettings, *, otherwise: str = "never") -> str:
    return "always" if settings.get("add_prefix_space", True) else otherwise


def _compiled(pieces: Pieces) -> list[normalizers.Normalizer]:
    return [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []


def _unknown_id(pieces: Pieces, unknown: str, *, otherwise: int) -> int:
    """Return the id of the unknown piece if it has the score 0, or `otherwise`."""
    numbers = [n for n, scored in enumerate(pieces.scores) if scored == (unknown, 0.0)]
    return numbers[0] if numbers else otherwise


def _words() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.WhitespaceSplit()]


def _t5(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    del settings
    tokenizer = _unigram(pieces, unknown=2, before=_words())
    if pieces.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(pieces.charsmap)
    return tokenizer


def _sentinels(settings: TokenizerSettings) -> list[str]:
    return [f"<extra_id_{number}>" for number in range(settings.get("extra_ids", 100))]


def _t5_order(scores: Scores, settings: TokenizerSettings) -> Scores:
    if "extra_ids" not in settings and any(_is_sentinel(piece) for piece, _ in scores):
        return scores  # mT5's models contain the sentinels
    return [*scores, *((name, 0.0) for name in reversed(_sentinels(settings)))]


def _is_sentinel(piece: str) -> bool:
    return "<extra_id_" in piece


def _t5_tokens(stored: Sequence[Token] | None, settings: TokenizerSettings) -> Sequence[Token]:
    if stored is not None and any(_is_sentinel(str(token)) for token in stored):
        return stored
    return [*(stored or ()), *_sentinels(settings)]


def _albert(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _unigram(pieces, unknown=1, scheme=_scheme(settings), before=_words())
    keeps = settings.get("keep_accents", False)
    lowers = settings.get("do_lower_case", True)
    tokenizer.normalizer = _plain_letters(pieces, keeps_accents=keeps, lower_case=lowers)
    return tokenizer


def _plain_letters(
    pieces: Pieces, *, keeps_accents: bool, lower_case: bool
) -> normalizers.Normalizer:
    """Return the normalizer of ALBERT and XLNet: plain quotes, no accents, perhaps lower case."""
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    accents = [] if keeps_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    case = [normalizers.Lowercase()] if lower_case else []
    return normalizers.Sequence([*quotes, *accents, *case, *_compiled(pieces)])


def _xlnet(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    unknown = settings.get("unk_id", 0) if pieces.unknown is None else pieces.unknown
    tokenizer = _unigram(pieces, unknown=unknown, before=_words())
    lowers = settings.get("do_lower_case", False)
    tokenizer.normalizer = _plain_letters(pieces, keeps_accents=False, lower_case=lowers)
    return tokenizer


def _xlnet_template(
    named: Mapping[str, str], settings: TokenizerSettings
) -> tuple[list[str], list[str]]:
    del settings
    return [], [named["sep_token"], named["cls_token"]]


def _deberta_v2(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    default = settings.get("unk_id", 1) if pieces.unknown is None else pieces.unknown
    unknown = _unknown_id(pieces, text(settings, "unk_token", "[UNK]"), otherwise=default)
    punctuation = [pre_tokenizers.Punctuation(behavior="isolated")]
    tokenizer = _unigram(
        pieces,
        unknown=unknown,
        scheme=_scheme(settings, otherwise="first"),
        before=punctuation if settings.get("split_by_punct") else (),
    )
    case = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    blanks = normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " ")
    end = normalizers.Strip(left=False, right=True)
    tokenizer.normalizer = normalizers.Sequence([*case, blanks, normalizers.NFC(), end])
    return tokenizer


def _bigbird(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    unknown = _unknown_id(pieces, text(settings, "unk_token", "<unk>"), otherwise=100)
    tokenizer = _unigram(pieces, unknown=unknown, scheme=_scheme(settings))
    tokenizer.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), _BLANK)
    return tokenizer


def _xlm_r(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    tokenizer = _unigram(pieces, unknown=3, scheme=_scheme(settings), before=_words())
    if pieces.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(pieces.charsmap)
    return tokenizer


def _xlm_r_order(scores: Scores, settings: TokenizerSettings) -> Scores:
    """Order the pieces like fairseq: four special tokens first, and the mask last."""
    return _fairseq_order(scores, settings, first="bos_token")


def _fairseq_order(
    scores: Scores, settings: TokenizerSettings, *, first: str, languages: Sequence[str] = ()
) -> Scores:
    names = {first: "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    begin = [(text(settings, name, usual), 0.0) for name, usual in names.items()]
    last = [*languages, text(settings, "mask_token", "<mask>")]
    return [*begin, *scores[3:], *((name, 0.0) for name in last)]


def _mbart(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    del settings
    return _unigram(pieces, unknown=3, before=_words())


def _mbart_order(scores: Scores, settings: TokenizerSettings) -> Scores:
    return _fairseq_order(scores, settings, first="bos_token", languages=_OF_MBART)


def _mbart_tokens(stored: Sequence[Token] | None, settings: TokenizerSettings) -> Sequence[Token]:
    del settings
    return [*_OF_MBART, *(token for token in stored or () if token not in _OF_MBART)]


def _source(settings: TokenizerSettings) -> str:
    return settings.get("src_lang") or "en_XX"


def _mbart_template(
    named: Mapping[str, str], settings: TokenizerSettings
) -> tuple[list[str], list[str]]:
    return [], [named["eos_token"], _source(settings)]


def _mbart_50(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    del settings
    tokenizer = _unigram(pieces, unknown=3)
    blanks = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*_compiled(pieces), blanks])
    return tokenizer


def _mbart_50_order(scores: Scores, settings: TokenizerSettings) -> Scores:
    return _fairseq_order(scores, settings, first="cls_token", languages=_OF_MBART_50)


def _mbart_50_tokens(
    stored: Sequence[Token] | None, settings: TokenizerSettings
) -> Sequence[Token]:
    del settings
    return [*(stored or ()), *_OF_MBART_50]


def _mbart_50_template(
    named: Mapping[str, str], settings: TokenizerSettings
) -> tuple[list[str], list[str]]:
    return [_source(settings)], [named["eos_token"]]


def _pegasus(pieces: Pieces, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    stored = -1 if pieces.stored_unknown is None else pieces.stored_unknown
    unknown = _unknown_id(pieces, text(settings, "unk_token", "<unk>"), otherwise=stored)
    if unknown < 0:
        raise ValueError("lacks the piece for what it does not know, with the score 0.")
    tokenizer = _unigram(pieces, unknown=unknown)
    lines = [] if pieces.charsmap else [normalizers.Replace(tokenizers.Regex(r"\n"), " ")]
    blanks = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*_compiled(pieces), *lines, blanks])
    return tokenizer


def _unused(settings: TokenizerSettings) -> list[str]:
    return [f"<unk_{number}>" for number in range(2, settings.get("offset", 103))]


def _pegasus_order(scores: Scores, settings: TokenizerSettings) -> Scores:
    # transformers leaves out the name "None" of a mask that is null.
    mask = str(settings.get("mask_token", "<mask_1>"))
    sentence = str(settings.get("mask_token_sent", "<mask_2>"))
    masks = [token for token in dict.fromkeys((mask, sentence)) if token != "None"]
    first = [text(settings, "pad_token", "<pad>"), text(settings, "eos_token", "</s>"), *masks]
    unused = ((name, -100.0) for name in _unused(settings))
    return [*((name, 0.0) for name in first), *unused, *scores[2:]]


def _pegasus_tokens(stored: Sequence[Token] | None, settings: TokenizerSettings) -> Sequence[Token]:
    sentence = settings.get("mask_token_sent", "<mask_1>")
    is_new = sentence is not None and sentence not in (stored or ())
    return [*([sentence] if is_new else []), *_unused(settings)]


def _recipe(files: tuple[str, ...], **settings: object) -> Recipe:
    return Recipe("Unigram", files, **settings)  # type: ignore[arg-type]


_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
UNIGRAM_RECIPES = {
    "T5": _recipe(
        _ALBERT_FILES,
        named=_T5,
        make=_t5,
        template=around("", "eos_token"),
        reorder=_t5_order,
        additional=_t5_tokens,
    ),
    "Albert": _recipe(
        _ALBERT_FILES,
        named=_ALBERT,
        make=_albert,
        template=around("cls_token", "sep_token"),
        yields=True,
        begins_word=begins_word,
    ),
    "XLNet": _recipe(
        _ALBERT_FILES,
        named=_XLM_R | {"sep_token": "<sep>", "cls_token": "<cls>", "mask_token": _MASK},
        make=_xlnet,
        template=_xlnet_template,
        additional=lambda stored, settings: ["<eop>", "<eod>"] if stored is None else stored,
    ),
    "DebertaV2": _recipe(
        ("spm.model",),
        named=_ALBERT | {"unk_token": "[UNK]", "pad_token": "[PAD]"},
        make=_deberta_v2,
        template=around("cls_token", "sep_token"),
    ),
    "BigBird": _recipe(
        _ALBERT_FILES,
        named={
            **{key: AddedToken(str(_XLM_R[key])) for key in _XLM_R},
            "sep_token": AddedToken("[SEP]"),
            "cls_token": AddedToken("[CLS]"),
            "mask_token": AddedToken("[MASK]", lstrip=True),
        },
        make=_bigbird,
        template=around("cls_token", "sep_token"),
    ),
    "XLMRoberta": _recipe(
        _XLM_FILES,
        named=_XLM_R,
        make=_xlm_r,
        template=around("bos_token", "eos_token"),
        reorder=_xlm_r_order,
    ),
    "MBart": _recipe(
        _XLM_FILES,
        named=_XLM_R | {"mask_token": _MASK},
        make=_mbart,
        template=_mbart_template,
        reorder=_mbart_order,
        additional=_mbart_tokens,
    ),
    "MBart50": _recipe(
        _XLM_FILES,
        named={key: token for key, token in _XLM_R.items() if key != "bos_token"}
        | {"mask_token": _MASK},
        make=_mbart_50,
        template=_mbart_50_template,
        reorder=_mbart_50_order,
        additional=_mbart_50_tokens,
    ),
    "Pegasus": _recipe(
        _ALBERT_FILES,
        named=_T5 | {"mask_token": "<mask_2>"},
        make=_pegasus,
        template=around("", "eos_token"),
        reorder=_pegasus_order,
        additional=_pegasus_tokens,
    ),
}
