"""Decoding and training beside Hugging Face's PyTorch models, in one process, on random weights.

    pip install torch transformers      # for this benchmark alone
    python benchmarks/beside_pytorch.py decode [--systems gpt2 llama t5] [--repeats 3]
    python benchmarks/beside_pytorch.py train [--systems gpt2 llama]

Both sides have the same weights and the same tokens, in float32, and take turns; figures are
medians, and the ratio is ours to theirs. Decoding is greedy with a cache, without an end token; the
tokens that the two write are compared as well, and so are the losses of the first training step.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    import importlib.util

    from t5x_like.experiment.command_line import ArgumentParser, count

    PARSER = ArgumentParser(__doc__, prog="python benchmarks/beside_pytorch.py")
    PARSER.add_argument("what", choices=("decode", "train"))
    PARSER.add_argument("--systems", nargs="+", default=None, choices=("gpt2", "llama", "t5"))
    PARSER.add_argument("--repeats", type=count, default=3)
    PARSER.add_argument("--batches", type=count, nargs="+", default=[1, 8])
    ARGUMENTS = PARSER.parse_args()
    if None in map(importlib.util.find_spec, ("torch", "transformers")):
        PARSER.error("torch or transformers is not there: pip install torch transformers")

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from t5x_like import systems
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.training import optimizers, state, step

# The published shapes of T5 small and of GPT-2's smallest; LLaMA's parts at about 100M.
SHAPES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32000,
            hidden_size=640,
            intermediate_size=1728,
            num_hidden_layers=12,
            num_attention_heads=10,
        )
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=32128, dropout_rate=0.0, decoder_start_token_id=0, use_cache=True
        )
    ),
}
PROMPT, NEW = 32, 64
ROWS, LENGTH = 4, 128  # of a training batch


def main(arguments: argparse.Namespace) -> None:
    """Prints the figures."""
    default = list(SHAPES) if arguments.what == "decode" else ["gpt2", "llama"]
    for system in arguments.systems or default:
        torch.manual_seed(0)
        theirs = SHAPES[system]().eval()
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            loop = "unroll" if arguments.what == "decode" else "scan"
            ours = from_pretrained(folder, loop=loop)
        millions = sum(x.numel() for x in theirs.parameters()) / 1e6
        if arguments.what == "train":
            print(f"{system}, {millions:.0f}M, training on {ROWS} x {LENGTH}: ", end="", flush=True)
            print(train(ours, theirs, repeats=arguments.repeats))
            continue
        for rows in arguments.batches:
            print(f"{system}, {millions:.0f}M, {rows} rows, {NEW} new tokens: ", end="", flush=True)
            print(decode(ours, theirs, rows=rows, repeats=arguments.repeats))


def decode(ours: Pretrained, theirs: Any, *, rows: int, repeats: int) -> str:
    """Tokens per second of a whole call of `generate`, its prompt counted in the time."""
    prompt = np.random.default_rng(0).integers(2, 32000, (rows, PROMPT))
    as_tensor = torch.tensor(prompt)
    limits = {"max_new_tokens": NEW, "min_new_tokens": NEW}

    def their_tokens() -> np.ndarray:
        with torch.inference_mode():
            return theirs.generate(
                as_tensor, attention_mask=torch.ones_like(as_tensor), do_sample=False, **limits
            ).numpy()

    def our_tokens() -> np.ndarray:
        return ours.generate(prompt, np.ones_like(prompt), **limits)

    same = np.mean(our_tokens()[:, -NEW:] == their_tokens()[:, -NEW:])
    rates = compare(our_tokens, their_tokens, tokens=rows * NEW, repeats=repeats)
    return f"{rates}, {same:.0%} of the tokens equal"


def train(ours: Pretrained, theirs: Any, *, repeats: int) -> str:
    """Tokens per second of forward pass, backward pass and AdamW."""
    tokens = np.random.default_rng(0).integers(2, 32000, (ROWS, LENGTH + 1))
    as_tensor = torch.tensor(tokens)
    theirs.train()
    adamw = torch.optim.AdamW(theirs.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def their_step() -> float:
        adamw.zero_grad()
        logits = theirs(as_tensor[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), as_tensor[:, 1:].flatten())
        loss.backward()
        adamw.step()
        return float(loss.detach())

    our_step = make_step(ours, tokens)
    losses = our_step(), their_step()
    rates = compare(our_step, their_step, tokens=ROWS * LENGTH, repeats=repeats)
    return f"{rates}; first losses {losses[0]:.4f} and {losses[1]:.4f}"


def make_step(ours: Pretrained, tokens: np.ndarray) -> Callable[[], float]:
    """A training step of the trainer's own, on the same batch every time."""
    batch = {
        "decoder_input_tokens": jnp.asarray(tokens[:, :-1]),
        "decoder_target_tokens": jnp.asarray(tokens[:, 1:]),
        "decoder_loss_weights": jnp.ones((ROWS, LENGTH)),
    }
    boxed = jax.eval_shape(lambda: ours.module.init(jax.random.key(0), ours.module.example_batch()))
    optimizer, schedule = optimizers.build(
        {
            "name": "adamw",
            "b2": 0.95,
            "weight_decay": 0.1,
            "learning_rate": 1e-4,
            "schedule": "constant",
        },
        axes=nn.get_partition_spec(boxed)["params"],
    )
    loss = systems.find(ours.system).task(ours.config).loss

    def apply(params: Any, batch: Mapping[str, Any], rng: Any) -> Any:
        return loss(ours.module, params, batch, rng)

    make = step.make_train_step(apply, optimizer, schedule=schedule, microbatches=1)
    compiled = jax.jit(make, donate_argnums=0)
    held = [state.create(ours.params, optimizer=optimizer, seed=0)]

    def take() -> float:
        held[0], metrics = compiled(held[0], batch)
        return float(metrics["loss"].compute())

    return take


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], *, tokens: int, repeats: int
) -> str:
    """Tokens per second of both, in turn."""
    seconds: dict[Callable[[], Any], list[float]] = {ours: [], theirs: []}
    for _ in range(repeats):
        for run, times in seconds.items():
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    mine, others = (tokens / statistics.median(times) for times in seconds.values())
    return f"{mine:.1f} tokens/s, theirs {others:.1f}, ratio {mine / others:.2f}"


if __name__ == "__main__":
    main(ARGUMENTS)
