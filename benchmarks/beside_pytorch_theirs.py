"""PyTorch's side of benchmarks/beside_pytorch.py: Hugging Face's networks."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks.beside_pytorch_rows import NETWORKS, Row

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": functools.partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
    "adafactor": torch.optim.Adafactor,
}


def train(row: Row, side: str, folder: pathlib.Path) -> Callable[[], float]:
    """Return a training step on one batch, a function that returns the loss."""
    network = _network(row, folder).train()
    optimizer = _OPTIMIZERS[row.optimizer](network.parameters(), lr=1e-4)
    logits = _masked_logits if row.network == "bert" else _logits
    compute = torch.compile(logits) if side == "compiled" else logits
    inputs, targets = _batch(row)

    def take() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(compute(network, *inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return take


def generate(row: Row, side: str, folder: pathlib.Path) -> Callable[[], list[list[int]]]:
    """Return a function that generates `targets` tokens after each prompt, without an end token."""
    network = _network(row, folder).eval()
    prompt = torch.tensor(row.tokens("inputs"), device=network.device)
    # A static cache makes `generate` compile the network.
    cache = {"cache_implementation": "static"} if side == "compiled" else {}

    def take() -> list[list[int]]:
        with torch.inference_mode():
            found = network.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                num_beams=row.beams,
                max_new_tokens=row.targets,
                min_new_tokens=row.targets,
                **cache,
            )
        return found[:, -row.targets :].tolist()

    return take


def product(row: Row, side: str, folder: pathlib.Path) -> Callable[[], None]:
    """Return a function that multiplies square matrices."""
    del side, folder
    matrix = torch.ones(row.rows, row.rows)

    def take() -> None:
        torch.matmul(matrix, matrix)

    return take


def _network(row: Row, folder: pathlib.Path) -> Any:
    """Load the network from the folder, where the first side writes the weights."""
    config, kind, settings = NETWORKS[row.network]
    if not any(folder.iterdir()):
        torch.manual_seed(0)
        made = getattr(transformers, kind)(getattr(transformers, config)(**settings))
        if row.network.startswith("t5_v1_1"):
            # Hugging Face's initialization of this head gives logits of hundreds. Their gradients
            # are mostly denormal numbers, which slow PyTorch to a third, and which XLA flushes to
            # zero.
            made.lm_head.weight.data *= made.config.d_model**-0.5
        made.to(getattr(torch, row.dtype)).save_pretrained(folder)
    network = getattr(transformers, kind).from_pretrained(folder, dtype=getattr(torch, row.dtype))
    return network.to("cuda" if row.gpu else "cpu")


def _batch(row: Row) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments of the logits, and the targets."""
    if row.network == "bert":
        tokens, masked = torch.tensor(row.tokens("inputs")), torch.tensor(row.masked())
        return (tokens, masked.nonzero(as_tuple=True)), tokens[masked]
    tokens = torch.tensor(row.tokens("targets"))
    inputs = {"input_ids": tokens[:, :-1]}
    if row.inputs:
        inputs = {"input_ids": torch.tensor(row.tokens("inputs"))}
        inputs["decoder_input_ids"] = tokens[:, :-1]
    return (inputs,), tokens[:, 1:].flatten()


def _logits(network: Any, inputs: dict[str, Any]) -> Any:
    return network(**inputs, use_cache=False).logits.flatten(0, 1)


def _masked_logits(network: Any, tokens: Any, places: Any) -> Any:
    return network.cls(network.bert(tokens).last_hidden_state[places])
