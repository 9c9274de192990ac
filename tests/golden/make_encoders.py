"""Freezes what Hugging Face's encoders compute with random weights, under every head: <system>.npz.

python tests/golden/make_encoders.py [system ...]   (made with torch 2.13.0, transformers 5.23.0)

No dimension equals another, so that no transposed weight can pass for its transpose, and every
weight is random, gains and biases too, so that none has the value that a forgotten one would have.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, LENGTH, LABELS = 74, 19, 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 28,
    "max_position_embeddings": 40,
}
OUTPUTS = {  # ours by Hugging Face's
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "row_logits",
    "sop_logits": "row_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "last_hidden_state": "hidden",
    "pooler_output": "summary",
}
HEADS = {
    "pretraining": "ForPreTraining",
    "masked_lm": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "features": "Model",
}
OWN_HEADS = {"discriminator": "ForPreTraining", "multiple_choice": "ForMultipleChoice"}
RELATIVE = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 18,
}
SPARSE = {"type_vocab_size": 2, "block_size": 2, "num_random_blocks": 1, "sep_token_id": 4}
# System: the prefix of its classes, the heads that they have, its settings, segments.
FAMILIES = {
    "bert": ("Bert", tuple(HEADS), {"type_vocab_size": 2}, True),
    "albert": (
        "Albert",
        tuple(HEADS),
        {
            "type_vocab_size": 2,
            "embedding_size": 14,
            "num_hidden_layers": 4,
            "num_hidden_groups": 2,
            "inner_group_num": 3,
        },
        True,
    ),
    "roberta": (
        "Roberta",
        tuple(HEADS)[1:],
        {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
        False,
    ),
    "electra": (
        "Electra",
        ("discriminator", *tuple(HEADS)[1:]),
        {"type_vocab_size": 2, "embedding_size": 14},
        True,
    ),
    "distilbert": ("DistilBert", tuple(HEADS)[1:], {"hidden_dim": 28}, False),
    # 10 blocks of 2 tokens, and dense attention; no token is the separator of its questions.
    "bigbird": ("BigBird", (*HEADS, "multiple_choice"), SPARSE, True),
    "bigbird_full": ("BigBird", ("masked_lm",), SPARSE | {"attention_type": "original_full"}, True),
    "deberta": ("Deberta", tuple(HEADS)[1:], RELATIVE | {"max_relative_positions": 7}, False),
    # As in version 3, and as in version 2 (with projections of the table, and a convolution).
    "deberta_v3": (
        "DebertaV2",
        (*tuple(HEADS)[1:], "multiple_choice"),
        RELATIVE | {"share_att_key": True, "position_buckets": 6, "norm_rel_ebd": "layer_norm"},
        False,
    ),
    "deberta_v2": (
        "DebertaV2",
        ("masked_lm",),
        RELATIVE | {"max_relative_positions": 11, "conv_kernel_size": 3, "conv_act": "gelu"},
        False,
    ),
}


def draw(model: torch.nn.Module) -> None:
    """Draws every weight by its name, so that a tensor is the same under every head."""
    for name, weight in model.named_parameters():
        part = name.split(".", 1)[1] if name.startswith(model.base_model_prefix + ".") else name
        random = torch.Generator().manual_seed(sum(map(ord, part)) * 1000 + len(part))
        noise = torch.randn(weight.shape, generator=random)
        if "norm" in name.lower() and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "embeddings" in name:
            weight.data = 0.5 * noise
        else:
            weight.data = 1.5 * noise * weight.shape[1] ** -0.5


def inputs(segments: bool, *, padding: int) -> dict[str, np.ndarray]:
    """Rows without padding, padded on the right and on the left."""
    random = np.random.default_rng(3)
    tokens = random.integers(5, VOCABULARY, (4, LENGTH))
    mask = np.ones_like(tokens)
    mask[1, 12:], mask[2, 3:], mask[3, :6] = 0, 0, 0
    batch = {"input_ids": np.where(mask == 1, tokens, padding), "attention_mask": mask}
    if segments:
        batch["token_type_ids"] = random.integers(0, 2, tokens.shape) * mask
    return batch


@torch.no_grad()
def freeze(system: str) -> dict[str, np.ndarray]:
    """The folders of all heads, and what each computes."""
    prefix, heads, settings, segments = FAMILIES[system]
    rows = inputs(segments, padding=settings.get("pad_token_id", 0))
    arrays = {f"batch/{name}": value.astype(np.int32) for name, value in rows.items()}
    batch = {name: torch.tensor(value) for name, value in rows.items()}
    for head in heads:
        labels = {"regression": 1, "pretraining": 2, "question_answering": 2}.get(head, LABELS)
        config = getattr(transformers, f"{prefix}Config")(
            **{**SIZES, **settings, "num_labels": labels}
        )
        model = getattr(transformers, prefix + (HEADS | OWN_HEADS)[head])(config).eval()
        draw(model)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            weights = load_file(Path(folder) / "model.safetensors")
            stored = json.loads((Path(folder) / "config.json").read_text())
        arrays[f"{head}/config.json"] = np.array(json.dumps(stored))
        arrays[f"{head}/names"] = np.array(list(weights))
        arrays[f"{head}/keys"] = np.array([_key(head, name, model) for name in weights])
        for key, (name, weight) in zip(arrays[f"{head}/keys"], weights.items(), strict=True):
            same = arrays.setdefault(f"weights/{key}", weight)
            assert np.array_equal(same, weight), name
        if head == "multiple_choice":  # of one example
            batch = {name: value[None] for name, value in batch.items()}
        for name, value in model(**batch).items():
            arrays[f"{head}/{OUTPUTS[name]}"] = value.numpy()
    return arrays


def _key(head: str, name: str, model: torch.nn.Module) -> str:
    """What a tensor is kept under: once for all heads that have it."""
    if name.startswith("classifier"):  # of other outputs under each head
        return f"{head}.{name}"
    return f"{model.base_model_prefix}.{name}" if head == "features" else name


for system in sys.argv[1:] or FAMILIES:
    frozen = freeze(system)
    np.savez_compressed(Path(__file__).with_name(f"{system}.npz"), **frozen)
    print(system, len(frozen), sum(array.nbytes for array in frozen.values()))
