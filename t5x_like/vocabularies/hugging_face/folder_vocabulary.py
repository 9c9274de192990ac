"""The vocabulary of a folder in Hugging Face's format: its tokenizer, and the ids that it names.

A special token's id comes from the tokenizer if it names the token, otherwise from
generation_config.json, otherwise from config.json; the decoder's first token of an encoder-decoder
comes from the latter two. Nothing is guessed from the names of pieces.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_like.vocabularies.hugging_face import tokenizer_class
from t5x_like.vocabularies.hugging_face.tokenizer_files import TokenizerFiles
from t5x_like.vocabularies.hugging_face.tokenizer_folder import ResolvedTokenizer, resolve
from t5x_like.vocabularies.tokenizer import TokenizerVocabulary

_CLEANED = {
    **{f" {mark}": mark for mark in ".?!,"},
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}


class FolderVocabulary(TokenizerVocabulary):
    """The vocabulary of a folder's tokenizer.

    Args:
        resolved: the tokenizer and its special tokens.
        generation: generation_config.json, with settings of config.json for settings that it lacks.
        name: the class of the tokenizer.
    """

    def __init__(self, resolved: ResolvedTokenizer, *, generation: Mapping[str, Any], name: str):
        tokenizer, self._cleans = resolved.tokenizer, resolved.cleans
        recipe = tokenizer_class.RECIPES.get(name)
        self._word = recipe.begins_word if recipe else None
        ids = _ids(resolved, generation)
        super().__init__(
            tokenizer,
            special_tokens=resolved.special,
            decides=json.dumps([ids, self._cleans]).encode(),
        )
        added = tokenizer.get_added_tokens_decoder()
        flagged = {number for number, token in added.items() if token.special}
        self.special_ids = tuple(sorted({*self.special_ids, *flagged}))
        self.bos_id, self.eos_id = ids["bos"], ids["eos"]
        self.unk_id, self.sep_id = ids["unk"], ids["sep"]
        self.cls_id, self.mask_id = ids["cls"], ids["mask"]
        self.pad_id = ids["pad"] or 0
        self._start = ids["start"]
        self.prefix_ids, self.suffix_ids = _frame(tokenizer)
        first, self.extra_ids = _sentinels(tokenizer.get_vocab())
        self._first_sentinel = self.vocab_size - 1 if first is None else first

    @property
    def start_id(self) -> int:
        """The folder's decoder start token, or otherwise the token that begins a text."""
        return self.pad_id if self._start is None else self._start

    @property
    def first_sentinel(self) -> int:
        """The id of <extra_id_0>, or the last id if there is no such token."""
        return self._first_sentinel

    def _begins_word(self, piece: str) -> bool:
        return self._word(piece) if self._word else super()._begins_word(piece)

    def _decode(self, ids: Sequence[int]) -> str:
        text = super()._decode(ids)
        if self._cleans and not self.is_bpe:
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
        return next((one for one in candidates if one is not None), None)

    def stored(name: str) -> int | None:
        found = generation.get(f"{name}_token_id")
        found = found[0] if isinstance(found, list) and found else found
        return found if type(found) is int and found >= 0 else None

    end = resolved.tokenizer.token_to_id(resolved.end) if resolved.end else None
    eos = first(named.get("eos"), named.get("sep"), stored("eos"), end)
    before, _ = _frame(resolved.tokenizer)
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


def _frame(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the tokenizer puts before and after a text."""
    for probe in ("a", "0", ".", "\u2581", "A"):
        bare = tokenizer.encode(probe, add_special_tokens=False).ids
        if bare:
            whole = tokenizer.encode(probe, add_special_tokens=True)
            marks = whole.special_tokens_mask
            first = marks.index(0) if 0 in marks else 0
            return tuple(whole.ids[:first]), tuple(whole.ids[first + len(bare) :])
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
