"""The Transformer: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762)."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.blocks import PostNormBlock
from t5x_like.nn.embeddings import (
    AddPositions,
    LearnedPositions,
    SinusoidalPositions,
    TiedHead,
    TokenEmbed,
)
from t5x_like.nn.linear import MLP, Initializer, LayerNorm, Linear
from t5x_like.nn.networks import EncoderDecoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TransformerConfig(DropoutConfig, AttentionConfig):
    """The settings of a Transformer; the defaults are the base model's.

    `positions`, the length of the longest text with learned positions, is not in the paper.
    """

    vocab_size: int = 37000
    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int = 64
    d_v: int = 64
    position_scheme: str = "sinusoidal"
    positions: int = 1024


# Table 3. A name is the letter of a row and what the row changes; two rows of (D) change only the
# loss and are in configs/transformer.py. `layers` is the number of layers on each side.
SIZES: dict[str, TransformerConfig] = {
    "base": TransformerConfig(),
    "big": TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.3),
    "a_heads_1": TransformerConfig(heads=1, d_k=512, d_v=512),
    "a_heads_4": TransformerConfig(heads=4, d_k=128, d_v=128),
    "a_heads_16": TransformerConfig(heads=16, d_k=32, d_v=32),
    "a_heads_32": TransformerConfig(heads=32, d_k=16, d_v=16),
    "b_keys_16": TransformerConfig(d_k=16),
    "b_keys_32": TransformerConfig(d_k=32),
    "c_layers_2": TransformerConfig(layers=2),
    "c_layers_4": TransformerConfig(layers=4),
    "c_layers_8": TransformerConfig(layers=8),
    "c_model_256": TransformerConfig(d_model=256, d_k=32, d_v=32),
    "c_model_1024": TransformerConfig(d_model=1024, d_k=128, d_v=128),
    "c_ff_1024": TransformerConfig(d_ff=1024),
    "c_ff_4096": TransformerConfig(d_ff=4096),
    "d_dropout_0.0": TransformerConfig(dropout=0.0),
    "d_dropout_0.2": TransformerConfig(dropout=0.2),
    "e_learned_positions": TransformerConfig(position_scheme="learned"),
}

GLOROT = nn.initializers.glorot_uniform()
loss = autoregressive.loss


# ---- Attention whose queries and keys are narrower than its values.


class NarrowKeysAttention(Attention):
    """Attention with d_k below d_v: Vaswani et al. 2017, section 3.2.2 and rows (B) of table 3.

    Queries and keys are padded with zeros to the width of the values, which changes no dot product,
    so that all cores and caches work, at the cost of attention with the full width.

    Attributes:
        key_width: d_k; `width` is d_v.
    """

    key_width: int = 1

    def setup(self) -> None:
        if not 1 <= self.key_width <= self.width:
            raise ValueError(
                f"model.d_k={self.key_width} must be from 1 to model.d_v={self.width}, the width "
                "of the values"
            )
        groups = self.kv_heads or self.heads
        self.query = self._narrow("query", self.heads, "heads", self.query_init)
        self.key = self._narrow("key", groups, "kv_heads", self.kernel_init)
        self.value = self._into_heads("value", groups, "kv_heads", self.kernel_init)
        self.scale_factor = self.key_width**-0.5 if self.scale is None else self.scale

    def _narrow(self, name: str, heads: int, axis: str, init: Initializer) -> Linear:
        return _Padded(
            (heads, self.key_width),
            axes=("embed", axis, "kv"),
            use_bias=self._has_bias(name),
            kernel_init=init,
            compute=self.compute,
            width=self.width,
        )


class _Padded(Linear):
    """A Linear whose output is padded with zeros to `width`."""

    width: int = 0

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        y = super().__call__(x)
        return jnp.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, self.width - y.shape[-1])])


def build(config: TransformerConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    Args:
        config: its `position_scheme` is "sinusoidal" (section 3.5), or "learned", with one table
            for the encoder and one for the decoder (table 3, row E).

    Raises:
        ValueError: the position scheme is unknown.
    """
    d_model = config.d_model
    attention = _attention(config)
    block = functools.partial(
        PostNormBlock,
        make_norm=functools.partial(LayerNorm, compute=config.compute),
        make_self_attention=attention,
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            use_bias=True,
            wi_init=GLOROT,
            wo_init=GLOROT,
            compute=config.compute,
        ),
        compute=config.compute,
    )
    return EncoderDecoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=d_model,
            # Only the inputs are scaled by sqrt(D), not the output layer (section 3.4), so that the
            # outputs of both are of order 1.
            embedding_init=nn.initializers.normal(d_model**-0.5),
            compute=config.compute,
        ),
        make_encoder=_tower(config, block),
        make_decoder=_tower(config, functools.partial(block, make_cross_attention=attention)),
        make_head=TiedHead,
    )


def _attention(config: TransformerConfig) -> Callable[..., nn.Module]:
    """Return a factory of attention (section 3.2.2) without biases and dropout (section 5.4)."""
    kind: Callable[..., nn.Module] = Attention
    if config.d_k != config.d_v:
        kind = functools.partial(NarrowKeysAttention, key_width=config.d_k)
    return functools.partial(
        kind,
        heads=config.heads,
        width=config.d_v,
        query_init=GLOROT,
        kernel_init=GLOROT,
        out_init=GLOROT,
        compute=dataclasses.replace(config.compute, dropout=0.0),
    )


def _tower(config: TransformerConfig, block: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    d_model = config.d_model
    schemes: dict[str, Callable[..., nn.Module]] = {
        "sinusoidal": functools.partial(
            SinusoidalPositions, features=d_model, compute=config.compute
        ),
        "learned": functools.partial(
            LearnedPositions,
            length=config.positions,
            features=d_model,
            # The standard deviation of the sines and cosines that they replace.
            embedding_init=nn.initializers.normal(0.5**0.5),
            compute=config.compute,
        ),
    }
    return functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=choose("model.position_scheme", config.position_scheme, schemes),
            scale=d_model**0.5,
        ),
        make_stack=functools.partial(
            Stack, make_block=block, layers=config.layers, compute=config.compute
        ),
        compute=config.compute,
    )


SYSTEM = System(
    name="transformer",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
