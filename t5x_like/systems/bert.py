"""BERT: Devlin et al. 2018, "Pre-training of Deep Bidirectional ..." (arXiv:1810.04805)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.names import choose
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PostNormBlock
from t5x_like.nn.compute import GELU, Activation, Batch, Compute
from t5x_like.nn.embeddings import Embeddings, LearnedPositions, TokenEmbed
from t5x_like.nn.encoder_heads import MaskedLM, MaskedLMHead, Pooler, Pretraining, select_head
from t5x_like.nn.linear import MLP, Initializer, LayerNorm
from t5x_like.nn.lstm import BiLSTM
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    AttentionConfig,
    DropoutConfig,
    InitConfig,
    LayersConfig,
    System,
    Task,
    adaptation,
    head_width,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EncoderConfig(InitConfig, DropoutConfig, LayersConfig):
    """The settings of an encoder of tokens, positions and segments."""

    head: str | Mapping[str, Any] = "pretraining"
    labels: int = 2
    positions: int = 512
    token_types: int = 2
    layers: int
    d_model: int
    d_ff: int
    heads: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DenseEncoderConfig(EncoderConfig, AttentionConfig):
    """The settings of an `EncoderConfig` whose tokens attend to all tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BertConfig(DenseEncoderConfig):
    """The settings of a BERT.

    Attributes:
        layer_features: the layers that a head for labelled text reads, see FEATURE_LAYERS.
        lstm_layers: the layers of a BiLSTM between these layers and the head (sections 5.1, 5.3).
        lstm_width: the width of each of its directions.
    """

    vocab_size: int = 30522
    layer_features: str = "last"
    lstm_layers: int = 0
    lstm_width: int = 768


def _size(layers: int, d_model: int, heads: int) -> BertConfig:
    return BertConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, BertConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

LSTM = {"lstm_layers": 0, "lstm_width": 768}  # of runs before they were settings
OLDER_DEFAULTS = {
    **EARLIER_INIT,
    **LSTM,
    "dropout_broadcast": True,
    "layer_features": "last",
}

NORM = functools.partial(LayerNorm, epsilon=1e-12)


# ---- Which layers of the encoder a head reads: one, several concatenated, or a weighted sum.


LAST = "last"
_FOUR = slice(-4, None)
# Slices of the states before the first layer and after each layer, in the order of Devlin et al.
# 2018, table 7.
FEATURE_LAYERS: Mapping[str, slice] = {
    "embeddings": slice(0, 1),
    "second_to_last": slice(-2, -1),
    LAST: slice(-1, None),
    "weighted_last_4": _FOUR,
    "concatenated_last_4": _FOUR,
    "weighted_all": slice(1, None),
}


class LayerFeatures(nn.Module):
    """The features that Devlin et al. 2018 take from a frozen BERT (section 5.3, table 7).

    A weighted sum has the softmax of a learned number for each layer as weights, and a learned
    scale, as in Peters et al. 2018 (equation 1); Devlin et al. do not define theirs.

    Attributes:
        kind: one of FEATURE_LAYERS.
    """

    kind: str

    @nn.compact
    def __call__(self, states: Float[Array, "N+1 B L D"]) -> Float[Array, "B L F"]:
        """Return the features: F = 4 D for concatenated layers, otherwise D.

        Args:
            states: the input of the first layer and the output of each of the N layers.

        Raises:
            ValueError: the network has fewer than the 4 layers to read.
        """
        chosen = states[FEATURE_LAYERS[self.kind]]
        if "last_4" in self.kind and len(states) < 5:
            raise ValueError(
                f"model.layer_features={self.kind!r} reads 4 layers, and the model has "
                f"{len(states) - 1}"
            )
        if self.kind.startswith("weighted"):
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("layers",))
            weights = jax.nn.softmax(self.param("weights", zeros, (len(chosen),)))
            scale = self.param("scale", nn.initializers.ones, ())
            return (scale * jnp.einsum("n,nbld->bld", weights, chosen)).astype(states.dtype)
        return jnp.concatenate(list(chosen), axis=-1)


def select_features(kind: str) -> Callable[..., nn.Module] | None:
    """Return the factory of `LayerFeatures` that `kind` names, None for the last layer.

    Args:
        kind: the setting `model.layer_features`.

    Raises:
        ValueError: the kind is unknown.
    """
    choose("model.layer_features", kind, FEATURE_LAYERS)
    return None if kind == LAST else functools.partial(LayerFeatures, kind=kind)


def build(config: BertConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    Args:
        config: its `head` is "pretraining", "masked_lm", or a head of `select_head`. The latter
            reads the layers that `layer_features` names, see FEATURE_LAYERS.

    Raises:
        ValueError: the head or the features are unknown.
    """
    return network(config, pretraining_heads(config))


def network(config: BertConfig, heads: Mapping[str, Callable[..., nn.Module]]) -> Encoder:
    """Build the network with other heads of pretraining, {name: factory}; see `build`."""
    return Encoder(
        make_embeddings=embeddings(config),
        make_encoder=tower(config),
        make_features=layer_features(config, pretraining=heads),
        make_head=select_head(
            config,
            heads,
            make_pooler=_pooler(config),
            kernel_init=config.init,
            make_lstm=lstm(config, pretraining=heads),
        ),
    )


def pretraining_heads(config: BertConfig) -> dict[str, Callable[..., nn.Module]]:
    """Return {name: factory} of the heads of pretraining (section 3.1)."""
    make_masked_lm = masked_lm(config)
    return {
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=_pooler(config),
            classes=2,
            kernel_init=config.init,
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }


def _pooler(config: BertConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )


def lstm(config: BertConfig, *, pretraining: Collection[str]) -> Callable[..., nn.Module] | None:
    """Return the factory of the BiLSTM between encoder and head (sections 5.1 and 5.3), or None.

    Args:
        pretraining: the heads of pretraining, which cannot read it.

    Raises:
        ValueError: a head is not for labelled text.
    """
    if not config.lstm_layers:
        return None
    tasks = {"": {"head": config.head}} if isinstance(config.head, str) else config.head
    for head in (settings.get("head") for settings in tasks.values()):
        if head in ("features", *pretraining):
            raise ValueError(
                f"model.lstm_layers={config.lstm_layers}: the head {head!r} reads the encoder "
                "itself; set model.lstm_layers=0, or model.head to one for labelled text"
            )
    compute = Compute(dtype=config.compute.dtype, dropout=config.dropout)
    return functools.partial(
        BiLSTM, layers=config.lstm_layers, cell=config.lstm_width, compute=compute
    )


def layer_features(
    config: BertConfig, *, pretraining: Collection[str]
) -> Callable[..., nn.Module] | None:
    """Return the factory of the features that the head reads (section 5.3).

    It is None if the head reads the last layer.

    Args:
        pretraining: the heads of pretraining, which can read only the last layer.

    Raises:
        ValueError: the features are unknown, or a head of pretraining cannot read them.
    """
    make = select_features(config.layer_features)
    if make is not None and config.head in list(pretraining):
        raise ValueError(
            f"model.layer_features={config.layer_features!r}: the head {config.head!r} reads "
            "only 'last'; set model.head to one for labelled text"
        )
    return make


def embeddings(config: EncoderConfig) -> Callable[..., nn.Module]:
    """Return a factory of summed token, position and segment embeddings, with a norm (figure 2)."""
    table = functools.partial(
        TokenEmbed, features=config.d_model, embedding_init=config.init, compute=config.compute
    )
    return functools.partial(
        Embeddings,
        make_tokens=functools.partial(table, vocab_size=config.vocab_size),
        make_positions=functools.partial(
            LearnedPositions,
            length=config.positions,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        ),
        # The table has only two rows: the backward pass of a gather would add the gradients of all
        # tokens of the batch into these, which is slow.
        make_token_types=functools.partial(
            table,
            vocab_size=config.token_types,
            axis="types",
            compute=dataclasses.replace(config.compute, lookup="one_hot"),
        ),
        make_norm=functools.partial(NORM, compute=config.compute),
    )


def block(
    config: DenseEncoderConfig,
    *,
    make_norm: Callable[..., nn.Module] = NORM,
    activation: Activation = GELU,
) -> Callable[..., nn.Module]:
    """Return a factory of an encoder layer of Vaswani et al. 2017, with GELU (section 3)."""
    return functools.partial(
        PostNormBlock,
        make_norm=functools.partial(make_norm, compute=config.compute),
        make_self_attention=attention(config),
        make_feed_forward=feed_forward(
            config.d_ff, config.init, config.compute, activation=activation
        ),
        compute=config.compute,
    )


def attention(config: DenseEncoderConfig) -> Callable[..., nn.Module]:
    """Return a factory of the attention of a layer."""
    return functools.partial(
        Attention,
        heads=config.heads,
        width=head_width(config),
        use_bias=True,
        query_init=config.init,
        kernel_init=config.init,
        out_init=config.init,
        compute=config.compute,
    )


def feed_forward(
    d_ff: int, init: Initializer, compute: Compute, *, activation: Activation = GELU
) -> Callable[..., nn.Module]:
    """Return a factory of the feed-forward sublayer."""
    return functools.partial(
        MLP,
        hidden=d_ff,
        activation=activation,
        use_bias=True,
        wi_init=init,
        wo_init=init,
        compute=compute,
    )


def tower(
    config: DenseEncoderConfig, *, make_norm: Callable[..., nn.Module] = NORM
) -> Callable[..., nn.Module]:
    """Return a factory of the stack of layers, which share no parameters."""
    stack = functools.partial(
        Stack,
        make_block=block(config, make_norm=make_norm),
        layers=config.layers,
        compute=config.compute,
    )
    return functools.partial(Tower, make_stack=stack, compute=config.compute)


def masked_lm(
    config: InitConfig,
    *,
    make_norm: Callable[..., nn.Module] = NORM,
    activation: Activation = GELU,
) -> Callable[..., nn.Module]:
    """Return a factory of the output layer for masked tokens (section 3.1)."""
    return functools.partial(
        MaskedLM,
        make_norm=functools.partial(make_norm, compute=config.compute),
        activation=activation,
        kernel_init=config.init,
        compute=config.compute,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Add the mean losses of masked tokens and of next sentence prediction (section 3.1).

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
            "next_sentence": (1.0, losses.sentence_pairs(outputs, batch)),
        }
    )


SYSTEM = System(
    name="bert",
    sizes=SIZES,
    build=build,
    older_defaults=OLDER_DEFAULTS,
    adapt=functools.partial(adaptation, new=("features/",)),
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# BERT in Hugging Face's folders.

HUGGING_FACE = HuggingFaceFormat(
    system="bert",
    model_types={"bert": "Bert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    exported_only={"layer_features": "last", "lstm_layers": 0},
    weights={
        **bert_encoder("bert"),
        **dense("head/summary/dense", "bert.pooler.dense"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/row", "cls.seq_relationship"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "*.gamma": "*.weight",  # the names of norms in the oldest files
        "*.beta": "*.bias",
        "embeddings.*": "bert.embeddings.*",  # a model without a head
        "encoder.*": "bert.encoder.*",
        "pooler.*": "bert.pooler.*",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "bert.embeddings.position_ids",
        "embeddings.position_ids",
        # The published folders contain all of pretraining, whichever class their config.json names.
        *(f"bert.pooler.dense.{name}" for name in ("weight", "bias")),
        *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
        # TinyBERT's projection to the width of its teacher.
        *(f"fit_dense.{name}" for name in ("weight", "bias")),
    ),
)
