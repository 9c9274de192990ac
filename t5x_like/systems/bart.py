"""BART: Lewis et al. 2019, "BART: Denoising Sequence-to-Sequence ..." (arXiv:1910.13461)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.hf.config_settings import (
    COUNT,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    check_multiple,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, attention, dense, norm
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PostNormBlock, Shared
from t5x_like.nn.compute import GELU, Batch
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import (
    Features,
    LastTokenChoiceHead,
    LastTokenHead,
    Pooler,
    select_head,
)
from t5x_like.nn.linear import MLP, LayerNorm
from t5x_like.nn.networks import Encoder, EncoderDecoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import (
    ENCODER_TASKS,
    AttentionConfig,
    DropoutConfig,
    System,
    Task,
    adaptation,
    head_width,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seq2SeqConfig(DropoutConfig, AttentionConfig):
    """The settings of an encoder-decoder with learned or sinusoidal positions."""

    positions: int
    encoder_layers: int
    decoder_layers: int
    d_model: int
    d_ff: int
    heads: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BartConfig(Seq2SeqConfig):
    """The settings of a BART, see `build`."""

    head: str | Mapping[str, Any] = "generation"
    labels: int = 2
    vocab_size: int = 50265
    sep_id: int = 2
    padding: int = 1
    positions: int = 1024
    source_layers: int = 6
    source_vocab_size: int = 0
    decoder_d_ff: int = 0
    decoder_heads: int = 0
    logits_bias: bool = False


def _size(layers: int, d_model: int, heads: int) -> BartConfig:
    return BartConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
    )


# Sections 4 and 5.1; the numbers of heads and positions are from the released code.
SIZES: dict[str, BartConfig] = {"base": _size(6, 768, 12), "large": _size(12, 1024, 16)}

INIT = nn.initializers.normal(0.02)
NORM = functools.partial(LayerNorm, epsilon=1e-5)
_RESERVED = 2  # unused first rows of the position table, as in fairseq
loss = autoregressive.loss


# ---- An encoder-decoder with a head on the decoder's states: BART on labelled text.


class EncoderDecoderClassifier(Encoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Lewis et al. 2019, section 3.1: the same input on both sides, and a head on the decoder.

    It has the interface of an `Encoder`: its hidden states are the decoder's. The parameters have
    the same names as in an `EncoderDecoder`.

    Attributes:
        make_embeddings: factory of the token embeddings, which both sides share.
        make_encoder, make_decoder: factories of the towers.
        start_id: the id of the decoder's first token.
    """

    make_decoder: Callable[..., nn.Module]
    start_id: int

    def setup(self) -> None:
        self.token_embedder = self.make_embeddings()
        self.encoder = self.make_encoder()
        self.decoder = self.make_decoder()
        self.head = self.make_task_head()

    def table(self) -> Float[Array, "V E"]:
        """Return the embedding table, for a head that is tied to it."""
        return self.token_embedder.embedding

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        """Return the output of the decoder's last layer, and what both towers collected."""
        tokens, seen = batch["encoder_input_tokens"], self.mask_of_document(batch)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        shared = Shared(
            mask=seen, positions=positions, deterministic=deterministic, collect=collect
        )
        memory, of_encoder = self.encoder(self.token_embedder(tokens), shared)
        shared = Shared(
            mask=dataclasses.replace(seen, visibility="causal"),
            positions=positions,
            memory=memory,
            memory_mask=seen,
            deterministic=deterministic,
            collect=collect,
        )
        again = self.token_embedder(self._shifted(tokens, batch["encoder_segment_ids"]))
        hidden, of_decoder = self.decoder(again, shared)
        return hidden, {"encoder": of_encoder, "decoder": of_decoder}

    def _shifted(self, tokens: Int[Array, "B L"], segments: Int[Array, "B L"]) -> Array:
        """Return the decoder's input: the start token, then the text without its last token."""
        real = segments > 0
        first = real & (jnp.cumsum(real, axis=1) == 1)
        return jnp.where(first, self.start_id, jnp.roll(tokens, 1, axis=1))


# ---- A new encoder in front of a pretrained encoder-decoder, to translate from a new language.


class SourceEncoder(nn.Module):
    """Map tokens of another vocabulary to inputs of a pretrained encoder.

    Attributes:
        make_embedding: factory of the token embeddings.
        make_encoder: factory of the tower.
    """

    make_embedding: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.encoder = self.make_encoder()

    def __call__(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """Return the output of the last layer."""
        return self.encoder(self.token_embedder(tokens), shared)[0]


class Translator(EncoderDecoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Lewis et al. 2019, section 3.4: a new encoder feeds a pretrained denoising encoder-decoder.

    Attributes:
        make_source: factory of the `SourceEncoder`.
    """

    make_source: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.source = self.make_source()

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """Return the output of the new encoder, which replaces the token embeddings."""
        return self.source(tokens, shared)


def build(config: BartConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    Args:
        config: its `head` is "generation"; "translation" (section 3.4), with a new encoder of
            `source_layers` layers and `source_vocab_size` tokens (0: `vocab_size`); or a head of
            `select_head`, on the decoder's states (sections 3.1 and 3.2). `sep_id` is the token
            that ends a text, and also the decoder's first input. If `decoder_d_ff` or
            `decoder_heads` is 0, the decoder has the encoder's `d_ff` or `heads`.

    Raises:
        ValueError: the head is unknown.
    """
    if isinstance(config.head, str):  # not a mapping of tasks
        choose("model.head", config.head, {**SYSTEM.tasks, "features": None})
    make_encoder = tower(config, layers=config.encoder_layers)
    make_decoder = tower(
        dataclasses.replace(config, **decoder_sizes(config)),
        layers=config.decoder_layers,
        cross_attention=True,
    )
    if config.head not in ("generation", "translation"):
        return EncoderDecoderClassifier(
            make_embeddings=embedding(config),
            make_encoder=make_encoder,
            make_decoder=make_decoder,
            make_head=_head(config),
            start_id=config.sep_id,
        )
    parts = {
        "make_embedding": embedding(config),
        "make_encoder": make_encoder,
        "make_decoder": make_decoder,
        "make_head": functools.partial(TiedHead, use_bias=config.logits_bias),
    }
    if config.head == "generation":
        return EncoderDecoder(**parts)
    size = config.source_vocab_size or config.vocab_size
    make_source = functools.partial(
        SourceEncoder,
        make_embedding=embedding(dataclasses.replace(config, vocab_size=size)),
        make_encoder=tower(config, layers=config.source_layers),
    )
    return Translator(**parts, make_source=make_source)


def decoder_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `d_ff` and `heads` of the decoder."""
    return {name: config[f"decoder_{name}"] or config[name] for name in ("d_ff", "heads")}


def embedding(config: Seq2SeqConfig) -> Callable[..., nn.Module]:
    """Return a factory of the token embeddings, which the output layer shares."""
    return functools.partial(
        TokenEmbed,
        vocab_size=config.vocab_size,
        features=config.d_model,
        embedding_init=INIT,
        compute=config.compute,
    )


def tower(
    config: Seq2SeqConfig,
    *,
    layers: int,
    cross_attention: bool = False,
    make_norm: Callable[..., nn.Module] = NORM,
    reserved: int = _RESERVED,
) -> Callable[..., nn.Module]:
    """Return a factory of a `Tower`: add positions, a layer norm, and post-norm layers.

    Args:
        layers: the number of layers.
        cross_attention: whether the layers have cross-attention to the encoder's output.
        make_norm: factory of all layer norms.
        reserved: the number of unused rows of the position table before position 0.
    """
    norm = functools.partial(make_norm, compute=config.compute)
    return functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions, make_positions=positions(config, reserved=reserved), make_norm=norm
        ),
        make_stack=functools.partial(
            Stack,
            make_block=block(config, cross_attention=cross_attention, make_norm=norm),
            layers=layers,
            compute=config.compute,
        ),
        compute=config.compute,
    )


def positions(config: Seq2SeqConfig, *, reserved: int = _RESERVED) -> Callable[..., nn.Module]:
    """Return a factory of learned positions, with `reserved` unused rows before position 0."""
    return functools.partial(
        LearnedPositions,
        length=config.positions + reserved,
        offset=reserved,
        features=config.d_model,
        embedding_init=INIT,
        compute=config.compute,
    )


def block(
    config: Seq2SeqConfig,
    *,
    cross_attention: bool,
    make_norm: Callable[..., nn.Module],
    make: Callable[..., nn.Module] = PostNormBlock,
    activation: Callable[[Array], Array] = GELU,
) -> Callable[..., nn.Module]:
    """Return a factory of a layer with biases.

    Args:
        cross_attention, make_norm: see `tower`.
        make: the class of the layer.
        activation: the activation of the feed-forward network.
    """
    attention = functools.partial(
        Attention,
        heads=config.heads,
        width=head_width(config),
        use_bias=True,
        query_init=INIT,
        kernel_init=INIT,
        out_init=INIT,
        compute=config.compute,
    )
    return functools.partial(
        make,
        make_norm=make_norm,
        make_self_attention=attention,
        make_cross_attention=attention if cross_attention else None,
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=activation,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            compute=config.compute,
        ),
        compute=config.compute,
    )


def _head(config: BartConfig) -> Callable[..., nn.Module]:
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=INIT, compute=config.compute
    )
    return select_head(
        config,
        {
            "features": Features,
            "multiple_choice": functools.partial(
                LastTokenChoiceHead,
                make_pooler=make_pooler,
                kernel_init=INIT,
                dropout=config.dropout,
            ),
        },
        make_pooler=make_pooler,
        kernel_init=INIT,
        make_row=functools.partial(LastTokenHead, make_pooler=make_pooler, kernel_init=INIT),
    )


def frozen_at_first(config: BartConfig) -> tuple[str, ...]:
    """Return the parameters that the first stage of section 3.4 freezes, for `optimizer.frozen`.

    These are all parameters except the new encoder, the position tables, and the query, key and
    value projections of the encoder's first layer. The config needs `loop` "unroll": layers that
    are scanned cannot be frozen individually.
    """
    first = "encoder/layers/layer_0"
    rest = (
        "self_attention/out",
        "self_attention_norm",
        "feed_forward",
        "feed_forward_norm",
    )
    later = (f"encoder/layers/layer_{n}" for n in range(1, config.encoder_layers))
    norms = ("encoder/entrance/norm", "decoder/entrance/norm")
    return (
        "token_embedder",
        *norms,
        *(f"{first}/{part}" for part in rest),
        *later,
        "decoder/layers",
    )


SYSTEM = System(
    name="bart",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True, "decoder_d_ff": 0, "decoder_heads": 0},
    tasks={
        "generation": Task(loss=loss, prediction="text"),
        "translation": Task(loss=loss, prediction="text"),
        **ENCODER_TASKS,
    },
    generation={
        "decoder_start_token_id": "sep_id",
        "eos_token_id": "sep_id",
        "pad_token_id": "padding",
    },
    # The new encoder of the head "translation", and the bias of the logits.
    adapt=functools.partial(adaptation, new=("source/", "lm_head/bias")),
)


# BART in Hugging Face's folders.


def _tower(tower: str, attentions: Mapping[str, str]) -> WeightMap:
    """Return the weight map of the encoder or the decoder.

    Args:
        attentions: {our name of an attention in a layer: Hugging Face's name}.
    """
    layer, theirs = f"{tower}/layers/{{layer}}", f"model.{tower}.layers.{{layer}}"
    weights: dict[str, Any] = {
        f"{tower}/entrance/position/embedding": f"model.{tower}.embed_positions.weight",
        **norm(f"{tower}/entrance/norm", f"model.{tower}.layernorm_embedding"),
        **dense(f"{layer}/feed_forward/wi", f"{theirs}.fc1"),
        **dense(f"{layer}/feed_forward/wo", f"{theirs}.fc2"),
        **norm(f"{layer}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    }
    for ours, name in attentions.items():
        kernels = (f"{theirs}.{name}.{kernel}_proj" for kernel in ("q", "k", "v", "out"))
        weights |= attention(f"{layer}/{ours}", *kernels)
        weights |= norm(f"{layer}/{ours}_norm", f"{theirs}.{name}_layer_norm")
    return weights


# Our settings for which Hugging Face has several settings, which must be equal.
_ONE_VALUE = ("sep_id",)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    check_multiple(config, "d_model", "decoder_attention_heads")
    for key, setting in HUGGING_FACE.settings.items():
        value = settings[setting.name]
        if setting.name in _ONE_VALUE and config.get(key) not in (value, None):
            raise ValueError(f"config.json has {key}={config[key]!r}; allowed: {value!r}")
    return {"logits_bias": "final_logits_bias" in names}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("translation", "tagging", "multiple_choice"):
        raise ValueError(f"Hugging Face has no BART with model.head={settings['head']!r}")
    sizes = decoder_sizes(settings)
    return {"decoder_ffn_dim": sizes["d_ff"], "decoder_attention_heads": sizes["heads"]}


HUGGING_FACE = HuggingFaceFormat(
    system="bart",
    model_types={"bart": "Bart"},
    defaults=SIZES["large"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "encoder_layers": Setting("encoder_layers", LAYERS),
        "decoder_layers": Setting("decoder_layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "encoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_ffn_dim": Setting("decoder_d_ff", COUNT),
        "encoder_attention_heads": Setting("heads", COUNT),
        "decoder_attention_heads": Setting("decoder_heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
        "activation_dropout": Setting("dropout", RATE, default=0.1),
        "decoder_start_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "eos_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "pad_token_id": Setting("padding", or_null(TOKEN), default=None),
    },
    other_names={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    fixed={
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "encoder_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.shared.weight",
        **_tower("encoder", {"self_attention": "self_attn"}),
        **_tower("decoder", {"self_attention": "self_attn", "cross_attention": "encoder_attn"}),
        "lm_head/bias": ("final_logits_bias", "0/1 V -> V"),
        **dense("head/first/dense", "classification_head.dense"),
        **dense("head/classifier", "classification_head.out_proj"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "shared.weight": "model.shared.weight",  # a model without a head
        "encoder.*": "model.encoder.*",
        "decoder.*": "model.decoder.*",
        # Copies.
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    # The bias is zero in every published folder. A model has it only if model.logits_bias is set,
    # and then it is read.
    unused=("final_logits_bias", "model.encoder.version", "model.decoder.version"),
)
