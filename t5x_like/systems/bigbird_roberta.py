"""BigBird-RoBERTa: the base encoder-decoder of Zaheer et al. 2020 (arXiv:2007.14062), section 4.1.

Encoder and decoder are BERT's layers and both start from a pretrained BigBird; the decoder's layers
also have cross-attention.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.losses import autoregressive
from t5x_like.nn.compute import GELU_TANH, Compute
from t5x_like.nn.embeddings import (
    AddPositions,
    LearnedPositions,
    TiedHead,
    TokenEmbed,
    VocabularyProduct,
)
from t5x_like.nn.encoder_heads import transform_tokens
from t5x_like.nn.linear import Initializer
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import bert, bigbird
from t5x_like.systems.system import (
    AttentionConfig,
    DropoutConfig,
    InitConfig,
    System,
    Task,
    adaptation,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdRobertaConfig(bigbird.PatternConfig, InitConfig, DropoutConfig, AttentionConfig):
    """The settings of a BigBird-RoBERTa: BigBird's, for both sides.

    Attributes:
        start_id: the decoder's first input.
        end_id, padding: the tokens that end a summary, and that pad rows.
    """

    vocab_size: int = 50358
    start_id: int = 1
    end_id: int = 1
    padding: int = 0
    positions: int = 4096
    token_types: int = 2
    layers: int
    d_model: int
    d_ff: int
    heads: int


# Table 4: BigBird-RoBERTa is the base model.
SIZES: dict[str, BigBirdRobertaConfig] = {"base": bigbird.SIZES["base"].to(BigBirdRobertaConfig)}

NORM = bert.NORM
loss = autoregressive.loss


class FirstSegment(AddPositions):
    """The input of a tower: tokens and positions, plus the first of BERT's segment embeddings.

    Attributes:
        make_token_types: factory of the table of segments.
    """

    make_token_types: Callable[..., nn.Module] = dataclasses.field(kw_only=True)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> Float[Array, "B L D"]:
        """Return the sum, normed."""
        types = jnp.zeros(x.shape[:2], jnp.int32)
        return super().__call__(x + self.make_token_types(name="token_type")(types), positions)


class TransformedHead(nn.Module):
    """BERT's output layer for masked tokens, as the output layer of a decoder."""

    make_norm: Callable[..., nn.Module]
    kernel_init: Initializer
    compute: Compute = Compute()

    def __call__(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> Float[Array, "B L V"]:
        """Return float32 logits."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
        x = transform_tokens(
            x,
            x.shape[-1],
            make_norm=self.make_norm,
            activation=GELU_TANH,
            kernel_init=self.kernel_init,
            compute=self.compute,
        )
        return TiedHead(use_bias=True, name="output").product(x, embedding)


def build(config: BigBirdRobertaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BigBird, and a decoder of its layers.

    Args:
        config: for `attention_parts`, `block`, `random` and `random_blocks`, which describe the
            encoder, see `bigbird.build`; `attention` is the implementation of the decoder's dense
            attention.

    Raises:
        ValueError: the attention or kind of random blocks is unknown, `block` is below 1, or
            `random` is negative.
    """
    return EncoderDecoder(
        make_embedding=_table(config, vocab_size=config.vocab_size),
        make_encoder=_encoder(config),
        make_decoder=_decoder(config),
        make_head=functools.partial(
            TransformedHead,
            make_norm=functools.partial(NORM, compute=config.compute),
            kernel_init=config.init,
            compute=config.compute,
        ),
        any_padding=False,
    )


def _encoder(config: BigBirdRobertaConfig) -> Callable[..., nn.Module]:
    sparse = config.to(bigbird.BigBirdConfig)
    return functools.partial(bigbird.tower(sparse), make_entrance=_entrance(config))


def _decoder(config: BigBirdRobertaConfig) -> Callable[..., nn.Module]:
    dense = config.to(bert.DenseEncoderConfig)
    block = functools.partial(
        bert.block(dense, activation=GELU_TANH), make_cross_attention=bert.attention(dense)
    )
    return functools.partial(
        Tower,
        make_entrance=_entrance(config),
        make_stack=functools.partial(
            Stack, make_block=block, layers=config.layers, compute=config.compute
        ),
        compute=config.compute,
    )


def _entrance(config: BigBirdRobertaConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        FirstSegment,
        make_positions=functools.partial(
            LearnedPositions,
            length=config.positions,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        ),
        make_norm=functools.partial(NORM, compute=config.compute),
        make_token_types=_table(config, vocab_size=config.token_types, axis="types"),
    )


def _table(config: BigBirdRobertaConfig, **sizes: int | str) -> Callable[..., nn.Module]:
    return functools.partial(
        TokenEmbed,
        features=config.d_model,
        embedding_init=config.init,
        compute=config.compute,
        **sizes,
    )


# ---- Initialization from a BigBird.

# Paths of the layers: scanned, and unrolled up to the depth of BigBird's largest size.
_LAYERS = [
    f"layers/{layer}"
    for layer in ("block", *(f"layer_{n}" for n in range(bigbird.SIZES["large"].layers)))
]
_MODULES = (
    *(f"self_attention/{name}" for name in ("query", "key", "value", "out")),
    *("self_attention_norm", "feed_forward/wi", "feed_forward/wo", "feed_forward_norm"),
)


def _copies() -> dict[str, tuple[str, ...]]:
    """Return the `sums` that start both sides from the same BigBird."""
    pairs = {"token_embedder": "embeddings/token"}
    pairs |= {
        f"lm_head/{name}": f"head/masked_lm/{name}" for name in ("transform", "norm", "output")
    }
    for side in ("encoder", "decoder"):
        modules = ("position", "token_type", "norm")
        pairs |= {f"{side}/entrance/{name}": f"embeddings/{name}" for name in modules}
    for layer in _LAYERS:
        pairs |= {f"decoder/{layer}/{name}": f"encoder/{layer}/{name}" for name in _MODULES}
    return {
        f"{path}/{leaf}": (f"{source}/{leaf}",)
        for path, source in pairs.items()
        for leaf in ("embedding", "scale", "kernel", "bias")
    }


SYSTEM = System(
    name="bigbird_roberta",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prediction="text")},
    generation={
        "decoder_start_token_id": "start_id",
        "eos_token_id": "end_id",
        "pad_token_id": "padding",
    },
    adapt=functools.partial(
        adaptation,
        new=("decoder/layers/*/cross_attention",),
        sums=_copies(),
    ),
)
