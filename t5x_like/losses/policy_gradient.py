r"""Policy gradients for sampled texts: rewards, advantages, and the clipped losses of PPO.

The state is a prompt with the tokens after it, the action the next token a, and the policy p the
language model. In four steps from the identity to the loss:

1. The policy gradient identity (Williams 1992): the gradient of an expectation under p is
   itself an expectation under p, and needs samples alone,

       grad E[f(a)] = sum_a f(a) grad p(a) = E[f(a) grad log p(a)],

   since grad p = p grad log p. As E[grad log p] = 0, a baseline V that does not depend on the
   action may be taken off f: the advantage A = f - V has the same gradient and less variance.
2. Conservative policy iteration (Kakade & Langford 2002) evaluates a new policy p on samples of
   an old one, q, by the ratio r = p(a) / q(a), which is 1 where the two agree:

       L_CPI = E_q[r A],   grad L_CPI = E_q[r A grad log p] = the policy gradient at p = q.

3. Far from q that is no estimate any more. Trust region policy optimization (Schulman et al. 2015)
   maximizes L_CPI subject to E[KL(q || p)] <= delta, which takes second derivatives.
4. Proximal policy optimization (Schulman et al. 2017, equation 7) takes the incentive away in place
   of the constraint, and needs first derivatives alone:

       L_CLIP = E_q[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)].

   The minimum is a lower bound of L_CPI: a change that the clipping hides has no gradient, one
   that makes the objective worse is never hidden.

Arrays are [B, N] over the N tokens after each prompt; `mask` is 1 on real tokens, which come first.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.losses.sums import LossSums


def mask_of(lengths: Int[Array, " B"], size: int) -> Float[Array, "B N"]:
    """1 on the first tokens of each row, as many as it has, 0 on the rest of `size`."""
    return (jnp.arange(size) < lengths[:, None]).astype(jnp.float32)


def kl_rewards(
    log_probs: Float[Array, "B N"],
    reference: Float[Array, "B N"],
    scores: Float[Array, " B"],
    mask: Float[Array, "B N"],
    *,
    beta: float,
) -> Float[Array, "B N"]:
    """The reward of each token: Ouyang et al. 2022, equation 2, without pretraining.

    A token costs -beta (log p - log p_reference), whose sum over a response is an estimate of
    -beta KL(p || p_reference); its last token also gets the score.

    Args:
        log_probs, reference: of the tokens, under the policy and under the frozen reference.
        scores: of the responses.
    """
    last = mask - jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
    penalty = jnp.where(mask > 0, log_probs - reference, 0.0)
    return last * scores.astype(jnp.float32)[:, None] - beta * penalty


def advantages(
    rewards: Float[Array, "B N"],
    values: Float[Array, "B N"],
    mask: Float[Array, "B N"],
    *,
    discount: float = 1.0,
    decay: float = 0.95,
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Generalized advantage estimation (Schulman et al. 2016, equation 16), and the returns.

    With V = 0 after the last token, backwards over the tokens,

        delta_t = r_t + discount V_{t+1} - V_t,   A_t = delta_t + discount decay A_{t+1},

    and the return is A_t + V_t: with decay 1 the discounted sum of the rewards, with decay 0
    r_t + discount V_{t+1}.

    Args:
        values: the estimates V_t before each token.
        decay: lambda.

    Returns:
        Both 0 on padding.
    """
    values, rewards = (jnp.where(mask > 0, x, 0.0) for x in (values, rewards))
    following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    deltas = rewards + discount * following - values

    def back(later: Array, delta: Array) -> tuple[Array, Array]:
        now = delta + discount * decay * later
        return now, now

    found = jax.lax.scan(back, jnp.zeros(len(rewards)), deltas.T, reverse=True)[1].T * mask
    return found, found + values


def whiten(
    values: Float[Array, "B N"], mask: Float[Array, "B N"], *, shift: bool = True
) -> Float[Array, "B N"]:
    """Values of variance 1 over real tokens, and of mean 0 if `shift`; padding becomes 0.

    Rewards keep their mean (Stiennon et al. 2020's code): without it, a response would gain or
    lose by its length.
    """
    number = jnp.maximum(jnp.sum(mask), 1.0)
    mean = jnp.sum(values * mask) / number
    variance = jnp.sum(jnp.square(values - mean) * mask) / number
    scaled = (values - mean) * jax.lax.rsqrt(variance + 1e-8)
    return jnp.where(mask > 0, scaled if shift else scaled + mean, 0.0)


def clipped_policy(
    log_probs: Float[Array, "B N"],
    old: Float[Array, "B N"],
    advantages: Float[Array, "B N"],
    mask: Float[Array, "B N"],
    *,
    clip: float,
) -> LossSums:
    """-L_CLIP, see above.

    Args:
        log_probs: of the tokens, under the policy that is trained.
        old: the same when they were sampled.
        clip: epsilon; the ratio is clipped to 1 - epsilon and 1 + epsilon.

    Returns:
        The sum over tokens, their number, and the metrics: `policy`, the loss; `ratio`; `clipped`,
        the share of tokens without a gradient; `approximate_kl`, the mean of (log p - log q)^2 / 2.
    """
    change = jnp.where(mask > 0, log_probs - old, 0.0)
    ratio = jnp.exp(change)
    free = -ratio * advantages
    clipped = -jnp.clip(ratio, 1 - clip, 1 + clip) * advantages
    number = jnp.sum(mask)
    total = jnp.sum(jnp.maximum(free, clipped) * mask)
    metrics = {
        "policy": (total, number),
        "ratio": (jnp.sum(ratio * mask), number),
        "clipped": (jnp.sum((clipped > free) * mask), number),
        "approximate_kl": (jnp.sum(jnp.square(change)) / 2, number),
    }
    return total, number, jax.lax.stop_gradient(metrics)


def clipped_value(
    values: Float[Array, "B N"],
    old: Float[Array, "B N"],
    returns: Float[Array, "B N"],
    mask: Float[Array, "B N"],
    *,
    clip: float,
) -> LossSums:
    """The larger of the squared errors of V and of V within `clip` of the old one, halved.

    As the policy's, the loss has no gradient where a value has moved past the clip towards its
    return (Dhariwal et al. 2017, OpenAI Baselines).

    Args:
        values, old: the estimates now, and when the tokens were sampled.

    Returns:
        The sum over tokens, their number, and the metrics `loss` and `clipped`.
    """
    near = old + jnp.clip(values - old, -clip, clip)
    free, clipped = jnp.square(values - returns), jnp.square(near - returns)
    number = jnp.sum(mask)
    total = jnp.sum(jnp.maximum(free, clipped) * mask) / 2
    metrics = {
        "loss": (total, number),
        "clipped": (jnp.sum((clipped > free) * mask), number),
    }
    return total, number, jax.lax.stop_gradient(metrics)
