"""LSTMs: with or without a projection, in one direction or in both."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like import partitioning
from t5x_like.nn.compute import Compute, make_dropout
from t5x_like.nn.linear import Initializer, symmetric


class LSTMState(NamedTuple):
    """The state of an LSTM after some tokens.

    Attributes:
        memory: the cells [..., C], float32.
        output: the projected outputs [..., P].
    """

    memory: Float[Array, "... C"]
    output: Float[Array, "... P"]


class ProjectedLSTM(nn.Module):
    """One layer of Z independent LSTMs: Z = 2 for both directions, Z = 1 for left to right.

    With the previous output h and the input x (Sak et al. 2014, without peepholes):

        i, g, f, o = W x + U h + b
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(g));  h = clip(V (sigmoid(o) * tanh(c)))

    The forget gate's bias starts at 1. A step over padding does not change the state, and its
    output is 0.

    Attributes:
        cell: C, the width of the cell.
        features: P, the width of the output; None for an LSTM without V, where P = C.
        cell_clip, projection_clip: the largest absolute values of c and h; 0 for no limit.
    """

    cell: int
    features: int | None
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "Z B T D"],
        real: Bool[Array, "Z B T"],
        state: LSTMState | None = None,
        *,
        begins: Bool[Array, "Z B T"] | None = None,
    ) -> tuple[Float[Array, "Z B T P"], LSTMState]:
        """Return the outputs of all steps, in the order of reading, and the state.

        Args:
            x: the inputs of each direction, in the order in which it reads.
            real: False on padding.
            state: the state before the first step, [Z, B, C] and [Z, B, P]; None for zeros.
            begins: True where a document begins, before which the state is 0; None for one document
                in a row.
        """
        directions, inputs, width = x.shape[0], x.shape[-1], self.features or self.cell
        limit = symmetric((6 / (inputs + width + 4 * self.cell)) ** 0.5)
        matrix = ("directions", "embed", "gates", "mlp")
        kernel = self._matrix("input", limit, (directions, inputs, 4, self.cell), matrix)
        recurrent = self._matrix("recurrent", limit, (directions, width, 4, self.cell), matrix)
        bias = nn.with_logical_partitioning(_forget_at_first, ("directions", "gates", "mlp"))
        b = self.param("bias", bias, (directions, 4, self.cell))
        project = None
        if self.features is not None:
            limit = symmetric((6 / (self.cell + width)) ** 0.5)
            axes = ("directions", "mlp", "embed")
            project = self._matrix("projection", limit, (directions, self.cell, width), axes)
        # The products with all inputs are computed outside of the loop, which needs only h.
        gates = jnp.einsum("zbti,zigc->tzbgc", x.astype(self.compute.dtype), kernel) + b[:, None]
        if state is None:
            state = LSTMState(*(jnp.zeros((*x.shape[:2], n)) for n in (self.cell, width)))

        def step(state: LSTMState, now: tuple[Array, ...]) -> tuple[LSTMState, Array]:
            gates, real, begins = now
            if begins is not None:
                state = jax.tree.map(lambda x: jnp.where(begins[..., None], 0, x), state)
            h = state.output.astype(self.compute.dtype)
            z = gates + jnp.einsum("zbp,zpgc->zbgc", h, recurrent)
            i, g, f, o = (z[:, :, gate].astype(jnp.float32) for gate in range(4))
            memory = nn.sigmoid(f) * state.memory + nn.sigmoid(i) * nn.tanh(g)
            memory = _clip(memory, self.cell_clip)
            output = (nn.sigmoid(o) * nn.tanh(memory)).astype(self.compute.dtype)
            if project is not None:
                output = jnp.einsum("zbc,zcp->zbp", output, project)
            output = _whole(_clip(output, self.projection_clip))
            real = real[..., None]
            after = LSTMState(
                jnp.where(real, memory, state.memory),
                jnp.where(real, output, state.output).astype(state.output.dtype),
            )
            return after, jnp.where(real, output, 0)

        marks = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), (real, begins))
        after, outputs = jax.lax.scan(step, state, (gates, *marks))
        return jnp.moveaxis(outputs, 0, 2), after

    def _matrix(
        self, name: str, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
    ) -> Array:
        init = nn.with_logical_partitioning(init, axes)
        return self.param(name, init, shape).astype(self.compute.dtype)


def _forget_at_first(key: Array, shape: tuple[int, ...]) -> Array:
    del key
    return jnp.zeros(shape).at[:, 2].set(1.0)


def _clip(x: Array, limit: float) -> Array:
    return jnp.clip(x, -limit, limit) if limit else x


def _whole(x: Float[Array, "Z B P"]) -> Any:
    """Keep the last axis whole on every device: see `linear.replicate_last_axis`."""
    return partitioning.constrain(x, (None, "activation_batch", "activation_embed"))


class BiLSTM(nn.Module):
    """N bidirectional LSTM layers; each reads both directions of the layer before.

    The head of Devlin et al. 2018, sections 5.1 and 5.3.

    Attributes:
        layers: N.
        cell: C, the width of each direction.
        compute: its `dropout` applies to the input of each layer.
    """

    layers: int
    cell: int
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], real: Bool[Array, "B L"], *, deterministic: bool = True
    ) -> Float[Array, "B L 2*C"]:
        """Return the states of the last layer, forward and backward.

        Args:
            real: False on padding, whose states are 0.
        """
        both = jnp.stack([real, jnp.flip(real, axis=1)])
        for number in range(self.layers):
            x = make_dropout(self.compute)(x, deterministic)
            lstm = ProjectedLSTM(
                cell=self.cell, features=None, compute=self.compute, name=f"layer_{number}"
            )
            states, _ = lstm(jnp.stack([x, jnp.flip(x, axis=1)]), both)
            x = jnp.concatenate([states[0], jnp.flip(states[1], axis=1)], axis=-1)
        return x
