"""ALBERT: Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised ..." (arXiv:1909.11942)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.blocks.shared_stack import SharedStack
from t5x_like.models.heads.encoder_heads import MaskedLMHead, Pooler, Pretraining, select_head
from t5x_like.models.linear import Linear
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.types import Batch
from t5x_like.names import choose
from t5x_like.systems import bert
from t5x_like.systems.bert import INIT
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "head": "pretraining",
        "labels": 2,
        "vocab_size": 30000,
        "positions": 512,
        "token_types": 2,
        "embedding": 128,
        "layers": layers,
        "share": "all",
        "groups": 1,
        "inner_layers": 1,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "activation": "gelu_new",
        "dropout": 0.0,
        "dropout_broadcast": False,
        "head_dropout": 0.1,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 1 with d_model / 64 heads (section 3.1), and the dropout of the released v2 models; the
# paper's own (v1) have 0.1, except xxlarge. For xlarge, the released archive has 32 heads as well,
# and Hugging Face's config.json 16 (github.com/google-research/albert/issues/180).
SIZES: dict[str, dict[str, Any]] = {
    "base": _size(12, 768, 12),
    "large": _size(24, 1024, 16),
    "xlarge": _size(24, 2048, 32),
    "xxlarge": _size(12, 4096, 64),
}

ACTIVATIONS = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": functools.partial(nn.gelu, approximate=True),
}
_ATTENTION = ("self_attention", "self_attention_norm")
_FEED_FORWARD = ("feed_forward", "feed_forward_norm")
# The parts of a layer that have the same parameters in all layers of a group (section 4.5).
SHARED: dict[str, tuple[str, ...]] = {
    "all": (*_ATTENTION, *_FEED_FORWARD),
    "attention": _ATTENTION,
    "feed_forward": _FEED_FORWARD,
    "none": (),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Raises:
        ValueError: no such head, kind of sharing or activation, or groups of unequal size.
    """
    dtype = jnp.dtype(config["dtype"])
    make_masked_lm = bert.masked_lm(config, activation=_activation(config))
    make_pooler = functools.partial(Pooler, activation=nn.tanh, kernel_init=INIT, dtype=dtype)
    own = {
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=make_pooler,
            classes=2,
            kernel_init=INIT,
            dropout=config["head_dropout"],
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }
    return Encoder(
        # Section 3.1: embeddings of width E, and a projection to the width of the layers.
        make_embeddings=bert.embeddings({**config, "d_model": config["embedding"]}),
        make_projection=functools.partial(
            Linear,
            (config["d_model"],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=INIT,
            dtype=dtype,
        ),
        make_encoder=tower(config),
        make_head=select_head(
            {**config, "dropout": config["head_dropout"]},
            own,
            make_pooler=make_pooler,
            kernel_init=INIT,
        ),
    )


def _activation(config: Mapping[str, Any]) -> Callable[[jax.Array], jax.Array]:
    return choose("model.activation", config["activation"], ACTIVATIONS)


def tower(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """BERT's layers, which share parameters (section 3.1)."""
    stack = functools.partial(
        SharedStack,
        make_block=bert.block(config, activation=_activation(config)),
        layers=config["layers"],
        parts=choose("model.share", config["share"], SHARED),
        groups=config["groups"],
        inner=config["inner_layers"],
        loop=config["loop"],
        remat=config["remat"],
    )
    return functools.partial(
        Tower,
        make_stack=stack,
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The sum of two means: masked tokens, and the class of a pair of segments (section 3.1).

    The class is their order, or with another objective whether the second follows the first.

    Args:
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no labels of pairs.
    """
    outputs, masked = losses.predict_masked(module, params, batch, rng, share=predicted)
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "sentences": (1.0, losses.sentence_pairs(outputs, batch)),
        }
    )


SYSTEM = System(
    name="albert",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
