"""Small vocabularies, one for each algorithm, trained on made-up text.

`make_tokenizer_folders.py` writes them into folders.
"""

import io
import json
import tempfile
from pathlib import Path

import sentencepiece
from make_tokenizers import TEXTS
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, CharBPETokenizer, Tokenizer

PLAIN = [text for text in TEXTS[2:14] if "\u0000" not in text]
_RULES = {"\u00bd": "1/2", "\ufb01": "fi", "\u3000": " ", "e\u0301": "\u00e9", "\u00a0": " "}


def spm(texts: list[str] = PLAIN, **settings: object) -> bytes:
    """A SentencePiece model of the texts."""
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.tsv")
        lines = (
            "\t".join(" ".join(f"{ord(one):X}" for one in part) for part in pair)
            for pair in _RULES.items()
        )
        rules.write_text("\n".join(lines) + "\n")
        if "normalization_rule_name" not in settings:
            settings["normalization_rule_tsv"] = str(rules)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for text in texts for line in text.splitlines()] * 4),
            model_writer=model,
            character_coverage=0.98,
            hard_vocab_limit=False,
            minloglevel=2,
            **settings,
        )
    return model.getvalue()


_LLAMA = {
    "model_type": "bpe",
    "vocab_size": 420,
    "byte_fallback": True,
    "split_digits": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
}
_SPECIAL = {"pad_id": 0, "bos_id": -1, "unk_piece": "<unk>"}
_MARKS = "[CLS],[SEP]"
_MODELS = {
    "t5": dict(vocab_size=200, eos_id=1, unk_id=2, **_SPECIAL),
    "albert": dict(
        vocab_size=200, eos_id=-1, unk_id=1, control_symbols=f"{_MARKS},[MASK]", **_SPECIAL
    ),
    "xlnet": {
        "vocab_size": 200,
        "unk_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>",
    },
    "bigbird": {
        "vocab_size": 220,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "control_symbols": f"{_MARKS},[MASK]",
    },
    "deberta_v2": {
        "vocab_size": 200,
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "unk_piece": "[UNK]",
    },
    "fairseq": {"vocab_size": 200, "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "pegasus": dict(vocab_size=200, eos_id=1, unk_id=2, **_SPECIAL),
    "llama": _LLAMA,
    "mistral": dict(**_LLAMA, user_defined_symbols="[INST],[/INST]"),
    "gemma": dict(
        **{**_LLAMA, "add_dummy_prefix": False},
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        eos_piece="<eos>",
        bos_piece="<bos>",
    ),
}


def shared() -> dict[str, dict[str, bytes]]:
    """The vocabularies' files, by the algorithm."""
    found = {name: {"model": spm(**settings)} for name, settings in _MODELS.items()}
    return {**found, **pieces()}


def pieces() -> dict[str, dict[str, bytes]]:
    """The files of WordPiece and BPE."""
    found = {}
    for name, lower in (("uncased", True), ("cased", False)):
        trained = BertWordPieceTokenizer(lowercase=lower)
        trained.train_from_iterator(
            PLAIN * 4, vocab_size=300, min_frequency=6, limit_alphabet=90, show_progress=False
        )
        found[name] = files_of(trained)
    for name, tokens in {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
        "gpt2": [],
        "deberta": ["[PAD]", "[CLS]", "[SEP]", "[UNK]"],
        "neox": ["<|endoftext|>", "<|padding|>"],
    }.items():
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(
            PLAIN * 2, vocab_size=330, special_tokens=tokens, show_progress=False
        )
        found[name] = files_of(trained)
    with_last(found["roberta"], "<mask>")
    with_last(found["deberta"], "[MASK]")
    with_last(found["gpt2"], "<|endoftext|>")
    trained = CharBPETokenizer(lowercase=True, bert_normalizer=True)
    trained.train_from_iterator(
        PLAIN * 4, vocab_size=300, min_frequency=6, limit_alphabet=90, show_progress=False
    )
    found["gpt"] = files_of(trained)
    with_last(found["gpt"], "\n</w>")
    return found


def files_of(trained: Tokenizer) -> dict[str, bytes]:
    """The files that a tokenizer saves."""
    with tempfile.TemporaryDirectory() as folder:
        trained.save_model(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def with_last(files: dict[str, bytes], name: str) -> None:
    """Add a piece with the last id."""
    ids = json.loads(files["vocab.json"])
    ids[name] = len(ids)
    files["vocab.json"] = json.dumps(ids, ensure_ascii=False).encode()
