"""GPT's byte-pair encoding within words, whose last pieces end in "</w>" (Sennrich et al. 2016)."""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from t5x_like.vocabularies.special_tokens import TokenizerVocabulary, bert_normalizer

ENDS_WORD = "</w>"
UNKNOWN = "<unk>"
LINE_BREAK = "\n" + ENDS_WORD


class WordBpe(TokenizerVocabulary):
    """Lower-case words and punctuation in pieces (Radford et al. 2018, section 4.1).

    The files have no token that ends a text. Their last one is a line break, which no text holds
    after it is cut into words: here it is what ends one, `eos_id`.
    """

    eos_id = property(lambda self: self._line_break)

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]):
        """Takes a vocab.json's pieces, and the merges of merges.txt, the first to be made first.

        Raises:
            ValueError: a merge is of or makes what is no piece.
        """
        try:
            model = models.BPE(
                dict(ids), list(merges), unk_token=UNKNOWN, end_of_word_suffix=ENDS_WORD
            )
        except Exception as error:  # of no class more special
            raise ValueError(f"merges.txt does not fit: {error}.") from error
        tokenizer = cutting_words(model)
        tokenizer.add_special_tokens([UNKNOWN] if UNKNOWN in ids else [])
        super().__init__(tokenizer)
        self._line_break = ids.get(LINE_BREAK)


def cutting_words(model: Any) -> tokenizers.Tokenizer:
    """The tokenizer that cuts text into words for a model of `tokenizers`, as BERT's does."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(lower_case=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=ENDS_WORD)
    return tokenizer
