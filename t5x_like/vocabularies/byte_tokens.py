"""ByT5's tokenizer in Hugging Face's folders: bytes, followed by named tokens.

The names are `<extra_id_0>` to `<extra_id_124>`, in this order from id 259. The released models
were not trained with them: in pretraining the last bytes, from id 258 down, stand for spans (Xue et
al. 2022, section 3.1). Models of this package can be trained with the named tokens as sentinels
(`sentence_piece.Bytes`): then `<extra_id_0>` is the last id.
"""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken

from t5x_like.vocabularies.added_tokens import AddedTokens
from t5x_like.vocabularies.hugging_face.tokenizer_files import TokenSettings
from t5x_like.vocabularies.sentence_piece import EOS, PAD, UNKNOWN, Bytes, T5Vocabulary

TOKENIZER_CLASS = "ByT5Tokenizer"
_NAMED = 125
_SPECIAL = {PAD: "<pad>", EOS: "</s>", UNKNOWN: "<unk>"}


class ByteTokens(T5Vocabulary):
    """T5's three special ids, the bytes, then named tokens.

    Args:
        added: {id: token} of the named tokens, and of special ids with unusual tokens.
    """

    suffix_ids = (EOS,)

    def __init__(self, added: Mapping[int, AddedToken]):
        self._bytes = Bytes()
        # As in Hugging Face, blanks around the three special tokens belong to them.
        special = {
            number: AddedToken(name, lstrip=True, rstrip=True, special=True)
            for number, name in _SPECIAL.items()
        }
        tokens = {**special, **added}
        self._added = AddedTokens(tokens)
        flagged = (number for number, token in added.items() if token.special)
        self.special_ids = tuple(sorted({*_SPECIAL, *flagged}))
        size = max(self._bytes.vocab_size - 1, *tokens) + 1
        named = size - self._bytes.vocab_size
        counts_down = named > 1 and self._added.texts.get(size - 1) == "<extra_id_0>"
        extra_ids = named if counts_down else 0
        super().__init__(vocab_size=size, contents=self._added.contents, extra_ids=extra_ids)

    @property
    def first_sentinel(self) -> int:
        """The last id if it is <extra_id_0>, or the last byte, as in the released models."""
        return super().first_sentinel if self.extra_ids else self._bytes.first_sentinel

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's bytes; names of tokens become those tokens."""
        ids: list[int] = []
        for part, token in self._added.split(text):
            ids += self._bytes.encode(part) if token is None else [token]
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        """Return the text; named tokens are decoded as their names."""
        names, last = self._added.texts, self._bytes.vocab_size
        parts = [
            names[number].encode() if number in names else bytes([number - Bytes.first])
            for number in ids
            if (number in names and number not in _SPECIAL) or Bytes.first <= number < last
        ]
        return b"".join(parts).decode(errors="ignore")


def byte_tokens(settings: TokenSettings) -> ByteTokens:
    """Make the vocabulary from a folder's tokenizer settings.

    Raises:
        ValueError: the ids of the added tokens do not directly follow the bytes.
    """
    first = Bytes().vocab_size
    ids = [number for number in sorted(settings.added) if number >= first]
    if ids != list(range(first, first + len(ids))):
        raise ValueError(f"has added tokens with the ids {ids}; allowed: {first} and those after.")
    extra = settings.arguments.get("extra_ids", _NAMED)
    names = settings.extra(settings.additional)
    if not names and not ids:
        names = [f"<extra_id_{number}>" for number in range(extra)]
    settings.arguments["extra_special_tokens"] = names
    added = settings.with_extra(first=first + len(ids), known=_SPECIAL.values())
    vocabulary = ByteTokens(added)
    for name, number in settings.named_ids(added).items():
        setattr(vocabulary, name, number)
    return vocabulary
