"""Routers of mixtures of experts, which assign tokens to experts and their slots.

Shapes: G groups of T tokens, K choices per token, E experts with C slots each per group. Tokens
compete for slots within their group. All arithmetic is float32, for tokens of any dtype ("selective
precision", Fedus et al. 2022, section 2.4).
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from t5x_like.models.linear import Initializer


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
        place = jnp.minimum(start[..., None] + slot, order.shape[1] - 1)
        chosen = jax.vmap(jnp.take)(order, place)
        full = slot < counts[..., None]
        gate = jax.vmap(jnp.take)(choices_first(choice.gate), chosen)
        given, kept = jnp.sum(counts, axis=0), jnp.sum(full)
        total = jnp.maximum(jnp.sum(given), 1)
        return Slots(
            token=jnp.where(full, chosen % length, length),
            gate=jnp.where(full, gate, 0.0),
            load=given / total,
            dropped=1.0 - kept / total,
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
