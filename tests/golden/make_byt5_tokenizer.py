"""Freezes how Hugging Face's ByT5 reads and writes difficult text: byt5_tokenizer.json.

python tests/golden/make_byt5_tokenizer.py   (made with transformers 5.23.0)
"""

import json
import tempfile
from pathlib import Path

from make_tokenizers import TEXTS
from transformers import ByT5Tokenizer

NAMED = [
    "fill <extra_id_0> and <extra_id_1><extra_id_124>, not <extra_id_125> or <extra_id_1",
    "ends </s> here<pad>, and  <unk>\tthere</s></s>",
]


def main() -> None:
    """Writes byt5_tokenizer.json beside this file."""
    tokenizer = ByT5Tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        settings = json.loads(Path(folder, "tokenizer_config.json").read_text())
    texts = [*TEXTS, *NAMED]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    frozen = {
        "tokenizer_config.json": settings,
        "texts": texts,
        "ids": ids,
        "decoded": [tokenizer.decode(one) for one in ids],
        "broken": tokenizer.decode([one for row in ids for one in row[1::3] if one > 2]),
    }
    path = Path(__file__).with_name("byt5_tokenizer.json")
    path.write_text(json.dumps(frozen) + "\n")


main()
