"""OPT: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models"."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    one_of,
    or_list,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.losses import autoregressive
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PostNormBlock, PreNormBlock
from t5x_like.nn.compute import Batch
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, Initializer, LayerNorm, Linear, replicate_last_axis
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, Ends, System, Task, head_width


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OptConfig(DropoutConfig, AttentionConfig):
    """The settings of an OPT."""

    vocab_size: int = 50_272
    positions: int = 2048
    layers: int
    d_model: int
    d_embedding: int
    d_ff: int
    heads: int
    post_norm: bool = False
    bos_id: int | None = 2
    eos_id: Ends = 2


def _size(
    layers: int, d_model: int, heads: int, *, d_embedding: int = 0, post_norm: bool = False
) -> OptConfig:
    return OptConfig(
        layers=layers,
        d_model=d_model,
        d_embedding=d_embedding or d_model,
        d_ff=4 * d_model,
        heads=heads,
        post_norm=post_norm,
    )


# Table 1. Only the released 350M model has norms after sublayers and narrower embeddings.
SIZES: dict[str, OptConfig] = {
    "125m": _size(12, 768, 12),
    "350m": _size(24, 1024, 16, d_embedding=512, post_norm=True),
    "1_3b": _size(24, 2048, 32),
    "2_7b": _size(32, 2560, 32),
    "6_7b": _size(32, 4096, 32),
    "13b": _size(40, 5120, 40),
    "30b": _size(48, 7168, 56),
    "66b": _size(64, 9216, 72),
    "175b": _size(96, 12_288, 96),
}

INIT = nn.initializers.normal(0.006)
RESERVED = 2  # unused rows of the position table before position 0
NORM = functools.partial(LayerNorm, epsilon=1e-5)
loss = autoregressive.loss


class Projection(Linear):
    """A linear map between the width of the embeddings and the width of the model."""

    axes: tuple[str, ...] = ("embed", "mlp")
    kernel_init: Initializer = INIT

    def __call__(self, x: Float[Array, "B L n"]) -> Float[Array, "B L m"]:
        """Return the projected vectors."""
        return replicate_last_axis(super().__call__(x))


class ProjectedInput(nn.Module):
    """The entrance of a tower that is wider than its embeddings.

    Attributes:
        make_projection: factory of the projection of the token embeddings.
        make_positions: see `AddPositions`.
    """

    make_projection: Callable[..., nn.Module]
    make_positions: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], positions: Int[Array, "B L"]
    ) -> Float[Array, "B L D"]:
        """Return the projected token embeddings plus the position embeddings."""
        x = self.make_projection(name="projection")(x)
        return x + self.make_positions(name="position")(positions, length=x.shape[1])


class CountingDecoder(Decoder):
    """A decoder whose positions count only the earlier tokens that are not padding (fairseq).

    A text has the same logits wherever its padding is.
    """

    def _run(self, batch: Batch, **settings: Any) -> tuple[Float[Array, "B T D"], dict]:
        segments = batch.get("decoder_segment_ids")
        if segments is not None:
            counted = jnp.maximum(jnp.cumsum(segments > 0, axis=1, dtype=jnp.int32) - 1, 0)
            batch = {"decoder_positions": counted, **batch}
        return super()._run(batch, **settings)


def build(config: OptConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    Raises:
        ValueError: the embeddings of a pre-norm network have another width than the model.
    """
    if config.d_embedding != config.d_model and not config.post_norm:
        raise ValueError(
            f"model.d_embedding={config.d_embedding} must be model.d_model={config.d_model} "
            "unless model.post_norm=True"
        )
    tower = functools.partial(
        Tower,
        make_entrance=_entrance(config),
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        make_norm=None if config.post_norm else functools.partial(NORM, compute=config.compute),
        make_exit=_projection(config, "d_embedding"),
        # The embeddings have no dropout (section 2.2).
        compute=dataclasses.replace(config.compute, dropout=0.0),
    )
    return CountingDecoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_embedding,
            embedding_init=INIT,
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def _projection(config: OptConfig, width: str) -> Callable[..., nn.Module] | None:
    """Return a factory of a projection to the width `config[width]`; None if none is needed."""
    if config.d_embedding == config.d_model:
        return None
    return functools.partial(Projection, (config[width],), compute=config.compute)


def _entrance(config: OptConfig) -> Callable[..., nn.Module]:
    make_positions = functools.partial(
        LearnedPositions,
        length=config.positions + RESERVED,
        offset=RESERVED,
        features=config.d_model,
        embedding_init=INIT,
        compute=config.compute,
    )
    make_projection = _projection(config, "d_model")
    if make_projection is None:
        return functools.partial(AddPositions, make_positions=make_positions)
    return functools.partial(
        ProjectedInput, make_projection=make_projection, make_positions=make_positions
    )


def _block(config: OptConfig) -> Callable[..., nn.Module]:
    # As in GPT-2, the deviation of sublayer output kernels is divided by the square root of 2N.
    residual = nn.initializers.normal(0.006 * (2 * config.layers) ** -0.5)
    return functools.partial(
        PostNormBlock if config.post_norm else PreNormBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            Attention,
            heads=config.heads,
            width=head_width(config),
            use_bias=True,
            query_init=INIT,
            kernel_init=INIT,
            out_init=residual,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=nn.relu,
            use_bias=True,
            wi_init=INIT,
            wo_init=residual,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="opt",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={"eos_token_id": "eos_id"},
)


# OPT in Hugging Face's folders.

_HERE, _THERE = "decoder/layers/{layer}", "model.decoder.layers.{layer}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    width, pre_norm = settings["d_model"], config.get("do_layer_norm_before", True)
    embedding = config.get("word_embed_proj_dim") or width
    if pre_norm:  # only the released model with norms after the sublayers has another width
        one_of(width).check("do_layer_norm_before=true with word_embed_proj_dim", embedding)
    return {
        "d_embedding": embedding,
        "post_norm": not pre_norm,
        "bos_id": config.get("bos_token_id", 2),
        "eos_id": config.get("eos_token_id", 2),  # null: texts have no end token
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {"do_layer_norm_before": not settings["post_norm"]}


HUGGING_FACE = HuggingFaceFormat(
    system="opt",
    model_types={"opt": "OPT"},
    class_suffix="ForCausalLM",
    defaults=SIZES["125m"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "word_embed_proj_dim": Setting("d_embedding", or_null(COUNT), default=None),
        "ffn_dim": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "do_layer_norm_before": Setting("", FLAG, default=True),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
        "bos_token_id": Setting("bos_id", or_null(TOKEN), default=2),
        "eos_token_id": Setting("eos_id", or_null(or_list(TOKEN)), default=2),
    },
    fixed={
        "activation_function": "relu",
        "layerdrop": 0.0,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
        "_remove_final_layer_norm": False,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.decoder.embed_tokens.weight",
        "decoder/entrance/position/embedding": "model.decoder.embed_positions.weight",
        "decoder/entrance/projection/kernel": ("model.decoder.project_in.weight", "D E -> E D"),
        **attention(
            f"{_HERE}/self_attention",
            *(f"{_THERE}.self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
        ),
        **norm(f"{_HERE}/self_attention_norm", f"{_THERE}.self_attn_layer_norm"),
        **dense(f"{_HERE}/feed_forward/wi", f"{_THERE}.fc1"),
        **dense(f"{_HERE}/feed_forward/wo", f"{_THERE}.fc2"),
        **norm(f"{_HERE}/feed_forward_norm", f"{_THERE}.final_layer_norm"),
        **norm("decoder/final_norm", "model.decoder.final_layer_norm"),
        "decoder/exit/kernel": ("model.decoder.project_out.weight", "E D -> D E"),
    },
    aliases={
        "lm_head.weight": "model.decoder.embed_tokens.weight",  # a copy
        "decoder.*": "model.decoder.*",  # headless
    },
)
