"""LSTMs with a projection, for both directions at once."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.dropout import make_dropout
from t5x_like.models.embeddings.character_cnn import symmetric
from t5x_like.models.linear import Initializer

DIRECTIONS = 2  # forward and backward


class State(NamedTuple):
    """What an LSTM remembers of the words before; with N layers, [B, N, 2, ...] between batches.

    Attributes:
        memory: the cells [..., C], float32.
        output: the projected outputs [..., P].
    """

    memory: Float[Array, "... C"]
    output: Float[Array, "... P"]


class ProjectedLSTM(nn.Module):
    """One layer of two LSTMs, one for each direction, that do not read each other.

    With the output h of the step before and the input x (Sak et al. 2014, without peepholes):

        i, g, f, o = W x + U h + b
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(g));  h = clip(V (sigmoid(o) * tanh(c)))

    The forget gate's bias starts at 1. A step over padding leaves the state as it is, and its
    output is 0.

    Attributes:
        cell: C, numbers in a cell.
        features: P, numbers in an output; V is left out where it is None, and P = C.
        cell_clip, projection_clip: the largest absolute values; 0 for no limit.
    """

    cell: int
    features: int | None
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "2 B T D"], real: Bool[Array, "2 B T"], state: State
    ) -> tuple[Float[Array, "2 B T P"], State]:
        """The outputs of all steps, in the order in which each direction reads, and the state.

        Args:
            state: before the first step, [2, B, C] and [2, B, P].
        """
        inputs, width = x.shape[-1], self.features or self.cell
        limit = symmetric((6 / (inputs + width + 4 * self.cell)) ** 0.5)
        matrix = ("directions", "embed", "gates", "mlp")
        kernel = self._matrix("input", limit, (inputs, 4, self.cell), matrix)
        recurrent = self._matrix("recurrent", limit, (width, 4, self.cell), matrix)
        bias = nn.with_logical_partitioning(_forget_at_first, ("directions", "gates", "mlp"))
        b = self.param("bias", bias, (DIRECTIONS, 4, self.cell))
        project = None
        if self.features is not None:
            limit = symmetric((6 / (self.cell + width)) ** 0.5)
            axes = ("directions", "mlp", "embed")
            project = self._matrix("projection", limit, (self.cell, width), axes)
        # The inputs of all steps at once: only what depends on the step before is in the loop.
        gates = jnp.einsum("zbti,zigc->tzbgc", x.astype(self.dtype), kernel) + b[:, None]

        def step(state: State, now: tuple[Array, Array]) -> tuple[State, Array]:
            gates, real = now
            z = gates + jnp.einsum("zbp,zpgc->zbgc", state.output.astype(self.dtype), recurrent)
            i, g, f, o = (z[:, :, gate].astype(jnp.float32) for gate in range(4))
            memory = nn.sigmoid(f) * state.memory + nn.sigmoid(i) * nn.tanh(g)
            memory = _clip(memory, self.cell_clip)
            output = (nn.sigmoid(o) * nn.tanh(memory)).astype(self.dtype)
            if project is not None:
                output = jnp.einsum("zbc,zcp->zbp", output, project)
            output = _whole(_clip(output, self.projection_clip))
            real = real[..., None]
            after = State(
                jnp.where(real, memory, state.memory),
                jnp.where(real, output, state.output).astype(state.output.dtype),
            )
            return after, jnp.where(real, output, 0)

        state, outputs = jax.lax.scan(step, state, (gates, jnp.moveaxis(real, 2, 0)))
        return jnp.moveaxis(outputs, 0, 2), state

    def _matrix(
        self, name: str, init: Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
    ) -> Array:
        init = nn.with_logical_partitioning(init, axes)
        return self.param(name, init, (DIRECTIONS, *shape)).astype(self.dtype)


def _forget_at_first(key: Array, shape: tuple[int, ...]) -> Array:
    del key
    return jnp.zeros(shape).at[:, 2].set(1.0)


def _clip(x: Array, limit: float) -> Array:
    return jnp.clip(x, -limit, limit) if limit else x


def _whole(x: Float[Array, "2 B P"]) -> Any:
    """Keep the last axis whole on every device: see `linear.keep_whole`."""
    return nn.with_logical_constraint(x, (None, "activation_batch", "activation_embed"))


class StackedLSTM(nn.Module):
    """N layers of LSTMs in both directions: Peters et al. 2018, section 3.4.

    Every layer but the first adds its input to its output.

    Attributes:
        cell, features, cell_clip, projection_clip: see `ProjectedLSTM`.
        dropout: of the input of each layer, before it is added, too.
        dropout_broadcast: all steps have the same mask.
    """

    layers: int
    cell: int
    features: int | None
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    dropout: float = 0.0
    dropout_broadcast: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "2 B T D"],
        real: Bool[Array, "2 B T"],
        state: State | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "N 2 B T P"], State]:
        """The outputs of all layers, in the order in which each direction reads, and the state.

        Args:
            real: False on padding.
            state: before the first step, [B, N, 2, ...]; None for zeros.
        """
        state = self.first_state(x.shape[1]) if state is None else state
        outputs, states = [], []
        for number in range(self.layers):
            layer = ProjectedLSTM(
                cell=self.cell,
                features=self.features,
                cell_clip=self.cell_clip,
                projection_clip=self.projection_clip,
                dtype=self.dtype,
                name=f"layer_{number}",
            )
            x = make_dropout(self.dropout, broadcast=self.dropout_broadcast)(x, deterministic)
            before = jax.tree.map(lambda s, n=number: jnp.moveaxis(s[:, n], 0, 1), state)
            y, after = layer(x, real, before)
            x = x + y if number else y
            outputs.append(x)
            states.append(jax.tree.map(lambda s: jnp.moveaxis(s, 1, 0), after))
        return jnp.stack(outputs), jax.tree.map(lambda *s: jnp.stack(s, axis=1), *states)

    def first_state(self, rows: int) -> State:
        """The state before the first word: zeros [B, N, 2, ...]."""
        shape = (rows, self.layers, DIRECTIONS)
        width = self.features or self.cell
        return State(jnp.zeros((*shape, self.cell)), jnp.zeros((*shape, width)))
