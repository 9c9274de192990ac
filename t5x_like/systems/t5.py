"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683).

v1.0 is the paper's model: ReLU, and the output layer is tied to the embedding table. v1.1 (Google's
release of 2020, after Shazeer 2020) has gated GELU and a separate output layer. The paper's other
architectures (section 3.2) consist of the same parts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.masks import AttentionMask
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import RelativeBias
from t5x_like.nn.blocks import PreNormBlock, Shared
from t5x_like.nn.compute import Batch, Compute
from t5x_like.nn.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import Features
from t5x_like.nn.linear import GLU, MLP, Initializer
from t5x_like.nn.networks import Decoder, Encoder, EncoderDecoder, Tower
from t5x_like.nn.norms import RMSNorm
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
        own = self.relative_position_bias(
            queries=query.shape[1],
            keys=keys_values.length,
            offset=mask.first_slot,
            bidirectional=mask.visibility != "causal",
        )
        return query, own if bias is None else bias + own


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
    return _assemble(
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


def _assemble(config: T5Config, *, encoder: Any, decoder: Any, reader: Any) -> nn.Module:
    make_embedding = functools.partial(
        TokenEmbed, vocab_size=config.vocab_size, features=config.d_model, compute=config.compute
    )
    if config.architecture == "encoder":
        return TokenEncoder(
            make_embeddings=make_embedding, make_encoder=encoder, make_head=Features
        )
    ends = {"make_embedding": make_embedding, "make_head": _head(config)}
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


def _head(config: T5Config) -> Any:
    scale = config.d_model**-0.5
    if config.tied_head:
        return functools.partial(TiedHead, scale=scale if config.scale_tied_logits else 1.0)
    return functools.partial(LinearHead, kernel_init=nn.initializers.normal(scale))


SYSTEM = System(
    name="t5",
    sizes=SIZES,
    build=build,
    later={
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
