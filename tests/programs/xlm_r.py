"""A tokenizer.json as XLM-R's folders have it, with words for pieces."""

import pathlib
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers


def write_tokenizer(folder: pathlib.Path, *, words: Sequence[str]) -> None:
    """Write it; the mask is the last id, as in XLM-R."""
    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"\u2581{word}" for word in words), "<mask>"]
    model = models.Unigram([(name, -1.0) for name in names], 3)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
