"""Freezes the rows that Hugging Face's tokenizer of XLNet makes of texts and pairs.

python tests/golden/make_xlnet_rows.py      (made with transformers 5.23.0, tokenizers 0.23.3)

A small SentencePiece model with XLNet's special tokens, and for texts and pairs of several lengths
the ids and token types, without padding.
"""

import base64
import json
import tempfile
from pathlib import Path

import transformers
from small_vocabularies import shared

TEXTS = [
    ("The quick brown fox jumps over the lazy dog.",),
    ("The quick brown fox", "jumps over the lazy dog."),
    ("don't we'll I'm they've", "In 2023, 3.14159"),
    ("a", "b"),
]
# Where both texts of a pair are cut, the room is even: of odd room, transformers gives one more
# token to the second text, and the authors' code to the first.
LENGTH = 25


def freeze() -> dict[str, object]:
    """The model, and the rows of all texts, cut to LENGTH tokens."""
    model = shared()["xlnet"]["model"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "spiece.model").write_bytes(model)
        Path(folder, "config.json").write_text('{"model_type": "xlnet"}')
        Path(folder, "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        rows = []
        for texts in TEXTS:
            found = tokenizer(
                *texts, truncation="longest_first", max_length=LENGTH, return_token_type_ids=True
            )
            rows.append(
                {"texts": texts, "tokens": found["input_ids"], "types": found["token_type_ids"]}
            )
    return {"model": base64.b64encode(model).decode(), "length": LENGTH, "rows": rows}


path = Path(__file__).with_name("xlnet_rows.json")
path.write_text(json.dumps(freeze(), ensure_ascii=False) + "\n")
