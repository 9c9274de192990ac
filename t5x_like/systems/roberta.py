"""RoBERTa: Liu et al. 2019, "A Robustly Optimized BERT Pretraining Approach" (arXiv:1907.11692)."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.models.embeddings.encoder_embeddings import CountedEmbeddings
from t5x_like.models.embeddings.positions import LearnedPositions
from t5x_like.models.embeddings.tokens import TokenEmbed
from t5x_like.models.heads.encoder_heads import (
    FirstTokenHead,
    MaskedLMHead,
    Pretraining,
    Summary,
    select_head,
)
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.norms import LayerNorm
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(name: str) -> dict[str, Any]:
    changes = {
        "head": "masked_lm",
        "vocab_size": 50265,
        "token_types": 1,
        "padding": 1,
        "norm_epsilon": 1e-5,
    }
    return bert.SIZES[name] | changes


SIZES: dict[str, dict[str, Any]] = {name: _size(name) for name in ("base", "large")}


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES: BERT's (section 2.2), without its pairs.

    `positions` is the length of the longest text, `padding` the id of the padding token: the first
    `padding` + 1 rows of the table of positions are no position of a text. `head` is one of
    models/heads/; "pretraining" predicts the next sentence too, for the formats of pairs.
    """
    make_norm = functools.partial(LayerNorm, epsilon=config["norm_epsilon"])
    make_masked_lm = bert.masked_lm(config, make_norm=make_norm)
    make_summary = functools.partial(
        Summary, activation=nn.tanh, kernel_init=bert.INIT, dtype=jnp.dtype(config["dtype"])
    )
    make_row = functools.partial(
        FirstTokenHead,
        make_summary=functools.partial(make_summary, inner_dropout=config["dropout"]),
        kernel_init=bert.INIT,
        dropout=config["dropout"],
    )
    own: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_summary=make_summary,
            classes=2,
            kernel_init=bert.INIT,
        ),
    }
    return Encoder(
        make_embeddings=embeddings(config, make_norm=make_norm),
        make_encoder=bert.tower(config, make_norm=make_norm),
        make_head=select_head(
            config, own, make_summary=make_summary, kernel_init=bert.INIT, make_row=make_row
        ),
    )


def embeddings(
    config: Mapping[str, Any], *, make_norm: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """Token and position vectors, summed with the one segment there is, and normed."""
    dtype = jnp.dtype(config["dtype"])
    table = functools.partial(
        TokenEmbed, features=config["d_model"], embedding_init=bert.INIT, dtype=dtype
    )
    reserved = config["padding"] + 1
    return functools.partial(
        CountedEmbeddings,
        make_tokens=functools.partial(
            table, vocab_size=config["vocab_size"], lookup=config["embedding_lookup"]
        ),
        make_positions=functools.partial(
            LearnedPositions,
            length=config["positions"] + reserved,
            offset=reserved,
            features=config["d_model"],
            embedding_init=bert.INIT,
            dtype=dtype,
        ),
        # The published weights have this row, the same for every token.
        make_token_types=functools.partial(
            table, vocab_size=config["token_types"], axis="types", lookup="one_hot"
        ),
        make_norm=functools.partial(make_norm, dtype=dtype),
    )


loss = bert.loss  # masked tokens, and of a format of pairs the next sentence


SYSTEM = System(
    name="roberta",
    sizes=SIZES,
    build=build,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)

# Hugging Face's names: the map of hf/weight_map.py, and settings both ways.

MODEL_TYPES = ("roberta", "xlm-roberta")
HF_CLASS = "Roberta"

WEIGHTS: bert.Weights = {
    **bert.encoder_weights("roberta"),
    **bert.dense("head/summary/dense", "roberta.pooler.dense"),
    **bert.dense("head/masked_lm/transform", "lm_head.dense"),
    **bert.norm("head/masked_lm/norm", "lm_head.layer_norm"),
    "head/masked_lm/output/bias": "lm_head.bias",
    **bert.dense("head/first/dense", "classifier.dense"),
    **bert.dense("head/classifier", "classifier.out_proj"),
    **bert.dense("head/tagger", "classifier"),
    **bert.dense("head/answer", "qa_outputs"),
}
WEIGHT_ALIASES = {
    "embeddings.*": "roberta.embeddings.*",  # a model without a head
    "encoder.*": "roberta.encoder.*",
    "pooler.*": "roberta.pooler.*",
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",  # copies
    "lm_head.decoder.bias": "lm_head.bias",
}
UNUSED_WEIGHTS = (
    "roberta.embeddings.position_ids",
    "embeddings.position_ids",
    # Published beside a language model's head, which does not read it.
    "roberta.pooler.dense.weight",
    "roberta.pooler.dense.bias",
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
    "layer_norm_eps": "norm_epsilon",
    "pad_token_id": "padding",
}
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def from_hf_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """The settings of `build` for a Hugging Face config.json of RoBERTa or XLM-RoBERTa.

    Args:
        names: of the tensors in its files, which are not needed here.

    Raises:
        ValueError: a setting is missing, or asks for what this RoBERTa does not have.
    """
    del names
    ours = SIZES["base"] | bert.read_settings(config, settings=_SETTINGS, fixed=_FIXED)
    return ours | {"positions": ours["positions"] - ours["padding"] - 1}


def to_hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that makes Hugging Face build the network of a config.

    Raises:
        ValueError: it has no such network.
    """
    if config["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no RoBERTa with model.head='pretraining': read this one again by "
            "from_pretrained(folder, head='masked_lm'), and save that"
        )
    theirs = bert.write_settings(config, settings=_SETTINGS, fixed=_FIXED)
    rows = config["positions"] + config["padding"] + 1
    return theirs | {"model_type": "roberta", "max_position_embeddings": rows}
