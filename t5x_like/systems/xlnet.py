"""XLNet: Yang et al. 2019, "Generalized Autoregressive Pretraining ..." (arXiv:1906.08237)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from t5x_like import losses
from t5x_like.models.attention.selection import select_core
from t5x_like.models.attention.two_sided import TwoSidedAttention
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.blocks.two_stream import TwoStreamBlock
from t5x_like.models.embeddings.token_embeddings import TiedHead, TokenEmbed
from t5x_like.models.feed_forward.mlp import MLP
from t5x_like.models.heads.encoder_heads import (
    Features,
    LastTokenChoiceHead,
    LastTokenHead,
    Pooler,
    select_head,
)
from t5x_like.models.networks.permuted_encoder import PermutedEncoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import LayerNorm
from t5x_like.models.types import Batch, Outputs
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "head": "language_modeling",
        "labels": 2,
        "vocab_size": 32000,
        "token_types": 3,
        "memory": 384,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


SIZES: dict[str, dict[str, Any]] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

INIT = nn.initializers.normal(0.02)
NORM = functools.partial(LayerNorm, epsilon=1e-12)


class OutputLayer(nn.Module):
    """Logits of tokens: products with the embeddings, and a learned constant for each token."""

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, P, V] at the places to predict, or [B, L, V] without any."""
        return {"logits": TiedHead(use_bias=True, name="output")(hidden, table)}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "language_modeling" or one of `select_head`; `memory` is the number of
            tokens before a row that it attends to, 0 for none; `token_types` are the segments of a
            row, the last one that of [CLS], which the network only compares.

    Raises:
        ValueError: no such head, a width that is odd, or a negative memory.
    """
    dtype = jnp.dtype(config["dtype"])
    if config["memory"] < 0:
        raise ValueError(f"model.memory={config['memory']}: set 0 for none, or a number of tokens")
    make_pooler = functools.partial(Pooler, activation=nn.tanh, kernel_init=INIT, dtype=dtype)
    of_row = {
        "make_pooler": make_pooler,
        "kernel_init": INIT,
        "dropout": config["dropout"],
    }
    own: dict[str, Callable[..., nn.Module]] = {
        "language_modeling": OutputLayer,
        "multiple_choice": functools.partial(LastTokenChoiceHead, **of_row),
        "features": Features,
    }
    return PermutedEncoder(
        make_embeddings=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            embedding_init=INIT,
            dtype=dtype,
        ),
        make_encoder=tower(config),
        make_head=select_head(
            config,
            own,
            make_pooler=make_pooler,
            kernel_init=INIT,
            make_row=functools.partial(LastTokenHead, **of_row),
        ),
        layers=config["layers"],
        memory=config["memory"],
        query_init=INIT,
        dropout=config["dropout"],
    )


def tower(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The stack of layers: BERT's with attention of both sides, for two streams."""
    dtype = jnp.dtype(config["dtype"])
    dropout = {
        "dropout": config["dropout"],
        "dropout_broadcast": config["dropout_broadcast"],
    }
    block = functools.partial(
        TwoStreamBlock,
        make_norm=functools.partial(NORM, dtype=dtype),
        make_self_attention=functools.partial(
            TwoSidedAttention,
            heads=config["heads"],
            width=config["d_model"] // config["heads"],
            features=config["d_model"],
            core=select_core(config["attention"]),
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            dtype=dtype,
            **dropout,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config["d_ff"],
            activation=bert.GELU,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            dtype=dtype,
            **dropout,
        ),
        **dropout,
    )
    stack = functools.partial(
        Stack,
        make_block=block,
        layers=config["layers"],
        loop=config["loop"],
        remat=config["remat"],
    )
    return functools.partial(Tower, make_stack=stack, **dropout)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: PyTree,
    predicted: float = 0.17,
) -> tuple[losses.LossSums, PyTree]:
    """The cross-entropy of the tokens at the end of the order (section 2.3, equation 5).

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; empty for a model without.
        predicted: positions with a query, as a share of a row's length: at least the share of the
            tokens that the objective predicts.

    Returns:
        The loss, and the memory for the next batch.
    """
    (outputs, memory), predicted_tokens = losses.predict_masked(
        module,
        params,
        {**batch, "memory": carry} if carry else batch,
        rng,
        share=predicted,
        method="predict",
    )
    return predicted_tokens.cross_entropy(outputs["logits"]), memory


SYSTEM = System(
    name="xlnet",
    sizes=SIZES,
    build=build,
    tasks={
        "language_modeling": Task(
            loss=loss, carry=lambda module, batch: module.first_memory(batch)
        ),
        **ENCODER_TASKS,
    },
)
