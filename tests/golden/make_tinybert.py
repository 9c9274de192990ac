"""Freezes TinyBERT's losses and their gradients as PyTorch computes them: tinybert.npz.

python tests/golden/make_tinybert.py      (made with torch 2.13.0, transformers 5.23.0)

A student of 2 layers and width 12, a teacher of 4 layers and width 24, both of 3 heads, whose
weights `drawn_weights` draws from their names. The scores before the softmax are taken from the
queries and keys of Hugging Face's layers, with -10000 on padding as in the paper's code, and set to
0 on both sides at -100 or less. Means are over what is not padding.
"""

import math
from pathlib import Path

import drawn_weights
import numpy as np
import torch
import transformers

HEADS, LABELS = 3, 5
STUDENT = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 20}
TEACHER = {"hidden_size": 24, "num_hidden_layers": 4, "intermediate_size": 28}
TEMPERATURE = 1.7


def model(prefix: str, sizes: dict) -> torch.nn.Module:
    """A classifier with drawn weights, that keeps its queries and keys."""
    config = transformers.BertConfig(
        vocab_size=drawn_weights.VOCABULARY,
        num_attention_heads=HEADS,
        max_position_embeddings=16,
        num_labels=LABELS,
        **sizes,
    )
    made = transformers.BertForSequenceClassification(config).eval()
    for name, weight in made.named_parameters():
        weight.data = torch.tensor(drawn_weights.draw(f"{prefix}.{name}", tuple(weight.shape)))
    made.kept = []
    for layer in made.bert.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.register_forward_hook(lambda module, inputs, output: made.kept.append(output))
    return made


def run(made: torch.nn.Module, batch: dict) -> tuple:
    """Logits, hidden states, and scores with padding as the authors' code has them."""
    made.kept.clear()
    outputs = made(**batch, output_hidden_states=True)
    rows, length = batch["input_ids"].shape
    split = [x.reshape(rows, length, HEADS, -1).transpose(1, 2) for x in made.kept]
    padding = (1 - batch["attention_mask"])[:, None, None] * -10000.0
    scores = [
        query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + padding
        for query, key in zip(split[::2], split[1::2], strict=True)
    ]
    zeroed = [torch.where(x <= -1e2, torch.zeros_like(x), x) for x in scores]
    return outputs.logits, outputs.hidden_states, zeroed


def mean(squared: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The mean over what is not padding."""
    return (squared * weights).sum() / weights.sum()


def compared(
    student: torch.nn.Module, teacher: torch.nn.Module, batch: dict, maps: list
) -> dict[str, torch.Tensor]:
    """The four losses."""
    logits, states, scores = run(student, batch)
    with torch.no_grad():
        target_logits, target_states, target_scores = run(teacher, batch)
    real = batch["attention_mask"].float()
    pairs = real[:, :, None] * real[:, None]
    return {
        "hidden": sum(
            mean(((states[m] @ maps[0] - target_states[2 * m]) ** 2).mean(-1), real) for m in (1, 2)
        ),
        "attention": sum(
            mean(((scores[m - 1] - target_scores[2 * m - 1]) ** 2).mean(1), pairs) for m in (1, 2)
        ),
        "embedding": mean(((states[0] @ maps[1] - target_states[0]) ** 2).mean(-1), real),
        "prediction": torch.nn.functional.cross_entropy(
            logits / TEMPERATURE, (target_logits / TEMPERATURE).softmax(-1)
        ),
    }


def main() -> None:
    base = {"model_type": "bert", "pad_token_id": 0}
    rows = drawn_weights.inputs(base, sides="segments", base=base)
    batch = {name: torch.tensor(value).long() for name, value in rows.items()}
    student, teacher = model("student", STUDENT), model("teacher", TEACHER)
    maps = [
        torch.tensor(drawn_weights.draw(name, (12, 24)), requires_grad=True)
        for name in ("hidden_map", "embedding_map")
    ]
    losses = compared(student, teacher, batch, maps)
    parameters = {
        "query": student.bert.encoder.layer[0].attention.self.query.weight,
        "words": student.bert.embeddings.word_embeddings.weight,
        "hidden_map": maps[0],
        "embedding_map": maps[1],
        "classifier": student.classifier.weight,
    }
    gradients = torch.autograd.grad(sum(losses.values()), list(parameters.values()))
    arrays = {f"batch/{name}": value for name, value in rows.items()}
    arrays |= {f"loss/{name}": value.detach().numpy() for name, value in losses.items()}
    # Of tables and kernels as Hugging Face has them, and of maps from the student's width.
    arrays |= {
        f"gradient/{name}": value.numpy() for name, value in zip(parameters, gradients, strict=True)
    }
    np.savez_compressed(Path(__file__).with_name("tinybert.npz"), **arrays)
    print({name: float(value.detach()) for name, value in losses.items()})


if __name__ == "__main__":
    main()
