"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683).

v1.0 is the paper's model: ReLU, and the output layer is tied to the embedding table. v1.1 (Google's
release of 2020, after Shazeer 2020) has gated GELU and a separate output layer. The paper's other
architectures (section 3.2) consist of the same parts.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    Setting,
    integers,
    one_of,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias
from t5x_like.nn.blocks import PreNormBlock, Shared
from t5x_like.nn.compute import Batch, Compute
from t5x_like.nn.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import Features
from t5x_like.nn.linear import GLU, MLP, Initializer, RMSNorm
from t5x_like.nn.networks import Decoder, Encoder, EncoderDecoder, Tower
from t5x_like.nn.stack import LayerGroup, Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task, adaptation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnquantizedT5Config(DropoutConfig, AttentionConfig):
    """The settings that a T5 and a Switch Transformer have in common, see `build`.

    Attributes:
        scaled_scores: whether attention scores are divided by sqrt(d_kv), as in T5X's configs for
            GPUs that train with AdamW.
    """

    architecture: str = "encoder_decoder"
    vocab_size: int = 32128
    encoder_layers: int
    decoder_layers: int
    d_model: int
    d_ff: int
    heads: int
    d_kv: int
    feed_forward: str
    tied_head: bool
    dropout_broadcast: bool = True
    relative_buckets: int = 32
    relative_max_distance: int = 128
    d_adapter: int = 0
    scale_tied_logits: bool = True
    scaled_scores: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class T5Config(UnquantizedT5Config):
    """The settings of a T5."""

    quantization: str = "none"


loss = autoregressive.loss

ADAPTERS = ("*/adapter/", "*/adapter_norm/")  # parameters that a pretrained T5 lacks

MakeInit = Callable[[float], Initializer]  # standard deviation -> initializer


def _size(layers: int, d_model: int, d_ff: int, heads: int, d_kv: int, **kind: Any) -> T5Config:
    return T5Config(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        d_kv=d_kv,
        **kind,
    )


_V1_0 = {"feed_forward": "relu", "tied_head": True}
_V1_1 = {"feed_forward": "gated_gelu", "tied_head": False, "dropout": 0.0}

# v1.0: the paper's section 3.7. v1.1 was pretrained without dropout; set 0.1 for fine-tuning.
SIZES: dict[str, T5Config] = {
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


# ---- T5's relative positions: a learned bias of the attention scores for each distance.


class RelativePositionBias(nn.Module):
    """A learned scalar per head and distance bucket, added to the attention scores.

    Raffel et al. 2020, section 2.1: 32 buckets for distances up to 128, and one table for all
    layers of a stack.

    Attributes:
        in_core: whether the attention core computes the bias from the table
            (`Core.knows_relative_bias`), which is then returned as a `RelativeBias`.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    embedding_init: Any = nn.initializers.normal(1.0)
    in_core: bool = False
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, *, queries: int, keys: int, offset: int | Array, bidirectional: bool
    ) -> Float[Array, "1 H T S"] | RelativeBias:
        """Return the bias for T queries, which begin at slot `offset`, and S keys.

        Args:
            queries, keys: T and S.
            offset: the slot of the first query among the keys.
            bidirectional: whether queries also attend to later keys.

        Raises:
            ValueError: there are fewer than 4 buckets, or the largest distance is not above half of
                them.
        """
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"model.relative_buckets={self.buckets} must be 4 or more, and "
                f"model.relative_max_distance={self.max_distance} above half of that"
            )
        table = self.param(
            "embedding",
            nn.with_logical_partitioning(self.embedding_init, ("buckets", "heads")),
            (self.buckets, self.heads),
        )
        bias = RelativeBias(
            table=table,
            offset=offset,
            bidirectional=bidirectional,
            max_distance=self.max_distance,
        )
        if self.in_core:
            return bias
        return bias.dense(queries=queries, keys=keys, dtype=self.compute.dtype)


class BiasedAttention(Attention):
    """Self-attention with a separate relative position bias in each layer, as T5X's scalable_t5.

    Attributes:
        make_bias: factory of a `RelativePositionBias`.
    """

    make_bias: Callable[..., nn.Module] = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()
        self.relative_position_bias = self.make_bias()

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Any]:
        """Return the query, and the sum of this layer's relative position bias and `bias`."""
        relative_bias = self.relative_position_bias(
            queries=query.shape[1],
            keys=keys_values.length,
            offset=mask.first_slot,
            bidirectional=mask.visibility != "causal",
        )
        return query, relative_bias if bias is None else bias + relative_bias


# ---- A Transformer layer with an adapter: a small sublayer, fine-tuned instead of the layer.


class AdaptedBlock(PreNormBlock, kw_only=True):  # type: ignore[call-arg]
    """A pre-norm layer followed by x + adapter(norm(x)).

    Bapna & Firat 2019, as Raffel et al. 2020 use it (section 3.5.1): an additional sublayer after
    the feed-forward network, with its own norm and residual connection. While the adapter's output
    is 0, as after initialization, the layer computes the same as without it.

    Attributes:
        make_adapter: factory of the adapter, a feed-forward network.
    """

    make_adapter: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.adapter_norm = self.make_norm()
        self.adapter = self.make_adapter()

    def _feed_forward(self, x: Array, shared: Shared) -> Array:
        x = super()._feed_forward(x, shared)
        y = self._sublayer_input(x, self.adapter_norm)
        y = self.adapter(y, tokens=shared.tokens, deterministic=shared.deterministic)
        return self._sublayer_output(x, y, self.adapter_norm, shared)


# ---- T5's encoder without its decoder, whose input is only the token embeddings.


class TokenEncoder(Encoder):
    """An encoder with a head; its parameters have the same names as in an `EncoderDecoder`.

    Attributes:
        make_embeddings: factory of the token embeddings. They are not projected: setting
            `make_projection` raises ValueError.
    """

    def setup(self) -> None:
        if self.make_projection is not None:
            raise ValueError(
                "a TokenEncoder has embeddings as wide as its layers: leave make_projection out"
            )
        self.token_embedder = self.make_embeddings()
        self.encoder = self.make_encoder()
        self.head = self.make_task_head()

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the embeddings of the tokens."""
        return self.token_embedder(batch["encoder_input_tokens"])

    def table(self) -> Float[Array, "V E"]:
        """Return the embedding table, for a head that is tied to it."""
        return self.token_embedder.embedding


def build(config: T5Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `architecture` is `encoder_decoder`, `shared_encoder_decoder` (one set of
            parameters for both), `decoder` (a language model) or `prefix_decoder` (a prefix LM),
            as in section 3.2; or `encoder`, which outputs hidden states and is not trained here.
            `d_adapter` is the inner dimension of adapter layers (section 3.5.1), 0 for none.

    Raises:
        ValueError: the architecture or feed-forward is unknown.
    """
    return network(config, make_feed_forwards=(feed_forward(config),))


def feed_forward(
    config: T5Config, *, make_init: MakeInit = nn.initializers.normal
) -> Callable[..., nn.Module]:
    """Return a factory of the feed-forward sublayer; `make_init(deviation)` makes initializers."""
    return functools.partial(
        choose("model.feed_forward", config.feed_forward, {"relu": MLP, "gated_gelu": GLU}),
        hidden=config.d_ff,
        wi_init=make_init(config.d_model**-0.5),
        wo_init=make_init(config.d_ff**-0.5),
        drop_hidden=True,
        compute=config.compute,
    )


def network(
    config: T5Config,
    *,
    make_feed_forwards: tuple[Callable[..., nn.Module], ...],
    make_init: MakeInit = nn.initializers.normal,
    bias_in_layers: bool = False,
    make_encoder: Callable[..., nn.Module] | None = None,
) -> nn.Module:
    """Build a T5 whose layers take their feed-forward sublayers from a list in turn.

    Args:
        make_feed_forwards: g factories of feed-forward sublayers; layer i uses number i modulo g.
            The number of layers of each tower is a multiple of g.
        make_init: standard deviation -> initializer of the kernels of attention.
        bias_in_layers: whether each layer has a separate relative position bias, instead of one
            for all layers of a tower.
        make_encoder: factory of another encoder, such as a `tower` with another self-attention.

    Raises:
        ValueError: the architecture is unknown.
    """
    attention = functools.partial(Attention, **attention_settings(config, make_init=make_init))
    make_bias = relative_position_bias(config, in_core=config.compute.core.knows_relative_bias)
    self_attention: Callable[..., nn.Module] = attention
    if bias_in_layers:
        self_attention = functools.partial(
            BiasedAttention, **attention.keywords, make_bias=make_bias
        )
    make_tower = functools.partial(
        tower,
        config,
        make_feed_forwards=make_feed_forwards,
        make_self_attention=self_attention,
        make_bias=None if bias_in_layers else make_bias,
    )
    decoder_layers = config.decoder_layers
    return assemble(
        config,
        encoder=make_encoder or make_tower(layers=config.encoder_layers),
        decoder=make_tower(layers=decoder_layers),
        reader=make_tower(layers=decoder_layers, make_cross_attention=attention),
    )


def tower(
    config: T5Config,
    *,
    layers: int,
    make_feed_forwards: tuple[Callable[..., nn.Module], ...],
    make_self_attention: Callable[..., nn.Module],
    make_cross_attention: Callable[..., nn.Module] | None = None,
    **make_tables: Callable[..., nn.Module] | None,
) -> Callable[..., nn.Module]:
    """Return a factory of a `Tower` of pre-norm layers with a norm after the last layer.

    Args:
        layers: the number of layers, a multiple of the number of `make_feed_forwards`.
        make_feed_forwards: factories of feed-forward sublayers, which the layers use in turn.
        make_cross_attention: factory of the attention to an encoder's output; None for layers
            without it.
        make_tables: the attributes `make_bias` and `make_extra` of the `Tower`.
    """
    norm = functools.partial(RMSNorm, compute=config.compute)
    blocks = tuple(
        functools.partial(
            _block(config),
            make_norm=norm,
            make_self_attention=make_self_attention,
            make_feed_forward=make_feed_forward,
            make_cross_attention=make_cross_attention,
            compute=config.compute,
        )
        for make_feed_forward in make_feed_forwards
    )
    stack = functools.partial(
        Stack,
        make_block=blocks[0]
        if len(blocks) == 1
        else functools.partial(LayerGroup, make_blocks=blocks),
        layers=layers // len(blocks),
        compute=config.compute,
    )
    return functools.partial(
        Tower, make_stack=stack, make_norm=norm, **make_tables, compute=config.compute
    )


def attention_settings(
    config: T5Config, *, make_init: MakeInit = nn.initializers.normal
) -> dict[str, Any]:
    """Return the keyword arguments of `Attention`."""
    d_model = config.d_model
    # By default the query's smaller initialization has the effect of a division by sqrt(K).
    return {
        "heads": config.heads,
        "width": config.d_kv,
        "scale": None if config.scaled_scores else 1.0,
        "query_init": make_init((d_model * config.d_kv) ** -0.5),
        "kernel_init": make_init(d_model**-0.5),
        "out_init": make_init((config.heads * config.d_kv) ** -0.5),
        "compute": config.compute,
    }


def relative_position_bias(config: T5Config, *, in_core: bool) -> Callable[..., nn.Module]:
    """Return a factory of `RelativePositionBias`; for `in_core` see there."""
    return functools.partial(
        RelativePositionBias,
        heads=config.heads,
        buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        embedding_init=nn.initializers.normal(config.d_model**-0.5),
        in_core=in_core,
        compute=config.compute,
    )


def _block(config: T5Config) -> Callable[..., nn.Module]:
    if config.d_adapter:
        return functools.partial(AdaptedBlock, make_adapter=_adapter(config))
    return PreNormBlock


def _adapter(config: T5Config) -> Callable[..., nn.Module]:
    """Return a factory of a layer's adapter: linear, ReLU, linear, whose output is 0 at first."""
    return functools.partial(
        MLP,
        hidden=config.d_adapter,
        wi_init=nn.initializers.normal(config.d_model**-0.5),
        wo_init=nn.initializers.zeros,
        drop_hidden=True,
        # Its products are exact under every `quantization`.
        compute=dataclasses.replace(config.compute, product=jnp.matmul),
    )


def assemble(
    config: T5Config,
    *,
    encoder: Callable[..., nn.Module],
    decoder: Callable[..., nn.Module],
    reader: Callable[..., nn.Module],
) -> nn.Module:
    """Put T5's embeddings and head around stacks of layers, of T5 or of another system.

    Args:
        encoder: factory of the encoder's stack.
        decoder: factory of a stack without cross-attention, for the decoder-only architectures.
        reader: factory of a stack with cross-attention.

    Raises:
        ValueError: the architecture is unknown.
    """
    make_embedding = functools.partial(
        TokenEmbed, vocab_size=config.vocab_size, features=config.d_model, compute=config.compute
    )
    if config.architecture == "encoder":
        return TokenEncoder(
            make_embeddings=make_embedding, make_encoder=encoder, make_head=Features
        )
    ends = {"make_embedding": make_embedding, "make_head": head(config)}
    networks = {
        "encoder_decoder": functools.partial(
            EncoderDecoder, make_encoder=encoder, make_decoder=reader
        ),
        "shared_encoder_decoder": functools.partial(EncoderDecoder, make_encoder=reader),
        "decoder": functools.partial(Decoder, make_decoder=decoder),
        "prefix_decoder": functools.partial(Decoder, make_decoder=decoder, visibility="prefix"),
    }
    choose("model.architecture", config.architecture, dict.fromkeys([*networks, "encoder"]))
    return networks[config.architecture](**ends)


def head(config: T5Config) -> Callable[..., nn.Module]:
    """Return a factory of T5's output layer: the embedding table, or a kernel of its own."""
    scale = config.d_model**-0.5
    if config.tied_head:
        return functools.partial(TiedHead, scale=scale if config.scale_tied_logits else 1.0)
    return functools.partial(LinearHead, kernel_init=nn.initializers.normal(scale))


SYSTEM = System(
    name="t5",
    sizes=SIZES,
    build=build,
    older_defaults={
        "dropout_broadcast": True,
        "relative_buckets": 32,
        "relative_max_distance": 128,
        "d_adapter": 0,
        "quantization": "none",
    },
    adapt=functools.partial(adaptation, structure=("d_adapter",), new=ADAPTERS),
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)


# T5 and mT5 in Hugging Face's folders.


def attention_weights(ours: str, theirs: str) -> WeightMap:
    """Return the weight map of an attention layer without biases."""
    return {
        f"{ours}/query/kernel": (f"{theirs}.q.weight", "(H K) D -> D H K"),
        f"{ours}/key/kernel": (f"{theirs}.k.weight", "(H K) D -> D H K"),
        f"{ours}/value/kernel": (f"{theirs}.v.weight", "(H K) D -> D H K"),
        f"{ours}/out/kernel": (f"{theirs}.o.weight", "D (H K) -> H K D"),
    }


def _feed_forward(ours: str, theirs: str) -> WeightMap:
    return {
        f"{ours}/wi/kernel": (f"{theirs}.wi.weight", "F D -> D F"),
        f"{ours}/wi_0/kernel": (f"{theirs}.wi_0.weight", "F D -> D F"),
        f"{ours}/wi_1/kernel": (f"{theirs}.wi_1.weight", "F D -> D F"),
        f"{ours}/wo/kernel": (f"{theirs}.wo.weight", "D F -> F D"),
    }


_SUBLAYERS: dict[str, tuple[str, Any]] = {
    "self_attention": ("SelfAttention", attention_weights),
    "cross_attention": ("EncDecAttention", attention_weights),
    "feed_forward": ("DenseReluDense", _feed_forward),
}


def _tower_weights(tower: str, *sublayers: str) -> dict[str, Any]:
    first = f"{tower}.block.0.layer.0.SelfAttention"  # has the position bias that all layers share
    weights: dict[str, Any] = {
        f"{tower}/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        f"{tower}/final_norm/scale": f"{tower}.final_layer_norm.weight",
    }
    for n, sublayer in enumerate(sublayers):
        ours, theirs = f"{tower}/layers/{{layer}}/{sublayer}", f"{tower}.block.{{layer}}.layer.{n}"
        name, kernels = _SUBLAYERS[sublayer]
        weights[f"{ours}_norm/scale"] = f"{theirs}.layer_norm.weight"
        weights |= kernels(ours, f"{theirs}.{name}")
    return weights


RELATIVE_POSITIONS = {
    "relative_attention_num_buckets": Setting("relative_buckets", integers(4, 2**20), default=32),
    "relative_attention_max_distance": Setting("relative_max_distance", COUNT, default=128),
}


OTHER_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}


def check_relative_positions(settings: Settings) -> None:
    """Check that some buckets of relative positions are left for several distances each.

    Raises:
        ValueError: the half of the buckets with exact distances reaches the largest distance.
    """
    exact = settings["relative_buckets"] // 2
    if settings["relative_max_distance"] <= exact:
        raise ValueError(
            f"config.json has relative_attention_max_distance={settings['relative_max_distance']}; "
            f"allowed: above half of relative_attention_num_buckets, which is {exact}"
        )


_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gated_gelu"}
# `feed_forward_proj` -> other settings of config.json that it implies.
_IMPLIED = {
    "relu": {"dense_act_fn": "relu", "is_gated_act": False},
    "gated-gelu": {"dense_act_fn": "gelu_new", "is_gated_act": True},
}


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that depend on several in config.json, see `record.DeriveSettings`."""
    check_relative_positions(settings)
    encodes_only = settings["architecture"] == "encoder"
    one_of(True, not encodes_only).check(
        "is_encoder_decoder", config.get("is_encoder_decoder", True)
    )
    mt5 = config["model_type"] == "mt5"
    feed_forward = config.get("feed_forward_proj", "gated-gelu" if mt5 else "relu")
    for key, value in _IMPLIED[feed_forward].items():
        one_of(value).check(key, config.get(key, value))
    # The meaning of `tie_word_embeddings` differs between versions of transformers, so the tensors
    # decide whether the output layer is tied.
    scaled = not mt5 and config.get("tie_word_embeddings") is not False
    if mt5:
        one_of(False).check("scale_decoder_outputs", config.get("scale_decoder_outputs", False))
    scaled = config.get("scale_decoder_outputs", scaled)
    tied = scaled or "lm_head.weight" not in names
    return {
        "decoder_layers": config.get("num_decoder_layers") or settings["encoder_layers"],
        "feed_forward": _FEED_FORWARDS[feed_forward],
        "tied_head": tied,
        "scale_tied_logits": scaled or not tied,
    }


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json that depend on several here, see `record.DeriveConfig`."""
    if settings["architecture"] not in ("encoder_decoder", "encoder"):
        raise ValueError(
            f"model.architecture={settings['architecture']!r}: Hugging Face's T5 supports only "
            "'encoder_decoder' and 'encoder'"
        )
    if settings["d_adapter"]:
        raise ValueError(
            f"model.d_adapter={settings['d_adapter']}: Hugging Face's T5 has no adapter layers; a "
            "run with them stays in its own format"
        )
    if settings["scaled_scores"]:
        raise ValueError(
            "model.scaled_scores=True: Hugging Face's T5 does not scale attention scores; a run "
            "with it stays in its own format"
        )
    (feed_forward,) = (
        name for name, ours in _FEED_FORWARDS.items() if ours == settings["feed_forward"]
    )
    return {
        "is_encoder_decoder": settings["architecture"] == "encoder_decoder",
        "feed_forward_proj": feed_forward,
        # Versions before 5 take both from the first setting; later versions read only the second.
        "tie_word_embeddings": settings["tied_head"],
        "scale_decoder_outputs": settings["tied_head"] and settings["scale_tied_logits"],
    }


HUGGING_FACE = HuggingFaceFormat(
    system="t5",
    model_types={"t5": "T5", "mt5": "MT5"},
    class_suffix="ForConditionalGeneration",
    other_classes={"EncoderModel": {"architecture": "encoder"}},
    defaults=SIZES["small"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "d_model": Setting("d_model", COUNT),
        "d_kv": Setting("d_kv", COUNT),
        "d_ff": Setting("d_ff", COUNT),
        "num_heads": Setting("heads", COUNT),
        "num_layers": Setting("encoder_layers", LAYERS),
        "num_decoder_layers": Setting("decoder_layers", or_null(LAYERS), default=None),
        "dropout_rate": Setting("dropout", RATE, default=0.1),
        **RELATIVE_POSITIONS,
        "feed_forward_proj": Setting("", one_of("relu", "gated-gelu"), default=None),
        "tie_word_embeddings": Setting("", FLAG, default=None),
        "scale_decoder_outputs": Setting("", FLAG, default=None),
        "is_encoder_decoder": Setting("", FLAG, default=True),
    },
    other_names={**OTHER_NAMES, "head_dim": "d_kv"},
    fixed={
        "layer_norm_epsilon": 1e-6,
        "tie_encoder_decoder": False,
        "is_decoder": False,
    },
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        "token_embedder/embedding": "shared.weight",
        "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
        **_tower_weights("encoder", "self_attention", "feed_forward"),
        **_tower_weights("decoder", "self_attention", "cross_attention", "feed_forward"),
    },
    # Copies of other tensors that some files have.
    aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    # The oldest files contain it, though the network's cross-attention has no position bias.
    unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
