"""Rows of tokens between devices that have different experts, without a capacity."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning

_AXIS = "expert"


@dataclasses.dataclass(frozen=True)
class ExpertExchange:
    """Sends each row to the device that has its expert, and the expert's output back.

    The S devices along the mesh axis `expert` have G = E / S experts each. A device has a buffer
    for the most rows that it can be sent: S T min(K, G), if each of the S has T tokens with K
    choices. Without sharded experts, S is 1, and nothing is sent.

    Attributes:
        sizes: the number of rows for each expert in each of P parts of a batch.
        choices: K; a part has N = K T rows.
    """

    sizes: Int[Array, "P E"]
    choices: int

    def to_experts(self, rows: Float[Array, "P N D"]) -> Float[Array, "P M D"]:
        """Return the rows that each device is sent, sorted by expert.

        Args:
            rows: sorted by expert; rows after the last expert's are not sent.
        """
        most = min(self.choices, self.sizes.shape[1] // self._devices)
        room = self._devices * rows.shape[1] // self.choices * most

        def send(rows: Array, sizes: Array) -> Array:
            received = exchange_rows(rows, jnp.sum(sizes, axis=-1), room=room)
            return received[_reordered(sizes[:, jax.lax.axis_index(_AXIS)], room=room)]

        return self._on_each_device(send, rows)

    def to_tokens(self, rows: Float[Array, "P M D"], *, number: int) -> Float[Array, "P N D"]:
        """Return the experts' outputs to the devices and positions of `to_experts`' rows.

        Args:
            number: N.
        """

        def send(rows: Array, sizes: Array) -> Array:
            by_expert = sizes[:, jax.lax.axis_index(_AXIS)].T
            return exchange_rows(
                rows[_reordered(by_expert, room=len(rows))],
                jnp.sum(sizes, axis=-1).T,
                room=number,
            )

        return self._on_each_device(send, rows)

    def sizes_of_experts(self) -> Int[Array, "P G"]:
        """Return the number of rows that each device is sent for each of its experts."""
        return jnp.sum(self._sizes, axis=1).reshape(len(self.sizes), -1)

    @property
    def _devices(self) -> int:
        """S."""
        return partitioning.parts("experts")

    @property
    def _sizes(self) -> Int[Array, "B S S G"]:
        """Return the number of rows from each device to each for each expert, in P / S groups."""
        return self.sizes.reshape(
            -1, self._devices, self._devices, self.sizes.shape[1] // self._devices
        )

    def _on_each_device(self, send: Callable[[Array, Array], Array], rows: Array) -> Array:
        if self._devices == 1:
            return rows
        specs = nn.logical_to_mesh_axes
        of_rows = specs(("activation_batch", None, None))
        return jax.shard_map(
            lambda rows, sizes: send(rows[0], sizes[0])[None],
            in_specs=(of_rows, specs(("activation_groups", None, None, None))),
            out_specs=of_rows,
            check_vma=False,
        )(rows, self._sizes)


def _reordered(sizes: Int[Array, "n m"], *, room: int) -> Int[Array, " M"]:
    """Return the positions of rows that are sorted by n and then m in the order by m and then n.

    Args:
        sizes: the number of rows for each pair of both; rows after the last keep their positions.
    """
    begins = (jnp.cumsum(sizes) - sizes.reshape(-1)).reshape(sizes.shape).T.reshape(-1)
    lengths = sizes.T.reshape(-1)
    ends = jnp.cumsum(lengths)
    position = jnp.arange(room)
    pair = jnp.searchsorted(ends, position, side="right")
    index = begins[pair] + position - (ends - lengths)[pair]
    return jnp.where(position < ends[-1], index, position)


def exchange_rows(
    rows: Float[Array, "N D"], numbers: Int[Array, "S S"], *, room: int
) -> Float[Array, "M D"]:
    """Exchange rows along the mesh axis `expert`, within a `shard_map` over it.

    Each device sends its first rows to the first device, the next to the second, and so on, and
    receives rows in the order of the devices that sent them.

    Args:
        numbers: how many rows each device (first axis) sends to each (second axis).
        room: M, at least the number of rows that any device receives.

    Returns:
        The received rows, and then rows of zeros.
    """
    device = jax.lax.axis_index(_AXIS)
    begins = jnp.cumsum(numbers, axis=1) - numbers  # of what i sends to j, in the rows of i
    arrives = jnp.cumsum(numbers, axis=0) - numbers  # ... in the rows that j receives
    if partitioning.platform() != "cpu":
        return jax.lax.ragged_all_to_all(
            rows,
            jnp.zeros((room, rows.shape[1]), rows.dtype),
            begins[device],
            numbers[device],
            arrives[device],
            numbers[:, device],
            axis_name=_AXIS,
        )
    # XLA for CPUs has no ragged all-to-all.
    everybody = jax.lax.all_gather(rows, _AXIS)
    position = jnp.arange(room)
    ends = jnp.cumsum(numbers[:, device])
    sender = jnp.searchsorted(ends, position, side="right")
    index = begins[sender, device] + position - arrives[sender, device]
    received = everybody.at[sender, index].get(mode="fill", fill_value=0)
    return jnp.where((position < ends[-1])[:, None], received, 0)
