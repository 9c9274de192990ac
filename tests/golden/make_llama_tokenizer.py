"""Freezes how Hugging Face's LLaMA cuts difficult text into pieces: llama_tokenizer.json.

python tests/golden/make_llama_tokenizer.py   (made with transformers 5.23.0, sentencepiece 0.2.3,
protobuf 7.36.2)

The model is a small one of the texts, trained as LLaMA's was. Two kinds of text are left out, where
Hugging Face differs from SentencePiece, which Meta's code calls: those that begin with a blank,
before which it puts none, and those with "<s>", which it reads as a special token.
"""

import base64
import io
import json
import tempfile
from pathlib import Path

import sentencepiece
from make_tokenizers import TEXTS
from transformers import LlamaTokenizer

LINES = [
    "def f(x):\n    if x > 10:\n\treturn  1234567890\n",
    "a    b        c\t\td\n\n\ne  ",
]
CHOSEN = [one for one in [*TEXTS, *LINES] if not one.startswith(" ") and "<s>" not in one]


def main() -> None:
    """Writes llama_tokenizer.json beside this file."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([one for text in CHOSEN for one in text.splitlines()] * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        character_coverage=0.98,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.model").write_bytes(model.getvalue())
        tokenizer = LlamaTokenizer.from_pretrained(folder)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in CHOSEN]
    content = base64.b64encode(model.getvalue()).decode()
    found = {"tokenizer.model": content, "texts": CHOSEN, "ids": ids}
    path = Path(__file__).with_name("llama_tokenizer.json")
    path.write_text(json.dumps(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
