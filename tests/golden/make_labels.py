"""Freezes what transformers' BERT with a classifier of three named labels computes: labels.npz.

python tests/golden/make_labels.py     (made with torch 2.13.0 and transformers 5.24.0)

Of each problem_type the loss for some labels, and of several-label classification what the
pipeline `text-classification` answers; and the config.json that transformers writes.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

HERE = Path(__file__).parent
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *["the", "film", "is", "good", "bad", "was", "not", ".", "a", "very"],
]
TEXTS = ["the film is good .", "a very bad film", "not good"]
NAMES = {0: "negative", 1: "neutral", 2: "positive"}
LABELS = {
    "single_label_classification": [0, 2, 1],
    "multi_label_classification": [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
    "regression": [[1.5, 0.25, -1.0], [0.0, 2.0, 0.5], [1.0, 1.0, 3.0]],
    "": [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]],  # by the dtype of the labels
}


def main() -> None:
    """Draws the weights, and runs the model once for each problem."""
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        id2label=NAMES,
        label2id={name: number for number, name in NAMES.items()},
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    for weight in model.parameters():
        weight.data = 0.3 * torch.randn(weight.shape)
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_text("\n".join(WORDS) + "\n")
        tokenizer = transformers.BertTokenizer(vocab=str(Path(folder, "vocab.txt")))
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        for problem, labels in LABELS.items():
            model.config.problem_type = problem or None
            with torch.no_grad():
                found = model(**batch, labels=torch.tensor(labels))
            arrays[f"loss/{problem}"] = found.loss.numpy()
        model.config.problem_type = "multi_label_classification"
        answers = transformers.pipeline(
            "text-classification", model=model, tokenizer=tokenizer, top_k=None
        )(TEXTS)
        arrays["answers"] = np.array(json.dumps(answers))
        model.save_pretrained(folder)
        arrays["config.json"] = np.array(Path(folder, "config.json").read_text())
        weights = load_file(Path(folder, "model.safetensors"))
        arrays |= {f"weights/{name}": weight for name, weight in weights.items()}
        arrays |= {name: tensor.numpy() for name, tensor in batch.items()}
    arrays["words"] = np.array(json.dumps(WORDS))
    arrays["texts"] = np.array(json.dumps(TEXTS))
    arrays["labels"] = np.array(json.dumps(LABELS))
    np.savez_compressed(HERE / "labels.npz", **arrays)


if __name__ == "__main__":
    main()
