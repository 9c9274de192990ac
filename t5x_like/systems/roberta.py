"""RoBERTa: Liu et al. 2019, "A Robustly Optimized BERT Pretraining Approach" (arXiv:1907.11692)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn

from t5x_like import losses
from t5x_like.hf.config_settings import POSITIVE, TOKEN, Setting
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.nn.embeddings import CountedEmbeddings, LearnedPositions, TokenEmbed
from t5x_like.nn.encoder_heads import FirstTokenHead, MaskedLMHead, Pooler, Pretraining, select_head
from t5x_like.nn.linear import LayerNorm
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RobertaConfig(bert.BertConfig):
    """The settings of a RoBERTa; `padding` is the id of the padding token."""

    head: str | Mapping[str, Any] = "masked_lm"
    vocab_size: int = 50265
    token_types: int = 1
    padding: int = 1
    norm_epsilon: float = 1e-5


def _size(layers: int, d_model: int, heads: int) -> RobertaConfig:
    return RobertaConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, RobertaConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}


def build(config: RobertaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BERT's (section 2.2), without pairs.

    Args:
        config: `positions` is the length of the longest text, and `padding` the id of the padding
            token; the first `padding` + 1 rows of the position table are not used for text.
            `head` is "masked_lm", "pretraining", which also predicts the next sentence for the
            input formats with pairs (section 4.2), or a head of `select_head`, which reads the
            layers that `layer_features` names, see `bert.FEATURE_LAYERS`.

    Raises:
        ValueError: the head or the features are unknown.
    """
    make_norm = functools.partial(LayerNorm, epsilon=config.norm_epsilon)
    make_masked_lm = bert.masked_lm(config, make_norm=make_norm)
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    make_row = functools.partial(
        FirstTokenHead,
        make_pooler=functools.partial(make_pooler, inner_dropout=config.dropout),
        kernel_init=config.init,
        dropout=config.dropout,
    )
    heads: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=make_pooler,
            classes=2,
            kernel_init=config.init,
        ),
    }
    return Encoder(
        make_embeddings=embeddings(config, make_norm=make_norm),
        make_encoder=bert.tower(config, make_norm=make_norm),
        make_features=bert.layer_features(config, pretraining=heads),
        make_head=select_head(
            config,
            heads,
            make_pooler=make_pooler,
            kernel_init=config.init,
            make_row=make_row,
            make_lstm=bert.lstm(config, pretraining=heads),
        ),
    )


def embeddings(
    config: RobertaConfig, *, make_norm: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """Return a factory of summed token, position and segment embeddings, with a layer norm."""
    table = functools.partial(
        TokenEmbed, features=config.d_model, embedding_init=config.init, compute=config.compute
    )
    reserved = config.padding + 1
    return functools.partial(
        CountedEmbeddings,
        make_tokens=functools.partial(table, vocab_size=config.vocab_size),
        make_positions=functools.partial(
            LearnedPositions,
            length=config.positions + reserved,
            offset=reserved,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        ),
        # The published weights contain this table, although there is only one segment.
        make_token_types=functools.partial(
            table,
            vocab_size=config.token_types,
            axis="types",
            compute=dataclasses.replace(config.compute, lookup="one_hot"),
        ),
        make_norm=functools.partial(make_norm, compute=config.compute),
    )


SYSTEM = System(
    name="roberta",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, **bert.LSTM, "dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=bert.loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# RoBERTa and XLM-RoBERTa in Hugging Face's folders.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del config, names
    # Tokens do not use the first rows of the position table, up to the row of the padding token id.
    positions = settings["positions"] - settings["padding"] - 1
    if positions < 1:
        raise ValueError(
            f"config.json has max_position_embeddings={settings['positions']}; allowed: above "
            f"pad_token_id + 1, which is {settings['padding'] + 1}"
        )
    return {"positions": positions}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no RoBERTa with model.head='pretraining': load the model with "
            "from_pretrained(folder, head='masked_lm') and save that, with its head"
        )
    return {"max_position_embeddings": settings["positions"] + settings["padding"] + 1}


HUGGING_FACE = HuggingFaceFormat(
    system="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta"},
    defaults=SIZES["base"],
    settings={
        **bert.HUGGING_FACE.settings,
        "layer_norm_eps": Setting("norm_epsilon", POSITIVE),
        "pad_token_id": Setting("padding", TOKEN),
    },
    fixed={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    exported_only={"layer_features": "last", "lstm_layers": 0},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        **bert_encoder("roberta"),
        **dense("head/summary/dense", "roberta.pooler.dense"),
        **dense("head/masked_lm/transform", "lm_head.dense"),
        **norm("head/masked_lm/norm", "lm_head.layer_norm"),
        "head/masked_lm/output/bias": "lm_head.bias",
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "roberta.embeddings.*",  # a model without a head
        "encoder.*": "roberta.encoder.*",
        "pooler.*": "roberta.pooler.*",
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",  # copies
        "lm_head.decoder.bias": "lm_head.bias",
    },
    unused=(
        "roberta.embeddings.position_ids",
        "embeddings.position_ids",
        # Published together with a language modeling head, which does not read it.
        "roberta.pooler.dense.weight",
        "roberta.pooler.dense.bias",
    ),
)
