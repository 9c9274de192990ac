"""A stack whose last layer decodes masked tokens, or whose first has a convolution beside it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.cache import KeyValues, LayerCache
from t5x_like.models.blocks.residual import (
    PostNormBlock,
    refuse_cross_attention,
    self_attend,
)
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.blocks.stack import REMAT_POLICIES, unrolls
from t5x_like.models.linear import Initializer, Linear, keep_whole
from t5x_like.models.types import Activation
from t5x_like.names import choose

# Applications of the last layer (He et al. 2020, section 3.2; n = 2 in the code).
DECODER_STEPS = 2


class MaskDecoderBlock(PostNormBlock):
    """A layer whose self-attention reads `shared.memory` in place of its input, where it is given.

    So a layer of an encoder is also a step of a mask decoder, with the same parameters. There is no
    cross-attention.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def _self_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        y, own, scores = self_attend(self.self_attention, x, shared, cache, context=shared.memory)
        return self._sublayer_output(x, y, self.self_attention_norm, shared), own, scores


class Neighbors(nn.Module):
    """norm(y + activation(convolution(x))) beside the first layer (DeBERTa's code, version 2).

    Attributes:
        width: tokens under the convolution, an odd number. Those of other documents and padding
            count as zeros.
    """

    width: int
    make_norm: Callable[..., nn.Module]
    activation: Activation
    kernel_init: Initializer
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], y: Float[Array, "B L D"], shared: Shared
    ) -> Float[Array, "B L D"]:
        """The output of the first layer, from its input `x` and its own output `y`."""
        segments = shared.mask.key_segments
        assert segments is not None  # encoders have them
        reach = self.width // 2
        length = x.shape[1]

        def shifted(x: Array, offset: int) -> Array:
            edges = ((0, 0), (reach, reach)) + ((0, 0),) * (x.ndim - 2)
            return jnp.pad(x, edges)[:, reach + offset : reach + offset + length]

        near = [
            jnp.where((shifted(segments, n) == segments)[..., None], shifted(x, n), 0)
            for n in range(-reach, reach + 1)
        ]
        real = (segments > 0)[..., None]
        out = Linear(
            (x.shape[-1],),
            axes=("positions", "embed", "mlp"),
            contract=2,
            use_bias=True,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name="convolution",
        )(jnp.stack(near, axis=2))
        out = nn.Dropout(self.dropout)(keep_whole(jnp.where(real, out, 0)), shared.deterministic)
        return jnp.where(real, self.make_norm(name="norm")(y + self.activation(out)), 0)


class MaskDecoderStack(nn.Module):
    """A `Stack` whose last layer decodes masked tokens, and whose first may see neighbors.

    The enhanced mask decoder of He et al. 2020, section 3.2: with H the output of all layers but
    the last, and P the embeddings of absolute positions, which are used nowhere else, the last
    layer is applied to the queries H + P, and then once more to its own output; both times its keys
    and values are those of H.

    Attributes:
        make_stack: factory of a `Stack` of `MaskDecoderBlock`s.
        make_positions: factory of the embeddings P; None: the last layer is like the others.
        make_neighbors: factory of `Neighbors`, or None.
    """

    make_stack: Callable[..., nn.Module]
    make_positions: Callable[..., nn.Module] | None = None
    make_neighbors: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.stack = self.make_stack()
        if self.make_positions is not None:
            self.position = self.make_positions()
        if self.make_neighbors is not None:
            self.neighbors = self.make_neighbors()

    def __call__(
        self, x: Float[Array, "B L D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B L D"], PyTree]:
        """The output of the last layer, and what `shared.collect` names of all layers."""
        if self.make_positions is None and self.make_neighbors is None:
            return self.stack(x, shared, per_layer)
        if self.is_initializing():  # the parameters of the layers are made by calling them
            self.stack(x, shared, per_layer)
        begin, end, outs = 0, self.stack.layers, []
        if self.make_neighbors is not None:
            y, out = self._run(x, shared, 0, 1)
            x, begin = self.neighbors(x, y, shared), 1
            outs.append(_with_states(out, x))
        if self.make_positions is None:
            x, out = self._run(x, shared, begin, end)
            return x, _join([*outs, out])
        x, out = self._run(x, shared, begin, end - 1)
        shared = dataclasses.replace(shared, memory=x)
        x = x + self.position(shared.positions, length=x.shape[1])
        for _ in range(DECODER_STEPS):
            x, last = self._run(x, shared, end - 1, end)
        return x, _join([*outs, out, last])

    def _run(self, x: Array, shared: Shared, begin: int, end: int) -> tuple[Array, PyTree]:
        """The output of some of the layers, and their own outputs, stacked.

        Linen's scan runs all layers of a stack, so the block is applied as a function.
        """
        in_a_row = unrolls(self.stack.loop, self.stack.layers)
        block = self.stack.make_block(parent=None)
        params = nn.unbox(self.stack.variables["params"])
        keys = None
        if self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), end - begin)

        def apply(x: Array, params: PyTree, key: Array | None) -> tuple[Array, PyTree]:
            rngs = None if key is None else {"dropout": key}
            return block.apply({"params": params}, x, shared, None, rngs=rngs)

        if self.stack.remat != "none":
            policy = choose("model.remat", self.stack.remat, {"none": None, **REMAT_POLICIES})
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=in_a_row)
        if "block" in params:
            own = jax.tree.map(lambda p: p[begin:end], params["block"])
            return jax.lax.scan(lambda x, layer: apply(x, *layer), x, (own, keys), unroll=in_a_row)
        outs = []
        for n in range(begin, end):
            x, out = apply(x, params[f"layer_{n}"], None if keys is None else keys[n - begin])
            outs.append(out)
        return x, jax.tree.map(lambda *layers: jnp.stack(layers), *outs) if outs else None


def _with_states(out: PyTree, x: Array) -> PyTree:
    """A layer's output with x as its hidden states, if they are collected."""
    if not isinstance(out, Collected) or out.hidden_states is None:
        return out
    return dataclasses.replace(out, hidden_states=x[None])


def _join(outs: list[PyTree]) -> PyTree:
    outs = [out for out in outs if out is not None]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outs) if outs else None
