"""ByT5's tokenizer in Hugging Face's folders: bytes, and tokens with names after them.

The names are `<extra_id_0>` to `<extra_id_124>`, in this order from id 259 on. The released models
were not trained with them: there the last bytes, from id 258 down, stand for spans (Xue et al.
2022, section 3.1).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_like.vocabularies.base import to_list
from t5x_like.vocabularies.sentence_piece import EOS, PAD, UNKNOWN, Bytes, T5Vocabulary

TOKENIZER_CLASS = "ByT5Tokenizer"
_NAMED = 125
_SPECIAL = {"<pad>": PAD, "</s>": EOS, "<unk>": UNKNOWN}


class ByteTokens(T5Vocabulary):
    """Bytes after the three ids of T5, then tokens with names.

    Args:
        names: of the tokens from id 259 on.
    """

    def __init__(self, names: Sequence[str]):
        self._bytes = Bytes()
        end = self._bytes.vocab_size
        self._names = {end + number: name for number, name in enumerate(names)}
        self._ids = _SPECIAL | {name: one for one, name in self._names.items()}
        # The blanks around the three special tokens are theirs, as Hugging Face has it.
        special = "|".join(map(re.escape, _SPECIAL))
        named = "".join(f"|{re.escape(name)}" for name in names)
        self._pattern = re.compile(rf"(\s*(?:{special})\s*{named})")
        contents = "\0".join(names).encode()
        super().__init__(vocab_size=end + len(names), contents=contents)

    @property
    def first_sentinel(self) -> int:
        """The last byte: the named tokens are in no pretraining."""
        return self._bytes.first_sentinel

    def encode(self, text: str) -> list[int]:
        """The bytes of a text, in which names are tokens."""
        ids: list[int] = []
        for part in self._pattern.split(text):
            name = part if part in self._ids else part.strip()
            ids += [self._ids[name]] if name in self._ids else self._bytes.encode(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end of sequence, named tokens by their names."""
        kept = to_list(ids)
        kept = kept[: kept.index(EOS)] if EOS in kept else kept
        parts = [
            self._names[one].encode() if one in self._names else bytes([one - Bytes.first])
            for one in kept
            if one in self._names or Bytes.first <= one < self._bytes.vocab_size
        ]
        return b"".join(parts).decode(errors="ignore")


def byte_tokens(settings: Mapping[str, Any]) -> ByteTokens:
    """The vocabulary of a tokenizer_config.json.

    Raises:
        ValueError: it is of another tokenizer, or its tokens do not follow the bytes.
    """
    kind = settings.get("tokenizer_class")
    if kind != TOKENIZER_CLASS:
        raise ValueError(
            f"has tokenizer_class={kind!r}, whose vocabulary is in a file that the folder lacks; "
            f"only {TOKENIZER_CLASS!r} needs none."
        )
    first = Bytes().vocab_size
    added = {int(one): token for one, token in settings.get("added_tokens_decoder", {}).items()}
    ids = [one for one in sorted(added) if one >= first]
    if ids != list(range(first, first + len(ids))):
        raise ValueError(f"has added tokens with the ids {ids}; allowed: {first} and those after.")
    if ids:
        return ByteTokens([added[one]["content"] for one in ids])
    names = settings.get("additional_special_tokens")
    count = settings.get("extra_ids", _NAMED)
    return ByteTokens(names or [f"<extra_id_{number}>" for number in range(count)])
