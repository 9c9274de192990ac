"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683).

v1.0 is the paper's model: ReLU, and the embeddings serve as the output layer. v1.1 (Google's
release of 2020, after Shazeer 2020) has gated GELU and an output layer of its own. The paper's
other architectures (section 3.2) are the same parts put together otherwise.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.losses import autoregressive
from t5x_like.models.attention.multi_head import Attention, select_core
from t5x_like.models.attention.relative_position_bias import RelativePositionBias
from t5x_like.models.blocks.layer_group import LayerGroup
from t5x_like.models.blocks.residual import PreNormBlock
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.tokens import LinearHead, TiedHead, TokenEmbed
from t5x_like.models.feed_forward.mlp import GLU, MLP
from t5x_like.models.linear import Initializer
from t5x_like.models.networks.decoder import Decoder
from t5x_like.models.networks.encoder_decoder import EncoderDecoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import RMSNorm
from t5x_like.names import choose
from t5x_like.systems.system import System, Task

_COMMON: dict[str, Any] = {
    "architecture": "encoder_decoder",
    "vocab_size": 32128,
    "dropout": 0.1,
    "attention": "auto",
    "dtype": "float32",
    "loop": "scan",
    "remat": "none",
    "embedding_lookup": "gather",
    "scale_tied_logits": True,
}

loss = autoregressive.loss

Draw = Callable[[float], Initializer]


def _size(layers: int, d_model: int, d_ff: int, heads: int, d_kv: int, **kind: Any) -> dict:
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": d_model}
    return _COMMON | sizes | {"d_ff": d_ff, "heads": heads, "d_kv": d_kv} | kind


_V1_0 = {"feed_forward": "relu", "tied_head": True}
_V1_1 = {"feed_forward": "gated_gelu", "tied_head": False, "dropout": 0.0}

# v1.0: the paper's section 3.7. v1.1 was pretrained without dropout; fine-tune with 0.1.
SIZES: dict[str, dict[str, Any]] = {
    "v1_0_small": _size(6, 512, 2048, 8, 64, **_V1_0),
    "v1_0_base": _size(12, 768, 3072, 12, 64, **_V1_0),
    "v1_0_large": _size(24, 1024, 4096, 16, 64, **_V1_0),
    "v1_0_3b": _size(24, 1024, 16384, 32, 128, **_V1_0),
    "v1_0_11b": _size(24, 1024, 65536, 128, 128, **_V1_0),
    "small": _size(8, 512, 1024, 6, 64, **_V1_1),
    "base": _size(12, 768, 2048, 12, 64, **_V1_1),
    "large": _size(24, 1024, 2816, 16, 64, **_V1_1),
    "xl": _size(24, 2048, 5120, 32, 64, **_V1_1),
    "xxl": _size(24, 4096, 10240, 64, 64, **_V1_1),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES.

    `architecture` is `encoder_decoder`, `shared_encoder_decoder` (one set of parameters),
    `decoder` (a language model) or `prefix_decoder` (a prefix LM), as in section 3.2.
    """
    return network(config, make_feed_forwards=(feed_forward(config),))


def feed_forward(
    config: Mapping[str, Any], *, draw: Draw = nn.initializers.normal
) -> Callable[..., nn.Module]:
    """A factory of one layer's feed-forward, whose kernels `draw(deviation)` initializes."""
    return functools.partial(
        choose("model.feed_forward", config["feed_forward"], {"relu": MLP, "gated_gelu": GLU}),
        hidden=config["d_ff"],
        wi_init=draw(config["d_model"] ** -0.5),
        wo_init=draw(config["d_ff"] ** -0.5),
        dropout=config["dropout"],
        dtype=jnp.dtype(config["dtype"]),
    )


def network(
    config: Mapping[str, Any],
    *,
    make_feed_forwards: tuple[Callable[..., nn.Module], ...],
    draw: Draw = nn.initializers.normal,
) -> nn.Module:
    """The network whose layers have these feed-forwards in turn.

    Args:
        make_feed_forwards: g factories; the layers of each tower are a multiple of g.
        draw: deviation -> initializer, for the kernels of attention.
    """
    d_model, dtype = config["d_model"], jnp.dtype(config["dtype"])
    # The scores are not divided by sqrt(K); the query's initial size makes up for it.
    attention = functools.partial(
        Attention,
        heads=config["heads"],
        width=config["d_kv"],
        scale=1.0,
        core=select_core(config["attention"], dtype=dtype, dropout=config["dropout"]),
        query_init=draw((d_model * config["d_kv"]) ** -0.5),
        kernel_init=draw(d_model**-0.5),
        out_init=draw((config["heads"] * config["d_kv"]) ** -0.5),
        dropout=config["dropout"],
        dtype=dtype,
    )

    def tower(layers: int, **cross_attention: Any) -> Any:
        blocks = tuple(
            functools.partial(
                PreNormBlock,
                make_norm=functools.partial(RMSNorm, dtype=dtype),
                make_self_attention=attention,
                make_feed_forward=make_feed_forward,
                dropout=config["dropout"],
                **cross_attention,
            )
            for make_feed_forward in make_feed_forwards
        )
        return _tower(config, blocks=blocks, layers=layers)

    return _assemble(
        config,
        encoder=tower(config["encoder_layers"]),
        decoder=tower(config["decoder_layers"]),
        reader=tower(config["decoder_layers"], make_cross_attention=attention),
    )


def _tower(config: Mapping[str, Any], *, blocks: tuple[Any, ...], layers: int) -> Any:
    """A factory of a tower whose layers are these blocks in turn."""
    dtype = jnp.dtype(config["dtype"])
    together = functools.partial(LayerGroup, make_blocks=blocks)
    return functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack,
            make_block=blocks[0] if len(blocks) == 1 else together,
            layers=layers // len(blocks),
            loop=config["loop"],
            remat=config["remat"],
        ),
        make_norm=functools.partial(RMSNorm, dtype=dtype),
        make_bias=functools.partial(
            RelativePositionBias,
            heads=config["heads"],
            embedding_init=nn.initializers.normal(config["d_model"] ** -0.5),
            dtype=dtype,
        ),
        dropout=config["dropout"],
    )


def _assemble(config: Mapping[str, Any], *, encoder: Any, decoder: Any, reader: Any) -> nn.Module:
    ends = {
        "make_embedding": functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            dtype=jnp.dtype(config["dtype"]),
        ),
        "make_head": _head(config),
    }
    networks = {
        "encoder_decoder": functools.partial(
            EncoderDecoder, make_encoder=encoder, make_decoder=reader
        ),
        "shared_encoder_decoder": functools.partial(EncoderDecoder, make_encoder=reader),
        "decoder": functools.partial(Decoder, make_decoder=decoder),
        "prefix_decoder": functools.partial(Decoder, make_decoder=decoder, visibility="prefix"),
    }
    return choose("model.architecture", config["architecture"], networks)(**ends)


def _head(config: Mapping[str, Any]) -> Any:
    scale = config["d_model"] ** -0.5
    if config["tied_head"]:
        return functools.partial(TiedHead, scale=scale if config["scale_tied_logits"] else 1.0)
    return functools.partial(LinearHead, kernel_init=nn.initializers.normal(scale))


SYSTEM = System(
    name="t5",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)

# Hugging Face's names: the map of hf/weight_map.py, and settings both ways.

MODEL_TYPES = ("t5", "mt5")


def attention_weights(here: str, there: str) -> dict[str, tuple[str, str]]:
    """The lines of WEIGHTS of one attention, by the beginnings of its names."""
    return {
        f"{here}/query/kernel": (f"{there}.q.weight", "(H K) D -> D H K"),
        f"{here}/key/kernel": (f"{there}.k.weight", "(H K) D -> D H K"),
        f"{here}/value/kernel": (f"{there}.v.weight", "(H K) D -> D H K"),
        f"{here}/out/kernel": (f"{there}.o.weight", "D (H K) -> H K D"),
    }


def _feed_forward(here: str, there: str) -> dict[str, tuple[str, str]]:
    return {
        f"{here}/wi/kernel": (f"{there}.wi.weight", "F D -> D F"),
        f"{here}/wi_0/kernel": (f"{there}.wi_0.weight", "F D -> D F"),
        f"{here}/wi_1/kernel": (f"{there}.wi_1.weight", "F D -> D F"),
        f"{here}/wo/kernel": (f"{there}.wo.weight", "D F -> F D"),
    }


_SUBLAYERS: dict[str, tuple[str, Any]] = {
    "self_attention": ("SelfAttention", attention_weights),
    "cross_attention": ("EncDecAttention", attention_weights),
    "feed_forward": ("DenseReluDense", _feed_forward),
}


def _tower_weights(tower: str, *sublayers: str) -> dict[str, Any]:
    first = f"{tower}.block.0.layer.0.SelfAttention"  # the layers' shared bias lies in the first
    weights: dict[str, Any] = {
        f"{tower}/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        f"{tower}/final_norm/scale": f"{tower}.final_layer_norm.weight",
    }
    for n, sublayer in enumerate(sublayers):
        here, there = f"{tower}/layers/{{layer}}/{sublayer}", f"{tower}.block.{{layer}}.layer.{n}"
        name, kernels = _SUBLAYERS[sublayer]
        weights[f"{here}_norm/scale"] = f"{there}.layer_norm.weight"
        weights |= kernels(here, f"{there}.{name}")
    return weights


WEIGHTS: dict[str, str | tuple[str, str]] = {
    "token_embedder/embedding": "shared.weight",
    "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
    **_tower_weights("encoder", "self_attention", "feed_forward"),
    **_tower_weights("decoder", "self_attention", "cross_attention", "feed_forward"),
}
# Copies of other tensors that some files have.
WEIGHT_ALIASES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "lm_head.weight": "shared.weight",
}
# The oldest files have it, though cross-attention has no bias.
UNUSED_WEIGHTS = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)

_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gated_gelu"}
_ACTIVATIONS = {"relu": "relu", "gated-gelu": "gelu_new"}  # Hugging Face's, which these imply
_REQUIRED = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers")
_FIXED = {
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "tie_encoder_decoder": False,
}


def from_hf_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    """The settings of `build` for a Hugging Face config.json of T5 or mT5.

    Args:
        names: of the tensors in its files, for config.json does not tell whether the output layer
            is tied: its `tie_word_embeddings` means something else in every version.

    Raises:
        ValueError: a setting is missing, or asks for what this T5 does not have.
    """
    for key in _REQUIRED:
        if key not in config:
            raise ValueError(f"config.json has no {key}")
    mt5 = config["model_type"] == "mt5"
    feed_forward = config.get("feed_forward_proj", "gated-gelu" if mt5 else "relu")
    allowed: dict[str, tuple] = {"feed_forward_proj": tuple(_FEED_FORWARDS)}
    allowed["dense_act_fn"] = (_ACTIVATIONS.get(feed_forward),)
    allowed |= {key: (value,) for key, value in _FIXED.items()}
    for key, values in allowed.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(
                f"config.json has {key}={config[key]!r}; allowed: {', '.join(map(repr, values))}"
            )
    scaled = not mt5 and config.get("tie_word_embeddings") is not False
    scaled = config.get("scale_decoder_outputs", scaled)
    tied = scaled or "lm_head.weight" not in names
    layers = config["num_layers"]
    return {
        **_size(layers, config["d_model"], config["d_ff"], config["num_heads"], config["d_kv"]),
        "decoder_layers": config.get("num_decoder_layers") or layers,
        "vocab_size": config["vocab_size"],
        "dropout": config.get("dropout_rate", 0.1),
        "feed_forward": _FEED_FORWARDS[feed_forward],
        "tied_head": tied,
        "scale_tied_logits": scaled or not tied,
    }


def to_hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that makes Hugging Face build the network of a config.

    Raises:
        ValueError: its T5 has no such architecture.
    """
    if config["architecture"] != "encoder_decoder":
        raise ValueError(
            f"model.architecture={config['architecture']!r} does not exist in Hugging Face's T5: "
            "only 'encoder_decoder' does"
        )
    (feed_forward,) = (hf for hf, ours in _FEED_FORWARDS.items() if ours == config["feed_forward"])
    return {
        **_FIXED,
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": config["vocab_size"],
        "d_model": config["d_model"],
        "d_kv": config["d_kv"],
        "d_ff": config["d_ff"],
        "num_heads": config["heads"],
        "num_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "dropout_rate": config["dropout"],
        "feed_forward_proj": feed_forward,
        # Versions before 5 read the first of these two as both, later ones only the second.
        "tie_word_embeddings": config["tied_head"],
        "scale_decoder_outputs": config["tied_head"] and config["scale_tied_logits"],
    }
