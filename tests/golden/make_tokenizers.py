"""Freezes how Hugging Face's BERT, RoBERTa and GPT cut difficult text: tokenizers.json.

python tests/golden/make_tokenizers.py     (made with transformers 5.23.0, tokenizers 0.23.3)

The vocabularies are small ones of the same texts. BERT's ids are also those of the legacy
tokenizer, which is written in Python and shares no code with the library `tokenizers`.
"""

import json
import tempfile
from pathlib import Path

from tokenizers import (
    AddedToken,
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    CharBPETokenizer,
)
from transformers import BertTokenizer, OpenAIGPTTokenizer, RobertaTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

COMBINING = "cafe\u0301 and caf\u00e9 are one word"  # an accent of its own, and a composed letter
TEXTS = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "  leading, double  and trailing blanks  ",
    "Tabs\tand\nnew lines\r\nand\u00a0no-break\u3000wide blanks",
    "Crème brûlée, naïve façade, Ångström, İstanbul, Straße, ŁÓDŹ",
    COMBINING,
    "北京 is 首都; 東京タワー and 서울특별시 are others",
    "control\u0000\u0007 \u200b\ufeffcharacters\u0085 and \ufffd",
    "emoji 😀👩‍👩‍👧 🇩🇪 ♥️",
    "In 2023, 3.14159 + 1e-10 = $1,234.50 (50%)",
    "don't we'll I'm they've 'quoted' \"words\" `ticks`",
    "https://example.org/a_b?c=d&e#f user@host.org",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 100 + " " + "y" * 101 + " z",
    "мир ΣΊΣΥΦΟΣ עברית العربية हिन्दी",
    "¿Qué? ¡Sí! «guillemets» —dashes— … ©®™ ½ ² ﬁ",
    "a[MASK]b [CLS] [SEP] [mask] [UNK][PAD] a<mask>b  <mask> c <s></s> <pad> <unk>",
]


def differing(folder: str, *, lower_case: bool, ids: list[list[int]]) -> list[str]:
    """The texts that BERT's tokenizer in Python cuts otherwise."""
    legacy = BertTokenizerLegacy(f"{folder}/vocab.txt", do_lower_case=lower_case)
    pairs = zip(TEXTS, ids, strict=True)
    return [text for text, one in pairs if legacy.encode(text, add_special_tokens=False) != one]


def bert(folder: str, *, lower_case: bool) -> dict:
    """A vocabulary in `folder`, and the ids of all texts by it."""
    trained = BertWordPieceTokenizer(lowercase=lower_case)
    trained.train_from_iterator(
        TEXTS[:14] * 4, vocab_size=400, min_frequency=6, limit_alphabet=90, show_progress=False
    )
    trained.save_model(folder)
    vocab = Path(folder, "vocab.txt").read_text("utf-8")
    tokenizer = BertTokenizer(vocab=trained.get_vocab(), do_lower_case=lower_case)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    # With the case kept, only the one in Python composes letters (Google's code does not).
    expected = [] if lower_case else [COMBINING]
    assert differing(folder, lower_case=lower_case, ids=ids) == expected
    return {"lower_case": lower_case, "vocab.txt": vocab, "ids": ids}


def roberta(folder: str) -> dict:
    """The same for byte-level BPE."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        TEXTS * 2,
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
    )
    trained.save_model(folder)
    files = {name: Path(folder, name).read_text("utf-8") for name in ("vocab.json", "merges.txt")}
    merges = [tuple(line.split(" ")) for line in files["merges.txt"].splitlines()[1:]]
    # As in the published tokenizer.json; a tokenizer made from the two files has it only if set.
    mask = AddedToken("<mask>", lstrip=True, special=True)
    tokenizer = RobertaTokenizer(
        vocab=json.loads(files["vocab.json"]), merges=merges, mask_token=mask
    )
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    return {**files, "ids": ids}


def gpt(folder: str) -> dict:
    """The same for BPE within words, with the line break that ends the published file."""
    trained = CharBPETokenizer(lowercase=True, bert_normalizer=True)
    trained.train_from_iterator(
        TEXTS[:14] * 4,
        vocab_size=399,
        min_frequency=6,
        limit_alphabet=90,
        special_tokens=["<unk>"],
        show_progress=False,
    )
    trained.save_model(folder)
    ids = trained.get_vocab() | {"\n</w>": trained.get_vocab_size()}
    merges = Path(folder, "merges.txt").read_text("utf-8")
    pairs = [tuple(line.split(" ")) for line in merges.splitlines()[1:]]
    tokenizer = OpenAIGPTTokenizer(vocab=ids, merges=pairs)
    vocab = json.dumps(dict(sorted(ids.items(), key=lambda item: item[1])), ensure_ascii=False)
    found = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    return {"vocab.json": vocab, "merges.txt": merges, "ids": found}


def main() -> None:
    """Writes tokenizers.json beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "texts": TEXTS,
            "uncased": bert(folder, lower_case=True),
            "cased": bert(folder, lower_case=False),
            "roberta": roberta(folder),
            "gpt": gpt(folder),
        }
    path = Path(__file__).with_name("tokenizers.json")
    path.write_text(json.dumps(found, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
