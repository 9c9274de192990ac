"""DPO: Rafailov et al. 2023, "Direct Preference Optimization" (arXiv:2305.18290)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from t5x_like import losses, systems
from t5x_like.losses import preferences
from t5x_like.nn.compute import Batch
from t5x_like.nn.embeddings import VocabularyProduct
from t5x_like.nn.moe import undropped
from t5x_like.systems import gpt2
from t5x_like.systems.system import AttentionConfig, ReadPart, System, Task


def pair_of(system: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a policy and its reference.

    Args:
        system: the system of the language model that both are initialized with.
        policy: the settings of this language model.
    """
    return {
        "vocab_size": policy["vocab_size"],
        **{name: policy[name] for name in systems.COMPUTATION},
        "policy": {"system": system, **policy},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DpoConfig(AttentionConfig):
    """The settings of a policy and its reference, see `pair_of`."""

    policy: Mapping[str, Any]


# The language model of the sentiment task (section 6).
SIZES: dict[str, DpoConfig] = {"gpt2_large": DpoConfig(**pair_of("gpt2", gpt2.SIZES["large"]))}


# ---- A network that is trained, and the frozen copy that it is compared with.


class PolicyAndReference(nn.Module):
    """Two networks of one shape, with the same initial parameters (Rafailov et al. 2023).

    Experts drop no token (see `undropped`), since probabilities of whole responses are compared.

    Attributes:
        make_network: factory of each of the two, a network that generates text.
        sides: the sides of a batch that this network reads.
        generates: False, since only the submodule `policy` generates text.
    """

    generates: ClassVar[bool] = False

    make_network: Callable[..., nn.Module]
    sides: tuple[str, ...]

    def setup(self) -> None:
        self.policy = undropped(self.make_network())
        self.reference = undropped(self.make_network())

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """Return the float32 logits [B, T, V] of the policy."""
        if self.is_initializing():  # Flax creates the reference's parameters when it is called
            self.reference(batch)
        return self.policy(batch, deterministic=deterministic)

    def compare(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[VocabularyProduct, VocabularyProduct]:
        """Return the logits of the policy and of the reference, as products not yet computed.

        The reference has no dropout and gets no gradient.
        """
        policy = self.policy.logits_product(batch, deterministic=deterministic)
        return policy, jax.lax.stop_gradient(self.reference.logits_product(batch))

    def example_batch(self, *, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return the fields that `__call__` needs, filled with 0, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {f"{side}_input_tokens": tokens for side in self.sides}


def build(config: DpoConfig) -> nn.Module:
    """Build the networks of a config with the keys of SIZES.

    Args:
        config: `policy` has the `system` of a network that generates text, and its settings.

    Raises:
        ValueError: the system or a setting of the policy does not exist, or the policy does not
            generate text or has another vocabulary size.
    """
    settings = systems.inside(config, "policy", needs=("system", "vocab_size"))
    system = settings.pop("system")
    if settings["vocab_size"] != config.vocab_size:
        raise ValueError(
            f"model.vocab_size={config.vocab_size}, and model.policy.vocab_size="
            f"{settings['vocab_size']}: both are of one vocabulary, set them to the same number"
        )
    policy = systems.build(system, settings)
    if not hasattr(policy, "logits_product") or not policy.generates:
        raise ValueError(
            f"model.policy.system={system!r}: a policy is a decoder or an encoder-decoder, such as "
            "gpt2, llama or t5"
        )
    return PolicyAndReference(
        # A factory, since Flax puts the parameters of a module under the module that creates it.
        make_network=functools.partial(systems.build, system, settings),
        sides=policy.sides,
    )


def start(module: Any, config: DpoConfig, read: ReadPart) -> PyTree:
    """Read policy and reference from the same folder, from which the run starts.

    Raises:
        ValueError: the folder has another system, or lacks parameters of its network.
    """
    del module
    policy = read("policy", system=config.policy["system"])
    return {"policy": policy, "reference": policy}


def loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None, *, beta: float = 0.1
) -> losses.LossSums:
    """Return the loss of comparisons (equation 7), averaged over the pairs of each prompt.

    It equals the loss of a reward model whose reward is beta log(p(y | x) / p_reference(y | x)),
    where p is the probability of a whole response y: see `losses.preferences.ranking`, also for
    the metrics.

    Args:
        batch: comparisons, see `batches.prompt_rows`.
        rng: key of the policy's dropout; None in evaluation.
        beta: the weight of the divergence from the reference in the objective of equation 3.

    Raises:
        ValueError: beta is not above 0.
    """
    if beta <= 0:
        raise ValueError(f"loss.beta={beta} must be above 0 (the paper has 0.1 and 0.5)")
    rows = preferences.rows(batch)
    both = losses.forward(module, params, rows, rng, method="compare")
    policy, reference = (
        _of_responses(losses.log_probs(logits, rows["decoder_target_tokens"]), rows)
        for logits in both
    )
    rewards = beta * (policy - reference).reshape(batch["ranks"].shape)
    return preferences.ranking(rewards, batch["ranks"])


def _of_responses(log_probs: jax.Array, rows: Batch) -> jax.Array:
    """Return the log-probability of each row's response."""
    written = rows["decoder_loss_weights"] > 0
    return jnp.sum(jnp.where(written, log_probs, 0.0), axis=1)


SYSTEM = System(
    name="dpo",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(
            loss=loss, prediction="text", objective="comparisons", start=start, start_required=True
        ),
    },
    policy="policy",
)
