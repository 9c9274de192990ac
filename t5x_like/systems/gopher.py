"""Gopher: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights"."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.losses import autoregressive
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, align_distances
from t5x_like.nn.blocks import PreNormBlock
from t5x_like.nn.embeddings import SinusoidalPositions, TiedHead, TokenEmbed
from t5x_like.nn.linear import MLP, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GopherConfig(AttentionConfig):
    """The settings of a Gopher or a Chinchilla."""

    vocab_size: int = 32_000
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int


def size(layers: int, d_model: int, *, heads: int, head_width: int) -> GopherConfig:
    """Return the settings of a row of the paper's table; d_ff is always 4 d_model."""
    return GopherConfig(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        head_width=head_width,
    )


# Table 1.
SIZES: dict[str, GopherConfig] = {
    "44m": size(8, 512, heads=16, head_width=32),
    "117m": size(12, 768, heads=12, head_width=64),
    "417m": size(12, 1536, heads=12, head_width=128),
    "1.4b": size(24, 2048, heads=16, head_width=128),
    "7.1b": size(32, 4096, heads=32, head_width=128),
    "280b": size(80, 16384, heads=128, head_width=128),
}

NORMAL = nn.initializers.normal
loss = autoregressive.loss


# ---- Transformer-XL's attention: the scores depend on relative positions.


class TransformerXLAttention(Attention):
    """Causal attention whose scores depend on content and on relative position.

    Dai et al. 2019, section 3.3: let q_i be the query in slot i, k_j the key in slot j, and R_d the
    sines and cosines of the distance d. W, u and v are learned. The score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j}.

    Distances have no limit. The layers do not share W, u and v, as in Rae et al. 2021. The mask
    must be causal: the score of a key after its query is meaningless.

    Attributes:
        features: D, the width of the sinusoidal vectors; even.
    """

    features: int = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (self.features, self.heads * self.width)
            return self.kernel_init(key, matrix).reshape(shape)

        def zeros(name: str) -> Array:
            boxed = nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "kv"))
            return self.param(name, boxed, (self.heads, self.width))

        self.sines = SinusoidalPositions(features=self.features, compute=self.compute)
        self.distance_kernel = self.param(
            "distance_kernel",
            nn.with_logical_partitioning(init, ("embed", "heads", "kv")),
            (self.features, self.heads, self.width),
        )
        self.content_bias = zeros("content_bias")
        self.distance_bias = zeros("distance_bias")

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """Return the query plus u, and the scaled scores of the distances plus `bias`."""
        # These are the distances of the last query; for earlier queries they are shifted.
        keys = keys_values.length
        distances = mask.first_slot + query.shape[1] - 1 - jnp.arange(keys)
        # einsum takes the cheaper order: for many queries it projects the sines, once for all rows;
        # for one query (a decoding step) it projects the query.
        scores = jnp.einsum(
            "BTHK,DHK,SD->BHTS",
            (query + self.distance_bias.astype(query.dtype)) * self.scale_factor,
            self.distance_kernel.astype(query.dtype),
            self.sines(distances[None], length=keys)[0],
        )
        scores = align_distances(scores, keys=keys)
        content = query + self.content_bias.astype(query.dtype)
        return content, scores if bias is None else bias + scores


def build(config: GopherConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 2.1).

    It is GPT-2's network with RMSNorm and Transformer-XL's relative positions.
    """
    tower = functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        make_norm=functools.partial(RMSNorm, compute=config.compute),
        compute=config.compute,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=NORMAL(0.02),
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=TiedHead,
    )


def _block(config: GopherConfig) -> Callable[..., nn.Module]:
    # As in GPT-2, the kernels of sublayer outputs have a smaller initialization, since the residual
    # stream is the sum of 2N outputs.
    residual = NORMAL(0.02 * (2 * config.layers) ** -0.5)
    return functools.partial(
        PreNormBlock,
        make_norm=functools.partial(RMSNorm, compute=config.compute),
        make_self_attention=functools.partial(
            TransformerXLAttention,
            features=config.d_model,
            heads=config.heads,
            width=config.head_width,
            use_bias=True,
            query_init=NORMAL(0.02),
            kernel_init=NORMAL(0.02),
            out_init=residual,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=functools.partial(nn.gelu, approximate=True),
            use_bias=True,
            wi_init=NORMAL(0.02),
            wo_init=residual,
            compute=config.compute,
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="gopher",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
