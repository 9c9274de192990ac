"""The classes of transformers whose tokenizers are Unigram models: T5's, ALBERT's, mBART's, ...

Each gives the same tokenizer as the class of the same name in transformers 5, see `piece_recipes`.
"""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.albert_pieces import begins_word
from t5x_like.vocabularies.hugging_face.token_settings import Token
from t5x_like.vocabularies.hugging_face.tokenizer_recipe import (
    Pieces,
    Recipe,
    Scores,
    Settings,
    around,
    text,
)
from t5x_like.vocabularies.rust_errors import as_value_errors

_BLANK = "\u2581"
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


def _scheme(settings: Settings, *, otherwise: str = "never") -> str:
    return "always" if settings.get("add_prefix_space", True) else otherwise


def _compiled(pieces: Pieces) -> list[normalizers.Normalizer]:
    return [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []


def _place(pieces: Pieces, unknown: str, *, otherwise: int) -> int:
    """Return the id of the unknown piece if it has the score 0, or `otherwise`."""
    places = [n for n, one in enumerate(pieces.scores) if one == (unknown, 0.0)]
    return places[0] if places else otherwise


def _words() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.WhitespaceSplit()]


def _t5(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    del settings
    tokenizer = _unigram(pieces, unknown=2, before=_words())
    if pieces.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(pieces.charsmap)
    return tokenizer


def _sentinels(settings: Settings) -> list[str]:
    return [f"<extra_id_{number}>" for number in range(settings.get("extra_ids", 100))]


def _t5_order(scores: Scores, settings: Settings) -> Scores:
    if "extra_ids" not in settings and any(_is_sentinel(piece) for piece, _ in scores):
        return scores  # mT5's models contain the sentinels
    return [*scores, *((name, 0.0) for name in reversed(_sentinels(settings)))]


def _is_sentinel(piece: str) -> bool:
    return "<extra_id_" in piece


def _t5_tokens(given: Sequence[Token] | None, settings: Settings) -> Sequence[Token]:
    if given is not None and any(_is_sentinel(str(one)) for one in given):
        return given
    return [*(given or ()), *_sentinels(settings)]


def _albert(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
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


def _xlnet(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    unknown = settings.get("unk_id", 0) if pieces.unknown is None else pieces.unknown
    tokenizer = _unigram(pieces, unknown=unknown, before=_words())
    lowers = settings.get("do_lower_case", False)
    tokenizer.normalizer = _plain_letters(pieces, keeps_accents=False, lower_case=lowers)
    return tokenizer


def _xlnet_template(named: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    del settings
    return [], [named["sep_token"], named["cls_token"]]


def _deberta_v2(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    given = settings.get("unk_id", 1) if pieces.unknown is None else pieces.unknown
    unknown = _place(pieces, text(settings, "unk_token", "[UNK]"), otherwise=given)
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


def _bigbird(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    unknown = _place(pieces, text(settings, "unk_token", "<unk>"), otherwise=100)
    tokenizer = _unigram(pieces, unknown=unknown, scheme=_scheme(settings))
    tokenizer.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), _BLANK)
    return tokenizer


def _xlm_r(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _unigram(pieces, unknown=3, scheme=_scheme(settings), before=_words())
    if pieces.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(pieces.charsmap)
    return tokenizer


def _xlm_r_order(scores: Scores, settings: Settings) -> Scores:
    """Order the pieces like fairseq: four special tokens first, and the mask last."""
    return _fairseq_order(scores, settings, first="bos_token")


def _fairseq_order(
    scores: Scores, settings: Settings, *, first: str, languages: Sequence[str] = ()
) -> Scores:
    names = {first: "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    begin = [(text(settings, name, own), 0.0) for name, own in names.items()]
    last = [*languages, text(settings, "mask_token", "<mask>")]
    return [*begin, *scores[3:], *((name, 0.0) for name in last)]


def _mbart(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    del settings
    return _unigram(pieces, unknown=3, before=_words())


def _mbart_order(scores: Scores, settings: Settings) -> Scores:
    return _fairseq_order(scores, settings, first="bos_token", languages=_OF_MBART)


def _mbart_tokens(given: Sequence[Token] | None, settings: Settings) -> Sequence[Token]:
    del settings
    return [*_OF_MBART, *(one for one in given or () if one not in _OF_MBART)]


def _source(settings: Settings) -> str:
    return settings.get("src_lang") or "en_XX"


def _mbart_template(named: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    return [], [named["eos_token"], _source(settings)]


def _mbart_50(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    del settings
    tokenizer = _unigram(pieces, unknown=3)
    blanks = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*_compiled(pieces), blanks])
    return tokenizer


def _mbart_50_order(scores: Scores, settings: Settings) -> Scores:
    return _fairseq_order(scores, settings, first="cls_token", languages=_OF_MBART_50)


def _mbart_50_tokens(given: Sequence[Token] | None, settings: Settings) -> Sequence[Token]:
    del settings
    return [*(given or ()), *_OF_MBART_50]


def _mbart_50_template(named: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    return [_source(settings)], [named["eos_token"]]


def _pegasus(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    stored = -1 if pieces.stored_unknown is None else pieces.stored_unknown
    unknown = _place(pieces, text(settings, "unk_token", "<unk>"), otherwise=stored)
    if unknown < 0:
        raise ValueError("lacks the piece for what it does not know, with the score 0.")
    tokenizer = _unigram(pieces, unknown=unknown)
    lines = [] if pieces.charsmap else [normalizers.Replace(tokenizers.Regex(r"\n"), " ")]
    blanks = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*_compiled(pieces), *lines, blanks])
    return tokenizer


def _unused(settings: Settings) -> list[str]:
    return [f"<unk_{number}>" for number in range(2, settings.get("offset", 103))]


def _pegasus_order(scores: Scores, settings: Settings) -> Scores:
    # transformers leaves out the name "None" of a mask that is null.
    mask = str(settings.get("mask_token", "<mask_1>"))
    sentence = str(settings.get("mask_token_sent", "<mask_2>"))
    masks = [one for one in dict.fromkeys((mask, sentence)) if one != "None"]
    first = [text(settings, "pad_token", "<pad>"), text(settings, "eos_token", "</s>"), *masks]
    unused = ((name, -100.0) for name in _unused(settings))
    return [*((name, 0.0) for name in first), *unused, *scores[2:]]


def _pegasus_tokens(given: Sequence[Token] | None, settings: Settings) -> Sequence[Token]:
    sentence = settings.get("mask_token_sent", "<mask_1>")
    is_new = sentence is not None and sentence not in (given or ())
    return [*([sentence] if is_new else []), *_unused(settings)]


def _recipe(files: tuple[str, ...], **settings: object) -> Recipe:
    return Recipe("Unigram", files, **settings)  # type: ignore[arg-type]


_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
RECIPES = {
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
        additional=lambda given, settings: ["<eop>", "<eod>"] if given is None else given,
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
        named={key: one for key, one in _XLM_R.items() if key != "bos_token"}
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
