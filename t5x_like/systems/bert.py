"""BERT: Devlin et al. 2018, "Pre-training of Deep Bidirectional ..." (arXiv:1810.04805)."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.attention.multi_head import Attention, select_core
from t5x_like.models.blocks.residual import PostNormBlock
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.encoder_embeddings import Embeddings
from t5x_like.models.embeddings.positions import LearnedPositions
from t5x_like.models.embeddings.tokens import TokenEmbed
from t5x_like.models.feed_forward.mlp import MLP
from t5x_like.models.heads.encoder_heads import (
    MaskedLM,
    MaskedLMHead,
    Pretraining,
    Summary,
    select_head,
)
from t5x_like.models.networks.encoder import Encoder, forward
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import LayerNorm
from t5x_like.models.types import Activation
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "head": "pretraining",
        "labels": 2,
        "vocab_size": 30522,
        "positions": 512,
        "token_types": 2,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "dropout": 0.1,
        "attention": "auto",
        "dtype": "float32",
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    }


SIZES: dict[str, dict[str, Any]] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

GELU = functools.partial(nn.gelu, approximate=False)
INIT = nn.initializers.truncated_normal(0.02)
NORM = functools.partial(LayerNorm, epsilon=1e-12)


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES; `head` is one of models/heads/."""
    dtype = jnp.dtype(config["dtype"])
    make_masked_lm = masked_lm(config)
    make_summary = functools.partial(Summary, activation=nn.tanh, kernel_init=INIT, dtype=dtype)
    own = {
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_summary=make_summary,
            classes=2,
            kernel_init=INIT,
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }
    return Encoder(
        make_embeddings=embeddings(config),
        make_encoder=tower(config),
        make_head=select_head(config, own, make_summary=make_summary, kernel_init=INIT),
    )


def embeddings(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """Token, position and segment vectors, summed and normed (figure 2)."""
    table = functools.partial(
        TokenEmbed,
        features=config["d_model"],
        embedding_init=INIT,
        dtype=jnp.dtype(config["dtype"]),
    )
    return functools.partial(
        Embeddings,
        make_tokens=functools.partial(
            table, vocab_size=config["vocab_size"], lookup=config["embedding_lookup"]
        ),
        make_positions=functools.partial(
            LearnedPositions,
            length=config["positions"],
            features=config["d_model"],
            embedding_init=INIT,
            dtype=jnp.dtype(config["dtype"]),
        ),
        # Two rows: the gradient of a gather would add every token of the batch to one of them.
        make_token_types=functools.partial(
            table, vocab_size=config["token_types"], axis="types", lookup="one_hot"
        ),
        make_norm=functools.partial(NORM, dtype=jnp.dtype(config["dtype"])),
    )


def block(
    config: Mapping[str, Any],
    *,
    make_norm: Callable[..., nn.Module] = NORM,
    activation: Activation = GELU,
) -> Callable[..., nn.Module]:
    """A layer (section 3: that of the encoder of Vaswani et al. 2017, with GELU)."""
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        PostNormBlock,
        make_norm=functools.partial(make_norm, dtype=dtype),
        make_self_attention=functools.partial(
            Attention,
            heads=config["heads"],
            width=config["d_model"] // config["heads"],
            core=select_core(config["attention"], dtype=dtype, dropout=config["dropout"]),
            dropout=config["dropout"],
            use_bias=True,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            dtype=dtype,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config["d_ff"],
            activation=activation,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            dtype=dtype,
        ),
        dropout=config["dropout"],
    )


def tower(
    config: Mapping[str, Any], *, make_norm: Callable[..., nn.Module] = NORM
) -> Callable[..., nn.Module]:
    """The layers, each with parameters of its own."""
    stack = functools.partial(
        Stack,
        make_block=block(config, make_norm=make_norm),
        layers=config["layers"],
        loop=config["loop"],
        remat=config["remat"],
    )
    return functools.partial(Tower, make_stack=stack, dropout=config["dropout"])


def masked_lm(
    config: Mapping[str, Any],
    *,
    make_norm: Callable[..., nn.Module] = NORM,
    activation: Activation = GELU,
) -> Callable[..., nn.Module]:
    """The output layer of masked tokens."""
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        MaskedLM,
        make_norm=functools.partial(make_norm, dtype=dtype),
        activation=activation,
        kernel_init=INIT,
        dtype=dtype,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The mean over masked tokens, and for pairs the mean over rows of the next sentence, summed.

    Args:
        rng: key of dropout; None in evaluation.
        predicted: places of a row that are read for masked tokens, as a share of its length: at
            least as many as the objective masks.

    Raises:
        ValueError: the head reads pairs and the batch has none.
    """
    places, kept = losses.predicted(batch["encoder_loss_weights"], share=predicted)
    outputs = forward(module, params, {**batch, "predicted_positions": places}, rng)
    targets = jnp.take_along_axis(batch["encoder_target_tokens"], places, axis=1)
    masked = losses.cross_entropy(outputs["logits"], targets, kept)
    if "row_logits" not in outputs:
        return masked
    if "label" not in batch:
        raise ValueError(
            "model.head='pretraining' needs an objective that labels pairs; without one 'masked_lm'"
        )
    real = batch["encoder_segment_ids"][:, 0] > 0
    following = losses.classification(outputs["row_logits"], batch["label"], real)
    return losses.combine({"masked_lm": (1.0, masked), "next_sentence": (1.0, following)})


SYSTEM = System(
    name="bert",
    sizes=SIZES,
    build=build,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)

# Hugging Face's names: the map of hf/weight_map.py, and settings both ways.

MODEL_TYPES = ("bert",)
HF_CLASS = "Bert"

Weights = dict[str, str | tuple[str, str]]


def dense(here: str, there: str) -> Weights:
    """A dense layer with a bias."""
    return {
        f"{here}/kernel": (f"{there}.weight", "O I -> I O"),
        f"{here}/bias": f"{there}.bias",
    }


def norm(here: str, there: str) -> Weights:
    """The gain and shift of a norm."""
    return {f"{here}/scale": f"{there}.weight", f"{here}/bias": f"{there}.bias"}


def attention(here: str, query: str, key: str, value: str, out: str) -> Weights:
    """An attention layer with biases, from the names of its four dense layers."""
    weights: Weights = {}
    for name, there in {"query": query, "key": key, "value": value}.items():
        weights[f"{here}/{name}/kernel"] = (f"{there}.weight", "(H K) D -> D H K")
        weights[f"{here}/{name}/bias"] = (f"{there}.bias", "(H K) -> H K")
    weights[f"{here}/out/kernel"] = (f"{out}.weight", "D (H K) -> H K D")
    weights[f"{here}/out/bias"] = f"{out}.bias"
    return weights


def encoder_weights(there: str) -> Weights:
    """Embeddings and layers under the prefix `there` ("bert", "roberta", ...)."""
    layer, own = f"{there}.encoder.layer.{{layer}}", f"{there}.encoder.layer.{{layer}}.attention"
    block = "encoder/layers/{layer}"
    return {
        "embeddings/token/embedding": f"{there}.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": f"{there}.embeddings.position_embeddings.weight",
        "embeddings/token_type/embedding": f"{there}.embeddings.token_type_embeddings.weight",
        **norm("embeddings/norm", f"{there}.embeddings.LayerNorm"),
        **attention(
            f"{block}/self_attention",
            f"{own}.self.query",
            f"{own}.self.key",
            f"{own}.self.value",
            f"{own}.output.dense",
        ),
        **norm(f"{block}/self_attention_norm", f"{own}.output.LayerNorm"),
        **dense(f"{block}/feed_forward/wi", f"{layer}.intermediate.dense"),
        **dense(f"{block}/feed_forward/wo", f"{layer}.output.dense"),
        **norm(f"{block}/feed_forward_norm", f"{layer}.output.LayerNorm"),
    }


WEIGHTS: Weights = {
    **encoder_weights("bert"),
    **dense("head/summary/dense", "bert.pooler.dense"),
    **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
    **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
    "head/masked_lm/output/bias": "cls.predictions.bias",
    **dense("head/row", "cls.seq_relationship"),
    **dense("head/classifier", "classifier"),
    **dense("head/tagger", "classifier"),
    **dense("head/answer", "qa_outputs"),
}
WEIGHT_ALIASES = {
    "*.gamma": "*.weight",  # the names of norms in the oldest files
    "*.beta": "*.bias",
    "embeddings.*": "bert.embeddings.*",  # a model without a head
    "encoder.*": "bert.encoder.*",
    "pooler.*": "bert.pooler.*",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
UNUSED_WEIGHTS = (
    "bert.embeddings.position_ids",
    "embeddings.position_ids",
    # The published folders hold all of pretraining, whichever class their config.json names.
    *(f"bert.pooler.dense.{name}" for name in ("weight", "bias")),
    *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
)

# Our settings by their names in config.json.
_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
    "num_hidden_layers": "layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "heads",
}
_FIXED = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def from_hf_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """The settings of `build` for a Hugging Face config.json of BERT.

    Args:
        names: of the tensors in its files, which are not needed here.

    Raises:
        ValueError: a setting is missing, or asks for what this BERT does not have.
    """
    del names
    return SIZES["base"] | read_settings(config, settings=_SETTINGS, fixed=_FIXED)


def read_settings(
    config: Mapping[str, Any], *, settings: Mapping[str, str], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a config.json by our names, with its dropout.

    Args:
        settings: our names by theirs, all of which it must have.
        fixed: values that theirs must have where they are given.

    Raises:
        ValueError: one is missing, or has another value.
    """
    for key in settings:
        if key not in config:
            raise ValueError(f"config.json has no {key}")
    for key, value in fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    ours = {name: config[key] for key, name in settings.items()}
    return ours | {"dropout": config.get("hidden_dropout_prob", 0.1)}


def to_hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that makes Hugging Face build the network of a config."""
    return write_settings(config, settings=_SETTINGS, fixed=_FIXED) | {"model_type": "bert"}


def write_settings(
    config: Mapping[str, Any], *, settings: Mapping[str, str], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """The inverse of `read_settings`."""
    theirs = {key: config[name] for key, name in settings.items()}
    dropout = dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob"), config["dropout"]
    )
    return theirs | dropout | dict(fixed)
