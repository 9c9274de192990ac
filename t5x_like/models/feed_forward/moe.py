"""Mixtures of experts: a router sends each token to one or a few of many feed-forwards.

Shapes as in routers.py: G groups of T tokens, and E experts with C slots each per group. Tokens are
gathered into slots and scattered back, so the largest array is [E, G, C, D]: the size of the tokens
[G, T, D] times the capacity factor.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.blocks.residual import constrain
from t5x_like.models.compute import Compute, make_dropout
from t5x_like.models.feed_forward.mlp import elementwise, gated
from t5x_like.models.feed_forward.routers import Choice, Router, Slots, by_expert, choices_first
from t5x_like.models.linear import Initializer
from t5x_like.models.ragged_product import ragged_product
from t5x_like.names import choose
from t5x_like.partitioning import parts

# Slots and the experts' hidden layers are sharded by expert, then by group. The rows of a batch are
# also sharded over `expert`, so an all-to-all converts between the two.
Names = tuple[str | None, ...]
SLOTS: Names = ("activation_experts", "activation_groups", None, "activation_embed")
HIDDEN: Names = ("activation_experts", "activation_groups", None, "activation_mlp")
BY_GROUP: Names = ("activation_batch", None, None, "activation_embed")


class Experts(nn.Module):
    """E feed-forwards of the same shape: wo(activation(wi(x))), or gated like `GLU`.

    Attributes:
        experts: E.
        hidden: F.
        gated: whether an expert is wo(activation(wi_0(x)) * wi_1(x)).
        wi_init, wo_init: initializers of one expert's kernels, [D, F] and [F, D].
        compute: its `dropout` applies to the hidden layer: "expert dropout" in Fedus et al. 2022,
            section 2.4.
    """

    experts: int
    hidden: int
    activation: Callable[[Array], Array] = nn.relu
    gated: bool = False
    wi_init: Initializer = nn.initializers.lecun_normal()
    wo_init: Initializer = nn.initializers.lecun_normal()
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*rows D"],
        *,
        multiply: Callable[[Array, Array], Array],
        deterministic: bool,
    ) -> Float[Array, "*rows D"]:
        """Return the output of each row's expert.

        Args:
            multiply: (rows [*rows, n], kernels [E, n, m]) -> [*rows, m], a function that multiplies
                each row by the kernel of its expert.
        """
        width = x.shape[-1]

        def into_hidden(name: str) -> Array:
            kernel = Kernel(
                self.experts, (width, self.hidden), ("embed", "mlp"), self.wi_init, name=name
            )
            return multiply(x, kernel().astype(self.compute.dtype))

        if self.gated:
            hidden = gated(self.activation)(into_hidden("wi_0"), into_hidden("wi_1"))
        else:
            hidden = elementwise(self.activation)(into_hidden("wi"))
        in_slots = hidden.ndim == len(HIDDEN)
        if in_slots:
            hidden = nn.with_logical_constraint(hidden, HIDDEN)
        # One mask for all slots of an expert in a group, like one for all positions in `MLP`.
        broadcast = in_slots and self.compute.dropout_broadcast
        drop = make_dropout(dataclasses.replace(self.compute, dropout_broadcast=broadcast))
        hidden = drop(hidden, deterministic)
        kernel = Kernel(
            self.experts, (self.hidden, width), ("mlp", "embed"), self.wo_init, name="wo"
        )
        return multiply(hidden, kernel().astype(self.compute.dtype))


class Kernel(nn.Module):
    """The kernels of E experts, each initialized independently."""

    experts: int
    shape: tuple[int, int]
    axes: tuple[str, str]
    kernel_init: Initializer

    @nn.compact
    def __call__(self) -> Float[Array, "E n m"]:
        """Return the float32 parameters."""

        def init(key: Array) -> Array:
            return jax.vmap(lambda key: self.kernel_init(key, self.shape))(
                jax.random.split(key, self.experts)
            )

        return self.param("kernel", nn.with_logical_partitioning(init, ("experts", *self.axes)))


class SparseFeedForward(nn.Module):
    """A mixture of experts as a block's feed-forward: Fedus et al. 2022, section 2.

    In each group an expert takes up to C = ceil(factor * T / E) tokens; dropped tokens get only the
    residual connection. A group is one or several rows of the batch.

    Routing statistics are sown in the collection "routing", and the experts that compute each token
    in the collection "assignment", see `collect`.

    Attributes:
        make_router, make_experts: factories of a `Router` and of `Experts`, with the same E.
        capacity_factor, eval_capacity_factor: the number of slots in a group divided by its tokens,
            in training and in evaluation.
        expert_capacity: C; 0 computes it from the factors.
        group_size: the largest number of tokens in a group, which consists of whole rows of one
            device; 0: one row. A row of a single token (a decoding step) is always its own group.
        dispatch: `capacity`, or `dropless`, which drops no token: tokens are sorted by expert for a
            ragged product (Gale et al. 2022, MegaBlocks), without groups and slots.
        drops: False overrides `capacity`, so that no token is dropped (see `undropped.undropped`):
            computed like `dropless`, or, if the experts are sharded, with a slot for each token.
    """

    make_router: Callable[..., Router]
    make_experts: Callable[..., nn.Module]
    capacity_factor: float = 1.25
    eval_capacity_factor: float = 2.0
    expert_capacity: int = 0
    group_size: int = 0
    dispatch: Literal["capacity", "dropless"] = "capacity"
    drops: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        *,
        tokens: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B L D"]:
        """Return the layer's output, without residual or norm.

        Args:
            tokens: the token ids, for a router that depends on them.

        Raises:
            ValueError: `dispatch` is unknown, or it is `dropless` and the experts are sharded or
                the router is `ExpertChoiceRouter`.
        """
        choose("model.dispatch", self.dispatch, {"capacity": None, "dropless": None})
        groups = _groups(x.shape[0], x.shape[1], group_size=self.group_size)
        router = self.make_router(name="router")
        experts = self.make_experts(name="experts")
        rows = x.astype(experts.compute.dtype).reshape(*groups, x.shape[2])
        ids = None if tokens is None else tokens.reshape(groups)
        routed: Choice | Slots
        if self.dispatch == "dropless":
            _check_dropless()
        if self.dispatch == "dropless" or not (self.drops or _spread()):
            routed = router.choose(rows, ids, deterministic=deterministic)
            y, load = compute_all(experts, rows, routed, deterministic=deterministic)
            dropped = jnp.zeros(())
        else:
            capacity = self._capacity(
                groups[1], experts=router.experts, deterministic=deterministic
            )
            routed = router(rows, ids, capacity=capacity, deterministic=deterministic)
            y = compute_slots(experts, rows, routed, deterministic=deterministic)
            load, dropped = routed.load, routed.dropped
        self.sow("routing", "load", load)
        self.sow("routing", "dropped", dropped)
        self.sow("routing", "balance", routed.balance)
        self.sow("routing", "z", routed.z)
        if self.is_mutable_collection("assignment"):  # a large array, made only on request
            own = assigned(routed, length=groups[1], experts=router.experts)
            self.sow("assignment", "computed_by", own)
        return y.reshape(x.shape)

    def _capacity(self, length: int, *, experts: int, deterministic: bool) -> int:
        if not self.drops:
            return length
        if self.expert_capacity:
            return min(self.expert_capacity, length)
        factor = self.eval_capacity_factor if deterministic else self.capacity_factor
        slots = round(factor * length / experts, 6)  # 1.1 * 10 is 11.000000000000002
        return min(math.ceil(slots), length)


def compute_slots(
    experts: nn.Module, x: Float[Array, "G T D"], slots: Slots, *, deterministic: bool
) -> Float[Array, "G T D"]:
    """Return the sum of each token's expert outputs times their gates, for tokens with slots."""

    def multiply(rows: Float[Array, "E G C n"], kernels: Float[Array, "E n m"]) -> Array:
        matrix = rows.reshape(rows.shape[0], -1, rows.shape[-1])  # see `Linear`
        return jnp.matmul(matrix, kernels).reshape(*rows.shape[:-1], kernels.shape[-1])

    def exchanged(y: Array, *, now: Names, then: Names) -> Any:
        # Both layouts are constrained, so that the all-to-all moves only the slots.
        y = jnp.swapaxes(nn.with_logical_constraint(y, now), 0, 1)
        return nn.with_logical_constraint(y, then)

    held = jax.vmap(lambda x, token: x.at[token].get(mode="fill", fill_value=0))(x, slots.token)
    held = exchanged(held, now=BY_GROUP, then=SLOTS)
    y = experts(held, multiply=multiply, deterministic=deterministic)
    y = exchanged(y, now=SLOTS, then=BY_GROUP) * slots.gate[..., None].astype(y.dtype)
    add = jax.vmap(lambda zeros, token, y: zeros.at[token].add(y, mode="drop"))
    return constrain(add(jnp.zeros_like(x), slots.token, y))


def compute_all(
    experts: nn.Module, x: Float[Array, "G T D"], choice: Choice, *, deterministic: bool
) -> tuple[Float[Array, "G T D"], Float[Array, " E"]]:
    """Compute all choices, without a capacity; also return the share of choices per expert."""
    flat = jax.tree.map(lambda a: a.reshape(1, -1, a.shape[-1]), (x, choice.expert, choice.gate))
    rows, expert, gate = flat
    order, counts = by_expert(expert, experts=experts.experts)
    token, sizes = order[0] % rows.shape[1], counts[0].astype(jnp.int32)

    def multiply(rows: Float[Array, "N n"], kernels: Float[Array, "E n m"]) -> Array:
        return ragged_product(rows, kernels, sizes)

    y = experts(rows[0, token], multiply=multiply, deterministic=deterministic)
    gate = choices_first(gate)[0, order[0]]
    gate = jnp.where(jnp.arange(gate.size) < jnp.sum(sizes), gate, 0.0)
    y = jnp.zeros_like(rows[0]).at[token].add(y * gate[:, None].astype(y.dtype))
    return y.reshape(x.shape), sizes / jnp.sum(sizes)


def assigned(routed: Choice | Slots, *, length: int, experts: int) -> Bool[Array, "G T E"]:
    """Return which experts compute each token of a group; none for a dropped token."""
    if isinstance(routed, Choice):
        return jnp.any(jax.nn.one_hot(routed.expert, experts, dtype=bool), axis=2)
    in_slot = routed.token[..., None] == jnp.arange(length)  # an empty slot has T
    return jnp.swapaxes(jnp.any(in_slot, axis=2), 1, 2)


def collect(routing: Mapping[str, PyTree]) -> dict[str, Array]:
    """Collect the sown statistics of all M mixture-of-experts layers in order, the encoder's first.

    Args:
        routing: the collection "routing" of scanned or unrolled layers, in groups or not; or the
            collection "assignment" of one side (encoder or decoder).

    Returns:
        `load` [M, E], the share of choices of each expert, with or without a slot; `dropped` [M],
        the share of choices without a slot; `balance` [M] and `z` [M], the losses of
        `routers.load_balance` and `routers.z_loss`. For "assignment": `computed_by` [M, G, T, E],
        see `assigned`.

    Raises:
        ValueError: the network has no mixture-of-experts layers.
    """
    found: dict[str, list[tuple[tuple, Array]]] = {}
    for path, value in jax.tree.leaves_with_path(routing):
        keys = [key.key for key in path if hasattr(key, "key")]
        name, place = keys[-1], "/".join(map(str, keys[:-1]))
        alone = {"load": 1, "computed_by": 3}.get(name, 0)
        numbers = [int(n) for n in re.findall(r"(?:layer|block)_(\d+)", place)]
        layers = value if value.ndim > alone else value[None]
        for n, layer in enumerate(layers):
            order = (not place.startswith("encoder"), n, *numbers)
            found.setdefault(name, []).append((order, layer))
    if not found:
        raise ValueError(
            "this network has no sparse layer, so there are no routing statistics: use a system "
            "with experts, such as 'switch'"
        )
    return {
        name: jnp.stack([layer for _, layer in sorted(layers, key=lambda item: item[0])])
        for name, layers in found.items()
    }


def _groups(batch: int, length: int, *, group_size: int) -> tuple[int, int]:
    """Return G and T: a group has as many rows as fit into it and divide a device's rows."""
    # A row of one token is a decoding step, which must not depend on other rows.
    rows = 1 if length == 1 else max(1, group_size // length)
    devices = parts("activation_batch")
    own = batch if batch % devices else batch // devices
    rows = next(n for n in range(min(rows, own), 0, -1) if own % n == 0)
    return batch // rows, rows * length


def _spread() -> bool:
    """Return whether the experts are sharded over devices."""
    return jax.sharding.get_abstract_mesh().shape.get("expert", 1) > 1


def _check_dropless() -> None:
    if _spread():
        raise ValueError(
            "model.dispatch='dropless' computes all experts on each device: set mesh.expert=1 or "
            "model.dispatch='capacity'"
        )
