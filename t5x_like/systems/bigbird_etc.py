"""BigBird-ETC: Zaheer et al. 2020 (arXiv:2007.14062), after Ainslie et al. 2020 (2004.08483)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.attention.global_local import GlobalLocalAttention
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.token_embeddings import TokenEmbed
from t5x_like.models.heads.encoder_heads import MaskedLMHead, Pooler, select_head
from t5x_like.models.networks.global_local_encoder import (
    GlobalLocalBlock,
    GlobalLocalEmbeddings,
    GlobalLocalEncoder,
    documents_of_sentences,
)
from t5x_like.models.networks.tower import Tower
from t5x_like.models.types import Batch, Outputs
from t5x_like.systems import bert, bigbird
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

_SIDES = ("text", "global")  # whose relative positions differ


def _size(layers: int, d_model: int, heads: int, block: int) -> dict[str, Any]:
    return {
        "head": "pretraining",
        "labels": 2,
        "vocab_size": 50265,
        "global_tokens": 256,
        "global_token": 1,
        "hard_global": True,
        "hard_text": False,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "block": block,
        "distance": 12,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Appendix E.1, table 8. The distance, the id of global tokens and the masks are ETC's released
# code's.
SIZES: dict[str, dict[str, Any]] = {
    "base": _size(12, 768, 12, block=84),
    "large": _size(24, 1024, 16, block=169),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES: global tokens in front of a text.

    Args:
        config: its `head` is "pretraining" (masked tokens, and sentences by their global tokens),
            "masked_lm" or one of `select_head`; `global_tokens` is the most sentences that have
            one, and `global_token` their id; `hard_global` and `hard_text` as in `SentenceMask`;
            `block` the tokens of a block, and `distance` the largest relative position.

    Raises:
        ValueError: no such head, or a block or a number of global tokens below 1.
    """
    for name in ("block", "global_tokens"):
        if config[name] < 1:
            raise ValueError(f"model.{name}={config[name]} must be 1 or more")
    dtype = jnp.dtype(config["dtype"])
    masked_lm = functools.partial(
        MaskedLMHead, make_masked_lm=bert.masked_lm(config, activation=bigbird.GELU)
    )
    make_pooler = functools.partial(Pooler, activation=nn.tanh, kernel_init=bert.INIT, dtype=dtype)
    own = {"pretraining": masked_lm, "masked_lm": masked_lm}
    return GlobalLocalEncoder(
        make_embeddings=embeddings(config),
        make_encoder=tower(config),
        make_head=select_head(config, own, make_pooler=make_pooler, kernel_init=bert.INIT),
        count=config["global_tokens"],
        hard_global=config["hard_global"],
        hard_text=config["hard_text"],
    )


def embeddings(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """Embeddings of tokens and of the two kinds, summed, with a layer norm for each kind."""
    dtype = jnp.dtype(config["dtype"])
    table = functools.partial(
        TokenEmbed, features=config["d_model"], embedding_init=bert.INIT, dtype=dtype
    )
    return functools.partial(
        GlobalLocalEmbeddings,
        make_tokens=functools.partial(
            table, vocab_size=config["vocab_size"], lookup=config["embedding_lookup"]
        ),
        make_kinds=functools.partial(table, vocab_size=2, axis="types", lookup="one_hot"),
        make_norm=functools.partial(bert.NORM, dtype=dtype),
        count=config["global_tokens"],
        token_id=config["global_token"],
    )


def tower(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """BERT's layers with global-local attention."""
    dtype = jnp.dtype(config["dtype"])
    block = functools.partial(
        GlobalLocalBlock,
        make_norm=functools.partial(bert.NORM, dtype=dtype),
        make_self_attention=functools.partial(
            GlobalLocalAttention,
            block=config["block"],
            distance=config["distance"],
            heads=config["heads"],
            width=config["d_model"] // config["heads"],
            dropout=config["dropout"],
            dropout_broadcast=config["dropout_broadcast"],
            use_bias=True,
            query_init=bert.INIT,
            kernel_init=bert.INIT,
            out_init=bert.INIT,
            relative_init=bert.INIT,
            dtype=dtype,
        ),
        make_feed_forward=bert.feed_forward(config, activation=bigbird.GELU),
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
        count=config["global_tokens"],
    )
    return functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack,
            make_block=block,
            layers=config["layers"],
            loop=config["loop"],
            remat=config["remat"],
        ),
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    sentences: float = 0.25,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The sum of two means: masked tokens, and hidden sentences by contrast (appendix E.2).

    Args:
        rng: key of dropout; None in evaluation.
        sentences: weight of the second.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no hidden sentences.
    """
    if "encoder_hidden" not in batch:
        raise ValueError(
            "model.head='pretraining' finds hidden sentences, and the batch has none: set "
            "data.objective='etc', or model.head='masked_lm'"
        )
    outputs, masked = losses.predict_masked(
        module, params, batch, rng, share=predicted, method="compare"
    )
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "sentences": (sentences, contrast(outputs, batch)),
        }
    )


def contrast(outputs: Outputs, batch: Batch) -> losses.LossSums:
    """The loss of finding each hidden sentence among the sentences of its row.

    Contrastive predictive coding as a dual encoder (Ainslie et al. 2020): the global
    token of a hidden sentence, which sees the rest of the row, is to be nearest to that of the
    sentence alone. The logits are the products of the two, divided by the root of their width.

    Args:
        outputs: with `summaries` and `alone` [B, G, D].
        batch: with `encoder_sentences` and `encoder_hidden` [B, L], 1 on hidden sentences.
    """
    summaries, alone = outputs["summaries"], outputs["alone"]
    count, width = summaries.shape[1:]
    numbers = batch["encoder_sentences"]
    real = documents_of_sentences(numbers, jnp.ones_like(numbers), count=count) > 0
    hidden = documents_of_sentences(numbers, batch["encoder_hidden"], count=count)
    logits = jnp.einsum("BGD,BSD->BGS", summaries, alone).astype(jnp.float32) * width**-0.5
    logits = jnp.where(real[:, None], logits, -1e9)
    targets = jnp.broadcast_to(jnp.arange(count), hidden.shape)
    return losses.cross_entropy(logits, targets, hidden)


# Of layers that are scanned, and of those of the largest size.
_LAYERS = [f"encoder/layers/{layer}" for layer in ("block", *(f"layer_{n}" for n in range(24)))]


def _copies() -> dict[str, tuple[str, ...]]:
    """The parameters of global tokens, which begin as the text's where the start is a RoBERTa."""
    pairs = {"embeddings/global_norm": "embeddings/norm"}
    for layer in _LAYERS:
        pairs[f"{layer}/global_attention_norm"] = f"{layer}/self_attention_norm"
        pairs[f"{layer}/self_attention/global_out"] = f"{layer}/self_attention/out"
    return {
        f"{here}/{leaf}": (f"{there}/{leaf}",)
        for here, there in pairs.items()
        for leaf in ("scale", "kernel", "bias")
    }


SYSTEM = System(
    name="bigbird_etc",
    sizes=SIZES,
    build=build,
    new_parameters=(
        "embeddings/kinds/",
        *(f"{layer}/self_attention/{side}_relative" for layer in _LAYERS for side in _SIDES),
    ),
    sums=_copies(),
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
