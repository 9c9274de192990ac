"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.losses import autoregressive
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.selection import select_core
from t5x_like.models.blocks.residual import PostNormBlock
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.positions import AddPositions, LearnedPositions
from t5x_like.models.embeddings.token_embeddings import TiedHead, TokenEmbed
from t5x_like.models.feed_forward.mlp import MLP
from t5x_like.models.heads.decoder_heads import ChoiceHead, ClassHead
from t5x_like.models.networks.decoder import Decoder
from t5x_like.models.networks.decoder_classifier import DecoderClassifier
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import LayerNorm
from t5x_like.models.types import Batch
from t5x_like.names import choose
from t5x_like.systems.system import System, Task

# Section 4.1. Fine-tuning has `added_tokens` more rows in the table of `vocab_size` tokens.
SIZES: dict[str, dict[str, Any]] = {
    "base": {
        "vocab_size": 40478,
        "added_tokens": 0,
        "positions": 512,
        "layers": 12,
        "d_model": 768,
        "d_ff": 3072,
        "heads": 12,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "head": "language_modeling",
        "labels": 2,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }
}

INIT = nn.initializers.normal(0.02)
loss = autoregressive.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES (sections 3.1 and 4.1).

    Raises:
        ValueError: no such head, or fewer than 2 labels for one that needs them.
    """
    dtype = jnp.dtype(config["dtype"])
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config["positions"],
                features=config["d_model"],
                embedding_init=INIT,
                dtype=dtype,
            ),
        ),
        make_stack=functools.partial(
            Stack,
            make_block=_block(config),
            layers=config["layers"],
            loop=config["loop"],
            remat=config["remat"],
        ),
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )
    return _network(config)(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"] + config["added_tokens"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            embedding_init=INIT,
            dtype=dtype,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def _block(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        PostNormBlock,
        make_norm=functools.partial(LayerNorm, epsilon=1e-5, dtype=dtype),
        make_self_attention=functools.partial(
            Attention,
            heads=config["heads"],
            width=config["d_model"] // config["heads"],
            core=select_core(config["attention"]),
            dropout=config["dropout"],
            dropout_broadcast=config["dropout_broadcast"],
            use_bias=True,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            dtype=dtype,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config["d_ff"],
            activation=functools.partial(nn.gelu, approximate=True),
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            dtype=dtype,
        ),
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )


def _network(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The language model, with or without a head for labelled text (section 3.2)."""
    of_head = {"kernel_init": INIT, "dropout": config["dropout"]}
    networks: dict[str, Callable[..., nn.Module]] = {
        "language_modeling": Decoder,
        "classification": functools.partial(
            DecoderClassifier,
            make_label_head=functools.partial(ClassHead, labels=config["labels"], **of_head),
        ),
        "regression": functools.partial(
            DecoderClassifier, make_label_head=functools.partial(ClassHead, labels=1, **of_head)
        ),
        "multiple_choice": functools.partial(
            DecoderClassifier, make_label_head=functools.partial(ChoiceHead, **of_head)
        ),
    }
    network = choose("model.head", config["head"], networks)
    if config["head"] == "classification" and config["labels"] < 2:
        raise ValueError(f"model.labels={config['labels']}: the head 'classification' needs 2")
    if config["head"] != "language_modeling" and config["added_tokens"] < 3:
        raise ValueError(
            f"model.added_tokens={config['added_tokens']}: the head {config['head']!r} needs 3, "
            "the start, delimiter and extract tokens"
        )
    return network


def fine_tuning_loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    auxiliary: float = 0.5,
) -> losses.LossSums:
    """L3 = L2 + `auxiliary` * L1 (section 3.2, equations 4 and 5), summed over examples.

    L2 is the cross-entropy of `label` [B], or the squared error of `value` [B]. L1 is the
    cross-entropy of tokens: as in the authors' code, the mean over an example's rows of each row's
    mean, so that texts of all lengths count alike.

    Returns:
        The sum, the number of examples, and the metrics of the labels (`cross_entropy` and
        `accuracy`) or of the numbers (`squared_error` and `absolute_error`), and
        `language_modeling`, L1.
    """
    outputs = losses.forward(module, params, batch, rng)
    tokens, real = batch["decoder_input_tokens"], batch["decoder_segment_ids"] > 0
    predicted, examples = outputs["label_logits"], real[:, 0, 0]
    if "value" in batch:
        total, weight, metrics = losses.regression(predicted[:, 0], batch["value"], examples)
    else:
        total, weight, metrics = losses.classification(predicted, batch["label"], examples)
    weights = real[..., 1:].astype(jnp.float32)  # the first token has no context
    in_row = jnp.maximum(jnp.sum(weights, axis=2, keepdims=True), 1.0)
    rows = jnp.maximum(jnp.sum(real[..., :1], axis=1, keepdims=True), 1)
    text, _, of_text = losses.cross_entropy(
        outputs["logits"][..., :-1, :], tokens[..., 1:], weights / in_row / rows
    )
    metrics["language_modeling"] = of_text["cross_entropy"]
    return total + auxiliary * text, weight, metrics


SYSTEM = System(
    name="gpt",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "language_modeling": Task(loss=loss, prediction="text"),
        "classification": Task(
            loss=fine_tuning_loss, prediction="decoder_classes", measures=("predictions",)
        ),
        "regression": Task(
            loss=fine_tuning_loss, prediction="decoder_number", measures=("predictions",)
        ),
        "multiple_choice": Task(
            loss=fine_tuning_loss, prediction="choices", measures=("predictions",)
        ),
    },
    new_rows={"token_embedder/embedding": ("vocab_size", "added_tokens")},
)
