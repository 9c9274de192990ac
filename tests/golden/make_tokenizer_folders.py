"""Freezes how transformers reads the tokenizers of folders: tokenizer_folders.json.xz.

python tests/golden/make_tokenizer_folders.py   (made with transformers 5.24.0, tokenizers 0.23.3,
sentencepiece 0.2.3)

The folders have the files that published folders have: the slow files of transformers 4 with
special_tokens_map.json and added_tokens.json or `added_tokens_decoder`, a tokenizer.json beside
them, and what transformers 5 saves. Their vocabularies are small and trained on made-up text, one
for each algorithm; the compiled normalization of the SentencePiece models is a short one.
"""

import json
import lzma
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sentencepiece
from make_tokenizers import TEXTS
from published_tokenizers import FAMILIES, LLAMA, START, T5, token
from small_vocabularies import PLAIN, shared, spm
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    processors,
)
from transformers import AutoTokenizer, PegasusTokenizer, PreTrainedTokenizerFast

MARKED = [
    "a<mask>b <mask> c [MASK] d <mask_1> e <mask_2>",
    "<extra_id_0> x<extra_id_1>y <extra_id_12>.",
    "<s> a </s> b <pad> <unk> [CLS] [SEP] [PAD] [UNK] <cls> <sep> <bos> <eos>",
    "<|endoftext|>one<|endoftext|> two <|im_start|>user\nhi<|im_end|>\n",
    "Ada <ORG> wrote<ORG>it  <ORG>  , <|user|> hi<|user|>",
    "the Word word wordy  word  and trim  left , right  side",
    "line one\nline two\n\n  indented\ttab \r\n end  ",
    "en_XX de_DE text",
    "2024-01-31 1,234 12 007",
]
ALL = [*TEXTS, *MARKED]
ADDED = [
    {"content": "<ORG>", "special": True},
    {"content": "<|user|>", "special": True, "lstrip": True, "rstrip": True},
    {"content": "word", "special": False, "single_word": True, "normalized": True},
    {"content": "trim", "special": False, "rstrip": True, "normalized": True},
]


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def slow(family: str, vocabularies: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """The files of a family as transformers 4 has published them."""
    vocabulary, model, config, settings = FAMILIES[family]
    files = {
        model if name == "model" else name: one for name, one in vocabularies[vocabulary].items()
    }
    files["config.json"] = json.dumps(config).encode()
    if settings is not None:
        files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files


def load(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder, of BigBird-Pegasus's slow files by the class that they name."""
    is_slow = not (folder / "tokenizer.json").exists()
    if is_slow and "bigbird_pegasus" in (folder / "config.json").read_text():
        return PegasusTokenizer.from_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def layouts(family: str, vocabularies: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, Path]]:
    """The folders of a family; each is gone when the next is made."""
    files = slow(family, vocabularies)
    root = Path(tempfile.mkdtemp())
    write(root / "slow", files)
    yield "slow", root / "slow"
    # As after add_tokens in transformers 4, before and after 4.34.
    tokenizer = load(root / "slow")
    first = len(tokenizer)
    write(root / "added_json", files | older(tokenizer))
    yield "added_json", root / "added_json"
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    decoder = {str(first + n): token(**one) for n, one in enumerate(ADDED)}
    names = [*settings.get("additional_special_tokens", ()), "<ORG>", "<|user|>"]
    settings |= {"added_tokens_decoder": decoder, "additional_special_tokens": names}
    more = {"tokenizer_config.json": json.dumps(settings).encode()}
    write(root / "added_config", files | more)
    yield "added_config", root / "added_config"
    saved = root / "saved"
    tokenizer = load(root / "added_config")
    tokenizer.save_pretrained(saved)
    (saved / "config.json").write_bytes(files["config.json"])
    yield "saved", saved
    # transformers 4: tokenizer.json, and all others beside it.
    write(root / "both", files | more)
    shutil.copy(saved / "tokenizer.json", root / "both")
    yield "both", root / "both"
    write(
        root / "json",
        {"config.json": files["config.json"]}
        | {name: one for name, one in files.items() if name == "tokenizer_config.json"},
    )
    shutil.copy(saved / "tokenizer.json", root / "json")
    yield "json", root / "json"
    shutil.rmtree(root)


def older(tokenizer: PreTrainedTokenizerFast) -> dict[str, bytes]:
    """The files of added tokens before transformers 4.34."""
    ids = {one["content"]: len(tokenizer) + n for n, one in enumerate(ADDED)}
    special = {
        name: token(text, lstrip=name == "mask_token", normalized=True)
        for name, text in tokenizer.special_tokens_map.items()
    }
    special |= {"additional_special_tokens": ["<ORG>", "<|user|>"]}
    return {
        "added_tokens.json": json.dumps(ids).encode(),
        "special_tokens_map.json": json.dumps(special).encode(),
    }


def in_python() -> Iterator[tuple[str, Path]]:
    """Folders of tokenizers that transformers has written in Python, with added tokens."""
    root = Path(tempfile.mkdtemp())
    reverse = [" ".join(word[::-1] for word in text.split(" ")) for text in PLAIN]
    models = {"source.spm": marian_model(PLAIN), "target.spm": marian_model(reverse)}
    names = ["</s>", "<unk>"]
    for model in models.values():
        loaded = sentencepiece.SentencePieceProcessor(model_proto=model)
        names += [loaded.IdToPiece(number) for number in range(3, len(loaded))]
    names = [*dict.fromkeys(names), ">>fra<<", "<pad>"]
    ids = {name: number for number, name in enumerate(names)}
    start = len(ids) - 1
    config = {"model_type": "marian", **START, "decoder_start_token_id": start, "eos_token_id": 0}
    decoder = {str(len(ids) + n): token(**one) for n, one in enumerate(ADDED)}
    settings = {"source_lang": "eng", "target_lang": "fra", "separate_vocabs": False}
    files = {
        **models,
        "vocab.json": json.dumps(ids).encode(),
        "config.json": json.dumps({**config, "pad_token_id": start}).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }
    write(root / "marian", files)
    yield "marian", root / "marian"
    more = json.dumps(settings | {"added_tokens_decoder": decoder}).encode()
    write(root / "marian_added", files | {"tokenizer_config.json": more})
    yield "marian_added", root / "marian_added"
    settings = {"tokenizer_class": "ByT5Tokenizer"}
    config = json.dumps({"model_type": "t5", **T5}).encode()
    files = {"tokenizer_config.json": json.dumps(settings).encode(), "config.json": config}
    write(root / "byt5", files)
    yield "byt5", root / "byt5"
    named = {
        str(number): token(name, special=True, lstrip=number < 3, rstrip=number < 3)
        for number, name in enumerate(["<pad>", "</s>", "<unk>"])
    }
    named |= {str(259 + n): token(**one) for n, one in enumerate(ADDED)}
    settings |= {"added_tokens_decoder": named, "extra_ids": 0, "additional_special_tokens": []}
    files |= {"tokenizer_config.json": json.dumps(settings).encode()}
    write(root / "byt5_added", files)
    yield "byt5_added", root / "byt5_added"
    shutil.rmtree(root)


def marian_model(texts: list[str]) -> bytes:
    """A model of one language of Marian's."""
    return spm(texts, vocab_size=180, normalization_rule_name="identity")


def llama_3() -> Tokenizer:
    """A byte-level tokenizer.json with the template of LLaMA 3."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(PLAIN * 2, vocab_size=330, show_progress=False)
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.add_special_tokens(
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>"]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 330)]
    )
    return tokenizer


def others(vocabularies: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, Path]]:
    """Folders that are like no other."""
    root = Path(tempfile.mkdtemp())
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    for name, kind in {
        "llama_3": "PreTrainedTokenizerFast",
        "llama_3_misnamed": "LlamaTokenizer",
    }.items():
        config = {"model_type": "llama", "bos_token_id": 330, "eos_token_id": [331, 332]}
        files = {
            "tokenizer.json": llama_3().to_str().encode(),
            "tokenizer_config.json": json.dumps({"tokenizer_class": kind, **names}).encode(),
            "config.json": json.dumps(config).encode(),
        }
        write(root / name, files)
        yield name, root / name
    # LLaMA 2's tokenizer.json of transformers 4 puts the blank by a normalizer.
    files = slow("llama", vocabularies)
    write(root / "llama_2", files)
    AutoTokenizer.from_pretrained(root / "llama_2").save_pretrained(root / "made")
    content = json.loads((root / "made" / "tokenizer.json").read_text())
    content["pre_tokenizer"] = None
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    (root / "llama_2" / "tokenizer.json").write_text(json.dumps(content))
    yield "llama_2", root / "llama_2"
    shutil.copytree(root / "llama_2", root / "mistral_json")
    config = {"model_type": "mistral", **LLAMA}
    (root / "mistral_json" / "config.json").write_text(json.dumps(config))
    yield "mistral_json", root / "mistral_json"
    write(root / "umt5", {"config.json": json.dumps({"model_type": "umt5", **T5}).encode()})
    write(root / "t5", slow("t5", vocabularies))
    AutoTokenizer.from_pretrained(root / "t5").save_pretrained(root / "umt5")
    yield "umt5", root / "umt5"
    shutil.rmtree(root)


def frozen(folder: Path) -> dict:
    """A folder's files, and what transformers makes of the texts."""
    tokenizer = load(folder)
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in ALL]
    named = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    return {
        "class": type(tokenizer).__name__,
        "size": len(tokenizer),
        "ids": ids,
        "whole": tokenizer("one two").input_ids,
        "decoded": [tokenizer.decode(one) for one in ids],
        "named": {name: getattr(tokenizer, f"{name}_token_id") for name in named},
    }


def content(path: Path) -> str:
    """A file's text, of a model in Latin-1."""
    return path.read_bytes().decode("latin-1" if path.suffix in (".model", ".spm") else "utf-8")


def main() -> None:
    """Writes tokenizer_folders.json.xz beside this file."""
    vocabularies = shared()
    found = {}
    blobs: list[str] = []
    folders = [(family, one) for family in FAMILIES for one in layouts_of(family, vocabularies)]
    folders += [("other", one) for one in list_of(others(vocabularies))]
    folders += [("in_python", one) for one in list_of(in_python())]
    for family, (layout, files, expected) in folders:
        places = {}
        for name, text in files.items():
            if text not in blobs:
                blobs.append(text)
            places[name] = blobs.index(text)
        found[f"{family}/{layout}"] = {"files": places, **expected}
    path = Path(__file__).with_name("tokenizer_folders.json.xz")
    stored = json.dumps({"texts": ALL, "blobs": blobs, "folders": found}).encode()
    path.write_bytes(lzma.compress(stored, preset=9))
    print(len(found), "folders,", len(stored), "bytes,", path.stat().st_size, "compressed")


def list_of(folders: Iterator[tuple[str, Path]]) -> list[tuple[str, dict, dict]]:
    """The folders that transformers can read, with what it makes of them."""
    made = []
    for layout, folder in folders:
        files = {path.name: content(path) for path in sorted(folder.iterdir())}
        try:
            made.append((layout, files, frozen(folder)))
        except Exception as error:
            print(
                "transformers cannot read", folder, layout, type(error).__name__, str(error)[:100]
            )
    return made


def layouts_of(family: str, vocabularies: dict) -> list[tuple[str, dict, dict]]:
    """The same of a family."""
    return list_of(layouts(family, vocabularies))


if __name__ == "__main__":
    main()
