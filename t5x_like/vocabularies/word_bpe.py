"""GPT's byte-pair encoding; the last piece of a word ends in "</w>" (Sennrich et al. 2016)."""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from t5x_like.vocabularies.tokenizer import TokenizerVocabulary, bert_normalizer

ENDS_WORD = "</w>"
UNKNOWN = "<unk>"
LINE_BREAK = "\n" + ENDS_WORD


class WordBpe(TokenizerVocabulary):
    """Pieces of lower-case words and punctuation (Radford et al. 2018, section 4.1).

    The files have no token that ends a text. Their last piece is a line break, which no text
    contains after it is split into words: here it is the end of sequence, `eos_id`.

    Args:
        ids: the content of vocab.json.
        merges: the pairs of merges.txt, in the order in which they are merged.

    Raises:
        ValueError: a part or a result of a merge is not a piece.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]):
        try:
            model = models.BPE(
                dict(ids), list(merges), unk_token=UNKNOWN, end_of_word_suffix=ENDS_WORD
            )
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"merges.txt does not fit: {error}.") from error
        tokenizer = word_tokenizer(model)
        tokenizer.add_special_tokens([UNKNOWN] if UNKNOWN in ids else [])
        super().__init__(tokenizer)
        self.eos_id = ids.get(LINE_BREAK)


def word_tokenizer(model: Any) -> tokenizers.Tokenizer:
    """Make a tokenizer from a model; it lower-cases text and splits it into words like BERT."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(lower_case=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=ENDS_WORD)
    return tokenizer
