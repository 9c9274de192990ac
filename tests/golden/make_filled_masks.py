"""Freezes what transformers' fill-mask pipeline makes of texts: filled_masks.json.

python tests/golden/make_filled_masks.py   (made with torch 2.13.0, transformers 5.24.0)

A folder has the tokenizer of a folder in tokenizer_folders.json.xz, and weights drawn from their
names (drawn_weights.py), so that the file holds only settings, shapes and results.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

import drawn_weights
import torch
import transformers
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parent
TOP = 5
MORE = 3  # rows of the embedding table without a token, which the pipeline also lists
KEPT = ("token_str", "score")
TEXTS = (
    "The quick {} fox jumps over the lazy dog.",
    "{} is a café, don't {} it.",
    "one {}",
)
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 28,
    "max_position_embeddings": 40,
}
RELATIVE = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 18,
}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
BIGBIRD = {"num_random_blocks": 1, "sep_token_id": 5, "pad_token_id": 0}
DISTILBERT = {
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 28,
    "max_position_embeddings": 40,
}
# The tokenizer's folder, the class, its settings.
FOLDERS = {
    "bert": ("bert/slow", "BertForMaskedLM", SIZES),
    "bert_pretraining": ("bert_cased/slow", "BertForPreTraining", SIZES),
    "roberta": ("roberta/slow", "RobertaForMaskedLM", {**SIZES, **ROBERTA}),
    "xlm_roberta": ("xlm_roberta/slow", "XLMRobertaForMaskedLM", {**SIZES, **ROBERTA}),
    "albert": ("albert/slow", "AlbertForMaskedLM", {**SIZES, "embedding_size": 14}),
    "bigbird": (
        "bigbird/slow",
        "BigBirdForMaskedLM",
        {**SIZES, "max_position_embeddings": 128, "block_size": 16, **BIGBIRD},
    ),
    "electra": ("electra/slow", "ElectraForMaskedLM", {**SIZES, "embedding_size": 14}),
    "distilbert": ("distilbert/slow", "DistilBertForMaskedLM", DISTILBERT),
    "deberta": ("deberta/slow", "DebertaForMaskedLM", {**SIZES, **RELATIVE}),
    "deberta_v2": ("deberta_v2/slow", "DebertaV2ForMaskedLM", {**SIZES, **RELATIVE}),
}


def freeze(name: str, path: Path) -> dict:
    """Write a folder, and return its settings, shapes, texts and what the pipeline answers."""
    source, kind, settings = FOLDERS[name]
    frozen = json.loads(lzma.decompress((GOLDEN / "tokenizer_folders.json.xz").read_bytes()))
    own = frozen["folders"][source]
    for file, number in own["files"].items():
        encoding = "latin-1" if file.endswith((".model", ".spm")) else "utf-8"
        (path / file).write_bytes(frozen["blobs"][number].encode(encoding))
    stored = json.loads((path / "config.json").read_text())
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**settings, vocab_size=own["size"] + MORE)
    network = model_class(config)
    shapes = {
        key: list(tensor.shape)
        for key, tensor in network.state_dict().items()
        if tensor.is_floating_point() and key not in network.all_tied_weights_keys
    }
    stored |= config.to_diff_dict() | {"architectures": [kind], "model_type": config.model_type}
    stored.pop("transformers_version", None)
    (path / "config.json").write_text(json.dumps(stored))
    tensors = {key: drawn_weights.draw(key, tuple(shape)) for key, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    reader = getattr(transformers, kind.replace("ForPreTraining", "ForMaskedLM"))
    loaded, report = reader.from_pretrained(path, output_loading_info=True)
    assert not report["missing_keys"], report
    fill = transformers.pipeline("fill-mask", model=loaded, tokenizer=tokenizer)
    rows = []
    for text in TEXTS:
        text = text.replace("{}", tokenizer.mask_token)
        with torch.no_grad():
            found = fill(text, top_k=TOP + MORE)
        masks = found if isinstance(found[0], list) else [found]
        known = [[one for one in mask if one["token"] < own["size"]][:TOP] for mask in masks]
        masks = [[{key: one[key] for key in KEPT} for one in mask] for mask in known]
        rows.append({"text": text, "masks": masks})
    return {"tokenizer": source, "config": stored, "tensors": shapes, "rows": rows}


def main() -> None:
    made = {}
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as folder:
            made[name] = freeze(name, Path(folder))
        for row in made[name]["rows"]:
            best = [[one["token_str"] for one in mask] for mask in row["masks"]]
            sys.stdout.write(f"{name}: {row['text']!r}: {best}\n")
    path = GOLDEN / "filled_masks.json"
    path.write_text(json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
