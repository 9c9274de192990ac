"""Freezes how Hugging Face's Marian reads and writes text of two languages: marian_tokenizer.json.

python tests/golden/make_marian_tokenizer.py   (made with transformers 5.23.0, sentencepiece 0.2.2)

The two models are small ones; the target's has the texts in reverse order of letters, so that the
languages have other pieces.
"""

import base64
import io
import json
import tempfile
from pathlib import Path

import sentencepiece
from make_tokenizers import TEXTS
from transformers import MarianTokenizer

LANGUAGES = [">>fra<<", ">>deu<<"]
NAMED = [
    ">>fra<< The quick brown fox",
    ">>deu<<The fox",
    ">>xyz<< in no vocabulary",
    "not first >>fra<< here",
    ">>fra",
    "ends </s> here<pad>, and  <unk>\tthere</s></s>",
    "</s>>>fra<< after the end",
]
SIZES = {"source.spm": 210, "target.spm": 200}


def train(texts: list[str], *, size: int) -> bytes:
    """A unigram model, trained as those of OPUS-MT."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([one for text in texts for one in text.splitlines()] * 4),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=0.98,
        normalization_rule_name="identity",  # the others take 240 KB
        minloglevel=2,
    )
    return model.getvalue()


def main() -> None:
    """Writes marian_tokenizer.json beside this file."""
    reverse = [" ".join(word[::-1] for word in text.split(" ")) for text in TEXTS]
    trained = zip((TEXTS, reverse), SIZES.items(), strict=True)
    models = {name: train(texts, size=size) for texts, (name, size) in trained}
    pieces = ["</s>", "<unk>"]
    for model in models.values():
        loaded = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces += [loaded.IdToPiece(number) for number in range(3, len(loaded))]
    # Some pieces of the models are in no vocabulary, as in the released folders.
    pieces = [piece for number, piece in enumerate(dict.fromkeys(pieces)) if number % 17 != 16]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *LANGUAGES, "<pad>"])}
    texts = [*TEXTS, *reverse, *NAMED]
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models.items():
            Path(folder, name).write_bytes(model)
        Path(folder, "vocab.json").write_text(json.dumps(vocabulary))
        tokenizer = MarianTokenizer.from_pretrained(folder)
        source = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        target = tokenizer(text_target=texts, add_special_tokens=False)["input_ids"]
    frozen = {
        **{name: base64.b64encode(model).decode() for name, model in models.items()},
        "vocab.json": vocabulary,
        "texts": texts,
        "source": source,
        "target": target,
        "decoded": [tokenizer.decode(one, skip_special_tokens=True) for one in target],
    }
    path = Path(__file__).with_name("marian_tokenizer.json")
    path.write_text(json.dumps(frozen) + "\n", "utf-8")


main()
