"""BigBird-Pegasus: the encoder-decoder of Zaheer et al. 2020 (arXiv:2007.14062), section 4.1."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    integers,
    one_of,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, attention, dense, norm
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.block_sparse import BlockSparseAttention
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.compute import GELU_TANH
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.linear import LayerNorm
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.stack import PatternBlock, Stack
from t5x_like.systems import bart, bert, bigbird
from t5x_like.systems.system import System, Task, adaptation, head_width


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdPegasusConfig(bigbird.PatternConfig, bart.Seq2SeqConfig):
    """The settings of a BigBird-Pegasus, see `build`."""

    vocab_size: int = 96103
    start_id: int = 2
    end_id: int = 1
    padding: int = 0
    positions: int = 4096
    encoder_layers: int = 16
    decoder_layers: int = 16
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 16
    attention_bias: bool = False
    logits_bias: bool = False


# Appendix E.5, table 17; the vocabulary, the start token and attention without biases are from the
# released code.
SIZES: dict[str, BigBirdPegasusConfig] = {"large": BigBirdPegasusConfig()}

INIT = nn.initializers.truncated_normal(0.02)
NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = autoregressive.loss


def build(config: BigBirdPegasusConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: Pegasus with a sparse encoder.

    Args:
        config: for `attention_parts`, `block`, `random` and `random_blocks`, which describe the
            encoder, see `bigbird.build`; `attention` is the implementation of the decoder's dense
            attention. `start_id` is the decoder's first input.

    Raises:
        ValueError: the attention or kind of random blocks is unknown, `block` is below 1, or
            `random` is negative.
    """
    return EncoderDecoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=INIT,
            compute=config.compute,
        ),
        make_encoder=encoder(config),
        make_decoder=decoder(config),
        make_head=functools.partial(TiedHead, use_bias=config.logits_bias),
        any_padding=False,
    )


def encoder(config: BigBirdPegasusConfig) -> Callable[..., nn.Module]:
    """Return a factory of the encoder: pre-norm layers with block-sparse attention."""
    attention = functools.partial(
        _attention(config, BlockSparseAttention),
        pattern=bigbird.pattern(config),
        compute=dataclasses.replace(config.compute, core=dense_core),
    )
    block = functools.partial(PatternBlock, make_self_attention=attention, **_layer(config))
    stack = bigbird.stack(
        config,
        block,
        sparse=bigbird.pattern(config),
        layers=config.encoder_layers,
        heads=config.heads,
    )
    return _tower(config, stack)


def decoder(config: BigBirdPegasusConfig) -> Callable[..., nn.Module]:
    """Return a factory of the decoder: pre-norm layers with dense self- and cross-attention."""
    attention = _attention(config, Attention)
    block = functools.partial(
        PreNormBlock,
        make_self_attention=attention,
        make_cross_attention=attention,
        **_layer(config),
    )
    stack = functools.partial(
        Stack, make_block=block, layers=config.decoder_layers, compute=config.compute
    )
    return _tower(config, stack)


def _attention(
    config: BigBirdPegasusConfig, make: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    return functools.partial(
        make,
        heads=config.heads,
        width=head_width(config),
        use_bias=config.attention_bias,
        query_init=INIT,
        kernel_init=INIT,
        out_init=INIT,
        compute=config.compute,
    )


def _layer(config: BigBirdPegasusConfig) -> dict[str, Any]:
    """Return the attributes of a layer apart from its attention."""
    return {
        "make_norm": functools.partial(NORM, compute=config.compute),
        "make_feed_forward": bert.feed_forward(
            config.d_ff, INIT, config.compute, activation=GELU_TANH
        ),
        "compute": config.compute,
    }


def _tower(
    config: BigBirdPegasusConfig, make_stack: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """Return a factory of a tower: scaled embeddings plus positions, layers, and a norm.

    The norm is not followed by dropout.
    """
    return functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config.positions,
                features=config.d_model,
                embedding_init=INIT,
                compute=config.compute,
            ),
            scale=config.d_model**0.5,
        ),
        make_stack=make_stack,
        make_exit=functools.partial(NORM, compute=config.compute),
        compute=config.compute,
    )


SYSTEM = System(
    name="bigbird_pegasus",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={
        "decoder_start_token_id": "start_id",
        "eos_token_id": "end_id",
        "pad_token_id": "padding",
    },
    adapt=functools.partial(adaptation, new=("lm_head/bias",)),
)


# BigBird-Pegasus in Hugging Face's folders.

# The same function up to float32 rounding; published folders use each name.
_GELU = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def _layers(tower: str, **names: str) -> WeightMap:
    """Return the weight map of the encoder or the decoder without the attentions' projections.

    Args:
        names: {our name of an attention in a layer: Hugging Face's name}, for the layer norms.
    """
    layer, theirs = f"{tower}/layers/{{layer}}", f"model.{tower}.layers.{{layer}}"
    weights: dict[str, Any] = {
        f"{tower}/entrance/position/embedding": f"model.{tower}.embed_positions.weight",
        **dense(f"{layer}/feed_forward/wi", f"{theirs}.fc1"),
        **dense(f"{layer}/feed_forward/wo", f"{theirs}.fc2"),
        **norm(f"{layer}/feed_forward_norm", f"{theirs}.final_layer_norm"),
        **norm(f"{tower}/exit", f"model.{tower}.layernorm_embedding"),
    }
    for ours, name in names.items():
        weights |= norm(f"{layer}/{ours}_norm", f"{theirs}.{name}_layer_norm")
    return weights


def _decoder_attention(ours: str, name: str) -> WeightMap:
    theirs = f"model.decoder.layers.{{layer}}.{name}"
    kernels = (f"{theirs}.{kernel}_proj" for kernel in ("q", "k", "v", "out"))
    return attention(f"decoder/layers/{{layer}}/{ours}", *kernels)


def _encoder_attention() -> WeightMap:
    theirs = "model.encoder.layers.{layer}.self_attn"
    kernels = (f"{theirs}.{name}" for name in ("self.query", "self.key", "self.value", "output"))
    return attention("encoder/layers/{layer}/self_attention", *kernels)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    for name in ("ffn_dim", "attention_heads"):
        one_of(config[f"encoder_{name}"]).check(f"decoder_{name}", config[f"decoder_{name}"])
    return {
        **bigbird.derive_settings(config, settings, names),
        "logits_bias": "final_logits_bias" in names,
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**bigbird.derive_config(settings), "activation_function": _GELU[0]}


HUGGING_FACE = HuggingFaceFormat(
    system="bigbird_pegasus",
    model_types={"bigbird_pegasus": "BigBirdPegasus"},
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["large"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "encoder_layers": Setting("encoder_layers", LAYERS),
        "decoder_layers": Setting("decoder_layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "encoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_ffn_dim": Setting("d_ff", COUNT),
        "encoder_attention_heads": Setting("heads", COUNT),
        "decoder_attention_heads": Setting("heads", COUNT),
        "block_size": Setting("block", COUNT, default=64),
        "num_random_blocks": Setting("random", integers(0, 1000), default=3),
        "use_bias": Setting("attention_bias", FLAG, default=False),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.0),
        "activation_dropout": Setting("dropout", RATE, default=0.0),
        "activation_function": Setting("", one_of(*_GELU), default=_GELU[0]),
        "decoder_start_token_id": Setting("start_id", or_null(TOKEN), default=2),
        "eos_token_id": Setting("end_id", or_null(TOKEN), default=1),
        "pad_token_id": Setting("padding", or_null(TOKEN), default=0),
    },
    other_names={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        "is_encoder_decoder": True,
        "scale_embedding": True,
        "is_decoder": False,
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "encoder_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.shared.weight",
        **_layers("encoder", self_attention="self_attn"),
        **_encoder_attention(),
        **_layers("decoder", self_attention="self_attn", cross_attention="encoder_attn"),
        **_decoder_attention("self_attention", "self_attn"),
        **_decoder_attention("cross_attention", "encoder_attn"),
        "lm_head/bias": ("final_logits_bias", "0/1 V -> V"),
    },
    # Copies.
    aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
)
