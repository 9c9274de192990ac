"""Who computes what: routers that give tokens to experts, and experts' slots to tokens.

Shapes: G groups of T tokens, K choices of a token, E experts of C slots each in a group. Groups do
not compete. All is float32, whatever type the tokens have ("selective precision", Fedus et al.
2022, section 2.4).
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from t5x_like.models.linear import Initializer


@flax.struct.dataclass
class Choice:
    """The experts that each token goes to, best first.

    Attributes:
        expert: E where there is none.
        gate: what that expert's output is multiplied by.
        balance: the load-balancing loss, see `load_balance`.
        z: the router z-loss, see `z_loss`.
    """

    expert: Int[Array, "G T K"]
    gate: Float[Array, "G T K"]
    balance: Float[Array, ""]
    z: Float[Array, ""]


@flax.struct.dataclass
class Slots:
    """The token of its group that each slot of an expert holds.

    Attributes:
        token: T where the slot is empty.
        gate: what the expert's output is multiplied by.
        load: the share of the choices that each expert was given, with or without a slot.
        dropped: the share of the choices that have no slot.
    """

    token: Int[Array, "G E C"]
    gate: Float[Array, "G E C"]
    load: Float[Array, " E"]
    dropped: Float[Array, ""]
    balance: Float[Array, ""]
    z: Float[Array, ""]


def load_balance(load: Float[Array, "*G E"], probability: Float[Array, "*G E"]) -> Array:
    """E * sum_i f_i P_i, mean over groups: Fedus et al. 2022, equation 4, without alpha.

    Args:
        load: f, the share of the tokens whose first choice is expert i.
        probability: P, the mean of what the router gives expert i. The gradient is through it.
    """
    return load.shape[-1] * jnp.mean(jnp.sum(load * probability, axis=-1))


def z_loss(logits: Float[Array, "G T E"]) -> Float[Array, ""]:
    """The mean of (log sum_i exp(x_i))^2: Zoph et al. 2022 (ST-MoE), equation 5."""
    return jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))


class Router(nn.Module):
    """What all routers whose tokens choose have in common; `choose` is each one's own."""

    experts: int

    def choose(
        self,
        x: Float[Array, "G T D"],
        tokens: Int[Array, "G T"] | None,
        *,
        deterministic: bool,
    ) -> Choice:
        """The experts of each token, of which `tokens` are the ids.

        Args:
            deterministic: without the noise of training.
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
        """The slots after all have chosen: earlier tokens first, and first choices before second.

        Args:
            capacity: C.
        """
        choice = self.choose(x, tokens, deterministic=deterministic)
        length = x.shape[1]
        order, counts = by_expert(choice.expert, experts=self.experts)
        slot = jnp.arange(capacity)
        # The choices of an expert lie one after the other in `order`, from its start on.
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
    """The choices of each group in order of their experts, and how many each expert has.

    A choice is k * T + t. Those of one expert stay in that order; those of none come last.
    """
    flat = choices_first(expert)
    counts = jnp.sum(flat[..., None] == jnp.arange(experts), axis=1)
    return jnp.argsort(flat, axis=1, stable=True), counts


def choices_first(x: Num[Array, "G T K"]) -> Num[Array, "G KT"]:
    """The choices of each group in order, choice k * T + t at that place."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], -1)


class LearnedRouter(Router):
    """A router that goes by the softmax of a linear map of the token.

    Attributes:
        jitter: e, where training multiplies the router's input by noise from [1 - e, 1 + e] (Fedus
            et al. 2022, appendix F; "input jitter" in Zoph et al. 2022, section 3.2).
        kernel_init: of the kernel [D, E].
    """

    jitter: float = 0.0
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def logits(self, x: Float[Array, "G T D"], *, deterministic: bool) -> Float[Array, "G T E"]:
        """What the experts are to each token, in float32."""
        x = x.astype(jnp.float32)
        if self.jitter and not deterministic:
            low, high = 1.0 - self.jitter, 1.0 + self.jitter
            key = self.make_rng("dropout")
            x = x * jax.random.uniform(key, x.shape, minval=low, maxval=high)
        init = nn.with_logical_partitioning(self.kernel_init, ("embed", "router"))
        kernel = self.param("kernel", init, (x.shape[-1], self.experts))
        # Unless told, a TPU would round both factors to bfloat16.
        return jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)


class SwitchRouter(LearnedRouter):
    """Each token goes to its most likely expert, times its probability: Fedus et al. 2022, 2.1."""

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """One expert for each token."""
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
    """Each token goes to its two most likely experts: Lepikhin et al. 2020 (GShard), algorithm 1.

    Their gates add up to 1. In training the second is kept with probability 2 * its gate, in
    evaluation always.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """The two experts of each token, or the first alone."""
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


class HashRouter(Router):
    """A token's id alone says where it goes: Roller et al. 2021 (Hash Layers), "random hash"."""

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """One expert for each token, the same wherever the token stands.

        Raises:
            ValueError: the network does not tell its layers the tokens' ids.
        """
        if tokens is None:
            raise ValueError(
                "model.router='hash' needs the ids of the tokens, which this network's layers are "
                "not given"
            )
        # A bijection of 32 bits, so that ids that are near each other do not stay so: rounds of a
        # multiplication by an odd number and a shift.
        mixed = tokens.astype(jnp.uint32)
        for _ in range(2):
            mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x9E3779B1)
        mixed = mixed ^ (mixed >> 16)
        return _unlearned((mixed % self.experts).astype(jnp.int32), self.experts)


class RandomRouter(Router):
    """Every token goes anywhere: what is left of sparsity without routing.

    Training draws anew at each step; evaluation draws once, by position.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """One expert for each token."""
        key = jax.random.key(0) if deterministic else self.make_rng("dropout")
        return _unlearned(jax.random.randint(key, x.shape[:2], 0, self.experts), self.experts)


class ExpertChoiceRouter(LearnedRouter):
    """Each expert takes the C tokens that are likeliest its own: Zhou et al. 2022, section 3.

    All slots are full; a token may have several experts, or none, and then it counts as dropped.
    An expert compares a token with those after it: in a decoder, training sees the future.
    """

    def choose(self, x: Array, tokens: Array | None, *, deterministic: bool) -> Choice:
        """Not here, where tokens do not choose.

        Raises:
            ValueError: always.
        """
        raise ValueError("model.router='expert_choice' has no tokens that choose: it needs slots")

    def __call__(
        self, x: Array, tokens: Array | None, *, capacity: int, deterministic: bool
    ) -> Slots:
        """The slots after all experts have chosen."""
        logits = self.logits(x, deterministic=deterministic)
        probability = jnp.swapaxes(jax.nn.softmax(logits, axis=-1), 1, 2)
        # A sort, where top_k would do, since XLA does not partition a top_k over the groups.
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
