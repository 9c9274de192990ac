"""Freezes how transformers reads the tokenizers that this package writes: saved_tokenizers.json.xz.

python tests/golden/make_saved_tokenizers.py   (made with transformers 5.24.0, tokenizers 0.23.3,
sentencepiece 0.2.3, and this package beside them)

Small vocabularies of every kind are trained on made-up text, and written into folders of networks
as `save_pretrained` writes them; AutoTokenizer reads the folders.
"""

import hashlib
import json
import lzma
import tempfile
from collections.abc import Iterator
from pathlib import Path

from make_tokenizers import TEXTS
from transformers import AutoTokenizer

from t5x_like.vocabularies import saving, trainers

MORE = [
    "Thank you <extra_id_0> me to <extra_id_1> week.",
    "x<extra_id_0>y <extra_id_1>, <extra_id_99>. <extra_id_100>",
    "<extra_id_2>z",
    "a [MASK] b[MASK] <mask> c<mask> d",
    "[CLS] one [SEP] two[SEP]",
    "x<|endoftext|> y",
    "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3 \u039f\u0394\u039f\u03a3, \u03a3.",
    "def f(x):\n    return x\n\n\n",
    "\uff1c/s\uff1e <0x41>",
    "word wordy the theme, and \u201cquotes\u201d ``old''",
    "Vie\u0323\u0302t \u1109\u1165\u110b\u116e\u11af e\u0301",
]
ALL = [*TEXTS, *MORE]
LINES = [f"The value of item {n} is {n * n}, its name is Caf\u00e9 number {n}." for n in range(200)]
DECODERS = ("gpt2", "llama", "mistral", "gemma", "openai-gpt")
_WORDS = {"whole_words": ["the", "word", "value"]}
# {name: (kind, model_type, settings)}
KINDS = {
    "unigram": ("unigram", "t5", {"vocab_size": 300}),
    "unigram_bytes": (
        "unigram",
        "t5",
        {"vocab_size": 480, "byte_fallback": True, "character_coverage": 0.98},
    ),
    "unigram_kept": (
        "unigram",
        "switch_transformers",
        {"vocab_size": 210, "keep_characters": True, "split_digits": True},
    ),
    "unigram_words": ("unigram", "gpt2", {"vocab_size": 280, **_WORDS}),
    "albert": ("albert", "albert", {"vocab_size": 300}),
    "albert_case": ("albert", "albert", {"vocab_size": 300, "keep_case": True}),
    "wordpiece": ("wordpiece", "bert", {"vocab_size": 450}),
    "wordpiece_case": (
        "wordpiece",
        "electra",
        {"vocab_size": 450, "keep_case": True, "character_coverage": 0.98},
    ),
    "byte_bpe": ("byte_bpe", "roberta", {"vocab_size": 400}),
    "byte_bpe_bart": ("byte_bpe", "bart", {"vocab_size": 350}),
    "gpt2_bpe": ("gpt2_bpe", "gpt2", {"vocab_size": 400}),
    "gpt_bpe": ("gpt_bpe", "openai-gpt", {"vocab_size": 450}),
    "llama": ("llama", "llama", {"vocab_size": 480}),
    "mistral": ("llama", "mistral", {"vocab_size": 450}),
    "palm": ("palm", "gemma", {"vocab_size": 450}),
    "bytes": ("bytes", "t5", {}),
    "bytes_0": ("bytes:0", "mt5", {}),
    "bytes_decoder": ("bytes", "gpt2", {}),
}


def trained(kind: str, folder: Path, settings: dict) -> str:
    """The path of a new vocabulary, or a name of bytes."""
    if kind.startswith("bytes"):
        return kind
    name = "vocab.txt" if kind == "wordpiece" else "" if kind.endswith("bpe") else "some.model"
    texts = [text for text in TEXTS if "\0" not in text] * 6 + LINES
    trainers.train(texts, output=folder / name, kind=kind, **settings)
    return str(folder / name)


def folders() -> Iterator[tuple[str, dict, Path]]:
    """Folders with a tokenizer, and what they were made from."""
    for name, (kind, model_type, settings) in KINDS.items():
        root = Path(tempfile.mkdtemp())
        (root / "out").mkdir()
        (root / "in").mkdir()
        spec = trained(kind, root / "in", settings)
        config = {"model_type": model_type, "type_vocab_size": 2 * (model_type == "bert")}
        (root / "out" / "config.json").write_text(json.dumps(config))
        network = saving.Network(config, encodes=model_type not in DECODERS, length=64)
        saving.save(spec, root / "out", network)
        files = {one.name: one.read_bytes().decode("latin-1") for one in (root / "in").iterdir()}
        named = spec if not files else Path(spec).name if Path(spec).is_file() else ""
        made = {"files": files, "spec": named, "config": config, "encodes": network.encodes}
        yield name, made, root / "out"


def digest(content: dict) -> str:
    """A digest of a JSON file, which does not depend on how it is written."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def main() -> None:
    """Writes saved_tokenizers.json.xz beside this file."""
    frozen = {}
    for name, made, folder in folders():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        written = {
            one.name: digest(json.loads(one.read_bytes()))
            for one in folder.iterdir()
            if one.name != "config.json"
        }
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in ALL]
        frozen[name] = {
            **made,
            "written": written,
            "class": type(tokenizer).__name__,
            "ids": ids,
            "decoded": [tokenizer.decode(one) for one in ids],
            "whole": tokenizer("one two")["input_ids"],
            "pair": dict(tokenizer("one", "two")),
            "length": tokenizer.model_max_length,
            "size": len(tokenizer),
        }
    content = json.dumps({"texts": ALL, "kinds": frozen}, ensure_ascii=False).encode()
    path = Path(__file__).with_name("saved_tokenizers.json.xz")
    path.write_bytes(lzma.compress(content, preset=9))
    print(path.stat().st_size)


main()
