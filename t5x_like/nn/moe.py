"""Mixtures of experts: a router sends each token to one or a few of many feed-forwards.

Shapes: G groups of T tokens, K choices per token, E experts with C slots each per group. Tokens
compete for slots within their group. Routers compute in float32, for tokens of any dtype
("selective precision", Fedus et al. 2022, section 2.4). Tokens are gathered into slots and
scattered back, so the largest array is [E, G, C, D]: the size of the tokens [G, T, D] times the
capacity factor.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from t5x_like import partitioning
from t5x_like.names import choose
from t5x_like.nn.blocks import constrain_residual
from t5x_like.nn.compute import Compute, change_factories, change_settings, make_dropout
from t5x_like.nn.expert_exchange import ExpertExchange
from t5x_like.nn.linear import WI, WO, Initializer, elementwise, gated
from t5x_like.nn.matrix_product import ragged_product_by_device


@flax.struct.dataclass
class Choice:
    """The experts that each token is sent to, best first.

    Attributes:
        expert: the index of the expert, or E for no expert.
        gate: the factor on the expert's output.
        balance: the load-balancing loss, see `load_balance`.
        z: the router z-loss, see `z_loss`.
    """

    expert: Int[Array, "G T K"]
    gate: Float[Array, "G T K"]
    balance: Float[Array, ""]
    z: Float[Array, ""]


@flax.struct.dataclass
class Slots:
    """The tokens in the slots of the experts.

    Attributes:
        token: the index in the group of the token in each slot, or T for an empty slot.
        gate: the factor on the expert's output.
        load: the share of choices of each expert, with or without a slot.
        dropped: the share of choices without a slot.
        balance: the load-balancing loss, see `load_balance`.
        z: the router z-loss, see `z_loss`.
    """

    token: Int[Array, "G E C"]
    gate: Float[Array, "G E C"]
    load: Float[Array, " E"]
    dropped: Float[Array, ""]
    balance: Float[Array, ""]
    z: Float[Array, ""]


def load_balance(load: Float[Array, "*G E"], probability: Float[Array, "*G E"]) -> Array:
    """Return E * sum_i f_i P_i, averaged over groups: Fedus et al. 2022, equation 4, without alpha.

    Args:
        load: f, the share of tokens whose first choice is expert i.
        probability: P, the router's mean probability of expert i; the gradient flows through it.
    """
    return load.shape[-1] * jnp.mean(jnp.sum(load * probability, axis=-1))


def z_loss(logits: Float[Array, "G T E"]) -> Float[Array, ""]:
    """Return the mean of (log sum_i exp(x_i))^2: Zoph et al. 2022 (ST-MoE), equation 5."""
    return jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))


class Router(nn.Module):
    """The base of routers in which tokens choose experts; subclasses define `choose`."""

    experts: int

    def choose(
        self,
        x: Float[Array, "G T D"],
        tokens: Int[Array, "G T"] | None,
        *,
        deterministic: bool,
    ) -> Choice:
        """Choose the experts of each token.

        Args:
            tokens: the token ids.
            deterministic: whether to choose without the noise of training.
        """
        raise NotImplementedError

    def __call__(
        self,
        x: Float[Array, "G T D"],
        tokens: Int[Array, "G T"] | None,
        *,
        capacity: int,
        deterministic: bool,
    ) -> Slots:
        """Assign slots: first choices before second choices, and earlier tokens first.

        Args:
            capacity: C.
        """
        choice = self.choose(x, tokens, deterministic=deterministic)
        length = x.shape[1]
        order, counts = by_expert(choice.expert, experts=self.experts)
        slot = jnp.arange(capacity)
        # The choices of an expert are consecutive in `order`.
        start = jnp.cumsum(counts, axis=-1) - counts
        index = jnp.minimum(start[..., None] + slot, order.shape[1] - 1)
        chosen = jax.vmap(jnp.take)(order, index)
        full = slot < counts[..., None]
        gate = jax.vmap(jnp.take)(choices_first(choice.gate), chosen)
        chosen_counts, filled = jnp.sum(counts, axis=0), jnp.sum(full)
        total = jnp.maximum(jnp.sum(chosen_counts), 1)
        return Slots(
            token=jnp.where(full, chosen % length, length),
            gate=jnp.where(full, gate, 0.0),
            load=chosen_counts / total,
            dropped=1.0 - filled / total,
            balance=choice.balance,
            z=choice.z,
        )


def by_expert(
    expert: Int[Array, "G T K"], *, experts: int
) -> tuple[Int[Array, "G KT"], Int[Array, "G E"]]:
    """Return each group's choices sorted by expert, and the number of choices per expert.

    Choice k of token t is the number k * T + t. The sort is stable; choices of no expert are last.
    """
    flat = choices_first(expert)
    counts = jnp.sum(flat[..., None] == jnp.arange(experts), axis=1)
    return jnp.argsort(flat, axis=1, stable=True), counts


def choices_first(x: Num[Array, "G T K"]) -> Num[Array, "G KT"]:
    """Flatten the choices of each group: choice k of token t is at k * T + t."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], -1)


class LearnedRouter(Router):
    """The base of routers with a softmax over a linear map of the token.

    Attributes:
        jitter: e; training multiplies the router's input by uniform noise from [1 - e, 1 + e]
            (Fedus et al. 2022, appendix F; "input jitter" in Zoph et al. 2022, section 3.2).
        kernel_init: initializer of the kernel [D, E].
    """

    jitter: float = 0.0
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def logits(self, x: Float[Array, "G T D"], *, deterministic: bool) -> Float[Array, "G T E"]:
        """Return the float32 logits of the experts for each token."""
        x = x.astype(jnp.float32)
        if self.jitter and not deterministic:
            low, high = 1.0 - self.jitter, 1.0 + self.jitter
            key = self.make_rng("dropout")
            x = x * jax.random.uniform(key, x.shape, minval=low, maxval=high)
        init = nn.with_logical_partitioning(self.kernel_init, ("embed", "router"))
        kernel = self.param("kernel", init, (x.shape[-1], self.experts))
        # Without it a TPU would round both factors to bfloat16.
        return jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)


class SwitchRouter(LearnedRouter):
    """Top-1 routing, gated by the probability: Fedus et al. 2022, section 2.1."""

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Choose one expert for each token."""
        logits = self.logits(x, deterministic=deterministic)
        probability = jax.nn.softmax(logits, axis=-1)
        best = jnp.argmax(logits, axis=-1)
        return Choice(
            expert=best[..., None],
            gate=_of(probability, best)[..., None],
            balance=load_balance(_shares(best, self.experts), jnp.mean(probability, axis=1)),
            z=z_loss(logits),
        )


class Top2Router(LearnedRouter):
    """Top-2 routing: Lepikhin et al. 2020 (GShard), algorithm 1.

    The two gates sum to 1. In training the second expert is kept with probability 2 * its gate, in
    evaluation always.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Choose one or two experts for each token."""
        logits = self.logits(x, deterministic=deterministic)
        probability = jax.nn.softmax(logits, axis=-1)
        first = jnp.argmax(logits, axis=-1)
        is_first = jnp.arange(self.experts) == first[..., None]
        second = jnp.argmax(jnp.where(is_first, -jnp.inf, logits), axis=-1)
        gate = jnp.stack([_of(probability, first), _of(probability, second)], axis=-1)
        gate = gate / jnp.sum(gate, axis=-1, keepdims=True)
        balance = load_balance(_shares(first, self.experts), jnp.mean(probability, axis=1))
        if not deterministic:
            chance = jax.random.uniform(self.make_rng("dropout"), second.shape)
            second = jnp.where(chance < 2.0 * gate[..., 1], second, self.experts)
        expert = jnp.stack([first, second], axis=-1)
        return Choice(expert=expert, gate=gate, balance=balance, z=z_loss(logits))


class TopKRouter(LearnedRouter):
    """Top-K routing without noise: Jiang et al. 2024 (Mixtral), section 2.1.

    The gates are a softmax over the logits of the chosen experts.

    Attributes:
        chosen: K.
    """

    chosen: int = 2

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Choose K experts for each token; `balance` counts all K choices."""
        logits = self.logits(x, deterministic=deterministic)
        # A sort rather than top_k, for the reason in `ExpertChoiceRouter`.
        best = jnp.argsort(-logits, axis=-1, stable=True)[..., : self.chosen]
        probability = jnp.mean(jax.nn.softmax(logits, axis=-1), axis=1)
        share = jnp.mean(best[..., None] == jnp.arange(self.experts), axis=(1, 2))
        return Choice(
            expert=best,
            gate=jax.nn.softmax(jnp.take_along_axis(logits, best, axis=-1), axis=-1),
            balance=load_balance(share, probability),
            z=z_loss(logits),
        )


class HashRouter(Router):
    """Routing by a hash of the token id: Roller et al. 2021 (Hash Layers), "random hash"."""

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Choose the expert of each token id.

        Raises:
            ValueError: the network does not pass token ids to its layers.
        """
        if tokens is None:
            raise ValueError(
                "model.router='hash' needs the token ids, and this network does not pass them to "
                "its layers: choose another router"
            )
        # A bijection on 32 bits that scatters neighboring ids: rounds of a shift and a
        # multiplication by an odd number.
        mixed = tokens.astype(jnp.uint32)
        for _ in range(2):
            mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x9E3779B1)
        mixed = mixed ^ (mixed >> 16)
        return _unlearned((mixed % self.experts).astype(jnp.int32), self.experts)


class RandomRouter(Router):
    """Random routing, a baseline without a learned router.

    Training samples new experts at each step; evaluation uses fixed random experts by position.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Choose one expert for each token."""
        key = jax.random.key(0) if deterministic else self.make_rng("dropout")
        return _unlearned(jax.random.randint(key, x.shape[:2], 0, self.experts), self.experts)


class ExpertChoiceRouter(LearnedRouter):
    """Expert choice: each expert takes its C most likely tokens (Zhou et al. 2022, section 3).

    All slots are full. A token may have several experts; a token without an expert counts as
    dropped. An expert compares a token with later tokens, so in a decoder the routing is not
    causal.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Raise an error: here experts choose, not tokens.

        Raises:
            ValueError: always.
        """
        raise ValueError("model.router='expert_choice' needs slots: set model.dispatch='capacity'")

    def __call__(
        self, x: Array, tokens: Array | None, *, capacity: int, deterministic: bool
    ) -> Slots:
        """Assign to each expert's slots its most likely tokens."""
        logits = self.logits(x, deterministic=deterministic)
        probability = jnp.swapaxes(jax.nn.softmax(logits, axis=-1), 1, 2)
        # A sort rather than top_k: XLA does not partition a top_k over the groups.
        token = jnp.argsort(-probability, axis=-1, stable=True)[..., :capacity]
        taken = jnp.zeros(x.shape[:2], bool)
        taken = jax.vmap(lambda taken, token: taken.at[token].set(True))(taken, token)
        equal = jnp.full((self.experts,), 1.0 / self.experts)
        return Slots(
            token=token,
            gate=jnp.take_along_axis(probability, token, axis=-1),
            load=equal,
            dropped=1.0 - jnp.mean(taken),
            balance=load_balance(equal, jnp.mean(probability, axis=-1)),
            z=z_loss(logits),
        )


def _unlearned(expert: Int[Array, "G T"], experts: int) -> Choice:
    share = _shares(expert, experts)
    return Choice(
        expert=expert[..., None],
        gate=jnp.ones((*expert.shape, 1)),
        balance=load_balance(share, share),
        z=jnp.zeros(()),
    )


def _of(probability: Float[Array, "G T E"], expert: Int[Array, "G T"]) -> Float[Array, "G T"]:
    return jnp.take_along_axis(probability, expert[..., None], axis=-1)[..., 0]


def _shares(expert: Int[Array, "G T"], experts: int) -> Float[Array, "G E"]:
    return jnp.mean(expert[..., None] == jnp.arange(experts), axis=1)


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
        multiply: Callable[..., Array],
        deterministic: bool,
    ) -> Float[Array, "*rows D"]:
        """Return the output of each row's expert.

        Args:
            multiply: (rows [*rows, n], kernels [E, n, m], axes) -> [*rows, m], a function that
                multiplies each row by the kernel of its expert. `axes` are the logical axes of n
                and m.
        """
        width, dtype = x.shape[-1], self.compute.dtype

        def into_hidden(name: str) -> Array:
            axes = ("embed", "mlp")
            kernel = Kernel(self.experts, (width, self.hidden), axes, self.wi_init, name=name)
            return checkpoint_name(multiply(x, kernel().astype(dtype), axes=axes), WI)

        if self.gated:
            hidden = gated(self.activation)(into_hidden("wi_0"), into_hidden("wi_1"))
        else:
            hidden = elementwise(self.activation)(into_hidden("wi"))
        in_slots = hidden.ndim == len(HIDDEN)
        if in_slots:
            hidden = partitioning.constrain(hidden, HIDDEN)
        # One mask for all slots of an expert in a group, like one for all positions in `MLP`.
        broadcast = in_slots and self.compute.dropout_broadcast
        drop = make_dropout(dataclasses.replace(self.compute, dropout_broadcast=broadcast))
        hidden = drop(hidden, deterministic)
        axes = ("mlp", "embed")
        kernel = Kernel(self.experts, (self.hidden, width), axes, self.wo_init, name="wo")
        return checkpoint_name(multiply(hidden, kernel().astype(dtype), axes=axes), WO)


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
            ragged product (Gale et al. 2022, MegaBlocks), without groups and slots. Sharded experts
            exchange the tokens' rows, see `ExpertExchange`; the rows of a batch that its devices do
            not divide have a slot for each token.
        drops: False overrides `capacity`, so that no token is dropped (see `undropped`):
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
            ValueError: `dispatch` is unknown, or it is `dropless` and the router is an
                `ExpertChoiceRouter`.
        """
        choose("model.dispatch", self.dispatch, {"capacity": None, "dropless": None})
        groups = _groups(x.shape[0], x.shape[1], group_size=self.group_size)
        router = self.make_router(name="router")
        experts = self.make_experts(name="experts")
        rows = x.astype(experts.compute.dtype).reshape(*groups, x.shape[2])
        ids = None if tokens is None else tokens.reshape(groups)
        routed: Choice | Slots
        if self.dispatch == "dropless" and isinstance(router, ExpertChoiceRouter):
            raise ValueError(
                "model.router='expert_choice' needs slots: set model.dispatch='capacity'"
            )
        if self._without_slots(groups[0]):
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
            computed_by = assigned(routed, length=groups[1], experts=router.experts)
            self.sow("assignment", "computed_by", computed_by)
        return y.reshape(x.shape)

    def _without_slots(self, groups: int) -> bool:
        if self.dispatch == "capacity" and self.drops:
            return False
        if partitioning.parts("experts") == 1:
            return True
        return self.dispatch == "dropless" and groups % partitioning.parts("activation_batch") == 0

    def _capacity(self, length: int, *, experts: int, deterministic: bool) -> int:
        if self.dispatch == "dropless" or not self.drops:
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

    def multiply(
        rows: Float[Array, "E G C n"], kernels: Float[Array, "E n m"], *, axes: tuple[str, str]
    ) -> Array:
        del axes
        matrix = rows.reshape(rows.shape[0], -1, rows.shape[-1])  # see `Linear`
        return jnp.matmul(matrix, kernels).reshape(*rows.shape[:-1], kernels.shape[-1])

    def exchanged(y: Array, *, now: Names, then: Names) -> Any:
        # Both layouts are constrained, so that the all-to-all moves only the slots.
        y = jnp.swapaxes(partitioning.constrain(y, now), 0, 1)
        return partitioning.constrain(y, then)

    held = jax.vmap(lambda x, token: x.at[token].get(mode="fill", fill_value=0))(x, slots.token)
    held = exchanged(held, now=BY_GROUP, then=SLOTS)
    y = experts(held, multiply=multiply, deterministic=deterministic)
    y = exchanged(y, now=SLOTS, then=BY_GROUP) * slots.gate[..., None].astype(y.dtype)
    add = jax.vmap(lambda zeros, token, y: zeros.at[token].add(y, mode="drop"))
    return constrain_residual(add(jnp.zeros_like(x), slots.token, y))


def compute_all(
    experts: nn.Module, x: Float[Array, "G T D"], choice: Choice, *, deterministic: bool
) -> tuple[Float[Array, "G T D"], Float[Array, " E"]]:
    """Compute all choices, without a capacity; also return the share of choices per expert.

    Each device sorts its tokens by expert, and sends them to the device of the expert if the
    experts are sharded.
    """
    shards = partitioning.parts("activation_batch")
    shards = shards if len(x) % shards == 0 else 1
    rows, expert, gate = (
        a.reshape(shards, -1, a.shape[-1]) for a in (x, choice.expert, choice.gate)
    )
    order, counts = by_expert(expert, experts=experts.experts)
    token, sizes = order % rows.shape[1], counts.astype(jnp.int32)
    sorted_rows = jax.vmap(lambda rows, token: rows[token])(rows, token)
    exchange = ExpertExchange(sizes, choices=choice.expert.shape[-1])
    number = sorted_rows.shape[1]
    multiply = functools.partial(
        ragged_product_by_device, sizes=exchange.sizes_of_experts(), filled=number
    )
    y = experts(exchange.to_experts(sorted_rows), multiply=multiply, deterministic=deterministic)
    y = exchange.to_tokens(y, number=number)
    gate = jnp.take_along_axis(choices_first(gate), order, axis=1)
    chosen = jnp.sum(sizes, axis=1, keepdims=True)
    gate = jnp.where(jnp.arange(number) < chosen, gate, 0.0)
    add = jax.vmap(lambda zeros, token, y: zeros.at[token].add(y))
    y = add(jnp.zeros_like(rows), token, y * gate[..., None].astype(y.dtype))
    return y.reshape(x.shape), jnp.sum(sizes, axis=0) / jnp.sum(sizes)


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
        `moe.load_balance` and `moe.z_loss`. For "assignment": `computed_by` [M, G, T, E],
        see `assigned`.

    Raises:
        ValueError: the network has no mixture-of-experts layers.
    """
    statistics: dict[str, list[tuple[tuple, Array]]] = {}
    for path, value in jax.tree.leaves_with_path(routing):
        keys = [key.key for key in path if hasattr(key, "key")]
        name, layer_path = keys[-1], "/".join(map(str, keys[:-1]))
        alone = {"load": 1, "computed_by": 3}.get(name, 0)
        numbers = [int(n) for n in re.findall(r"(?:layer|block)_(\d+)", layer_path)]
        layers = value if value.ndim > alone else value[None]
        for n, layer in enumerate(layers):
            order = (not layer_path.startswith("encoder"), n, *numbers)
            statistics.setdefault(name, []).append((order, layer))
    if not statistics:
        raise ValueError(
            "this network has no sparse layer, so there are no routing statistics: use a system "
            "with experts, such as 'switch'"
        )
    return {
        name: jnp.stack([layer for _, layer in sorted(layers, key=lambda item: item[0])])
        for name, layers in statistics.items()
    }


def _groups(batch: int, length: int, *, group_size: int) -> tuple[int, int]:
    """Return G and T: a group has as many rows as fit into it and divide a device's rows."""
    # A row of one token is a decoding step, which must not depend on other rows.
    rows = 1 if length == 1 else max(1, group_size // length)
    devices = partitioning.parts("activation_batch")
    local_rows = batch if batch % devices else batch // devices
    rows = next(n for n in range(min(rows, local_rows), 0, -1) if local_rows % n == 0)
    return batch // rows, rows * length


def undropped(module: nn.Module) -> nn.Module:
    """Return the network with `SparseFeedForward.drops` off; unchanged if it has no experts.

    A generation step has slots for all its tokens. A forward pass over the whole text does not: it
    drops tokens, depending on the length of the row and on the other rows of its group, and so
    gives the text a different probability. All code that samples or scores texts therefore uses
    this function's network; its parameters are the same.

    The encoder of an encoder-decoder is unchanged if each row has a fixed number of slots
    (`expert_capacity` without `group_size`, as in Hugging Face's checkpoints): an encoder reads the
    same row in generation and in scoring, and so drops the same tokens.

    Raises:
        ValueError: the router is an `ExpertChoiceRouter`.
    """
    if members := getattr(module, "members", ()):  # the module is an `Ensemble`
        complete = tuple(map(undropped, members))
        same = all(new is old for new, old in zip(complete, members, strict=True))
        return module if same else module.clone(members=complete)
    changed = change_settings(module, SparseFeedForward, _keep)
    if changed is module or getattr(module, "make_decoder", None) is None:
        return changed
    if not hasattr(module, "make_encoder"):
        return changed
    encoder = change_factories(module.make_encoder, SparseFeedForward, _keep_unless_by_row)
    return changed.clone(make_encoder=encoder)


def _keep(factory: functools.partial) -> Mapping[str, Any]:
    router = factory.keywords["make_router"]
    if issubclass(router.func, ExpertChoiceRouter):
        raise ValueError(
            "model.router='expert_choice': an expert compares a token with later tokens, so "
            "texts have no probability token by token, and cannot be generated or scored; to do "
            "so train with another router, such as 'switch' or 'top2'"
        )
    return {"drops": False}


def _keep_unless_by_row(factory: functools.partial) -> Mapping[str, Any]:
    by_row = factory.keywords.get("expert_capacity") and not factory.keywords.get("group_size")
    return {} if by_row else _keep(factory)
