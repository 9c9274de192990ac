"""PPO on sampled responses (Ouyang et al. 2022, section 3.5), for any `ActorCritic`.

A step is one iteration: `prepare` samples a response to each prompt of a batch and computes its
advantages; `loss` is the loss of the updates, on minibatches of the episodes.

The state is a prompt with the tokens after it, the action is the next token a, and the policy p is
the language model. Four steps lead from the policy gradient to the loss:

1. The policy gradient identity (Williams 1992): the gradient of an expectation under p is itself
   an expectation under p, so that samples are enough to estimate it,

       grad E[f(a)] = sum_a f(a) grad p(a) = E[f(a) grad log p(a)],

   since grad p = p grad log p. As E[grad log p] = 0, a baseline V that does not depend on the
   action may be subtracted from f: the advantage A = f - V has the same gradient and less variance.
2. Conservative policy iteration (Kakade & Langford 2002) evaluates a new policy p on samples from
   an old policy q with the ratio r = p(a) / q(a), which is 1 if p = q:

       L_CPI = E_q[r A],   grad L_CPI = E_q[r A grad log p] = the policy gradient at p = q.

3. Far from q this is not a good estimate. Trust region policy optimization (Schulman et al. 2015)
   maximizes L_CPI subject to E[KL(q || p)] <= delta, which needs second derivatives.
4. Proximal policy optimization (Schulman et al. 2017, equation 7) removes the incentive to move far
   from q instead of adding a constraint, and needs only first derivatives:

       L_CLIP = E_q[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)].

   The minimum makes it a lower bound of L_CPI: a change of r beyond the clipping range has no
   gradient if it improves the objective, and is not clipped if it makes the objective worse.

Arrays are [B, N] over the N tokens after each prompt; `mask` is 1 on real tokens, which come first.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import decoding, losses
from t5x_like.decoding.generation import Generated
from t5x_like.decoding.generator import Generator
from t5x_like.losses import autoregressive
from t5x_like.losses.sums import LossSums
from t5x_like.nn.compound_networks import ActorCritic
from t5x_like.nn.compute import Batch
from t5x_like.nn.embeddings import VocabularyProduct
from t5x_like.nn.moe import undropped

PRETRAINING = "pretraining_"  # the prefix of the batch fields of pretraining rows


def mask_of(lengths: Int[Array, " B"], size: int) -> Float[Array, "B N"]:
    """Return a mask [B, size] that is 1 on the first `lengths` tokens of each row, otherwise 0."""
    return (jnp.arange(size) < lengths[:, None]).astype(jnp.float32)


def kl_rewards(
    log_probs: Float[Array, "B N"],
    reference: Float[Array, "B N"],
    scores: Float[Array, " B"],
    mask: Float[Array, "B N"],
    *,
    beta: float,
) -> Float[Array, "B N"]:
    """Return the reward of each token: Ouyang et al. 2022, equation 2, without pretraining.

    Each token gets -beta (log p - log p_reference), whose sum over a response is an estimate of
    -beta KL(p || p_reference); the last token of a response also gets the score.

    Args:
        log_probs, reference: log-probabilities of the tokens under the policy and under the frozen
            reference.
        scores: the reward model's scores of the responses.
    """
    last = mask - jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
    penalty = jnp.where(mask > 0, log_probs - reference, 0.0)
    return last * scores.astype(jnp.float32)[:, None] - beta * penalty


def generalized_advantages(
    rewards: Float[Array, "B N"],
    values: Float[Array, "B N"],
    mask: Float[Array, "B N"],
    *,
    discount: float = 1.0,
    decay: float = 0.95,
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Return the generalized advantages (Schulman et al. 2016, equation 16) and the returns.

    With V = 0 after the last token, the advantages are computed backwards over the tokens:

        delta_t = r_t + discount V_{t+1} - V_t,   A_t = delta_t + discount decay A_{t+1}.

    The return is A_t + V_t: with decay 1 the discounted sum of the rewards, with decay 0
    r_t + discount V_{t+1}.

    Args:
        values: the estimates V_t before each token.
        decay: lambda.

    Returns:
        The advantages and the returns, both 0 on padding.
    """
    values, rewards = (jnp.where(mask > 0, x, 0.0) for x in (values, rewards))
    following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    deltas = rewards + discount * following - values

    def back(later: Array, delta: Array) -> tuple[Array, Array]:
        now = delta + discount * decay * later
        return now, now

    advantages = jax.lax.scan(back, jnp.zeros(len(rewards)), deltas.T, reverse=True)[1].T * mask
    return advantages, advantages + values


def whiten(
    values: Float[Array, "B N"], mask: Float[Array, "B N"], *, shift: bool = True
) -> Float[Array, "B N"]:
    """Scale values to variance 1 over real tokens, and to mean 0 if `shift`; padding becomes 0.

    Rewards keep their mean (Stiennon et al. 2020's code): subtracting it would add the same amount
    to the reward of every token, so that the return would depend on the response's length.
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
    """Return the loss of the policy: -L_CLIP, see the module's docstring.

    Args:
        log_probs: log-probabilities of the tokens under the policy that is trained.
        old: their log-probabilities when they were sampled.
        clip: epsilon; the ratio is clipped to the range from 1 - epsilon to 1 + epsilon.

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
    """Return the loss of the values, whose change is clipped like the policy's.

    It is half of the larger squared error: of V, or of V clipped to within `clip` of the old value.
    The gradient is zero if a value has moved towards its return by more than `clip` (Dhariwal et
    al. 2017, OpenAI Baselines).

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


def sample(
    module: ActorCritic,
    params: PyTree,
    prompts: Batch,
    rng: Array,
    *,
    temperature: float,
) -> tuple[dict[str, Array], Float[Array, "B N"]]:
    """Sample a response to each prompt with the policy.

    Args:
        prompts: `decoder_input_tokens` [B, P], padded on the left, `decoder_segment_ids`, 0 on
            padding, and for an encoder-decoder `encoder_input_tokens` and `encoder_segment_ids`;
            `responses` [B, N], whose values are not read: N is the largest number of tokens of a
            response. Other fields are kept.

    Returns:
        The episodes, see `ActorCritic`, and the log-probability that each token had when it was
        sampled. In rows without a prompt the mask of the response is 0.
    """
    tokens, real = prompts["decoder_input_tokens"], prompts["decoder_segment_ids"] > 0
    new = prompts["responses"].shape[1]
    arguments = {"decoder_input_tokens": tokens, "decoder_mask": real}
    if "encoder" in module.sides:
        arguments["encoder_input_tokens"] = prompts["encoder_input_tokens"]
        arguments["encoder_mask"] = prompts["encoder_segment_ids"] > 0
    generator = Generator(module.make_policy(), params["policy"])
    extend = generator.extend

    def extend_tempered(tokens: Array, cache: Any) -> tuple[Array, Any]:
        logits, cache = extend(tokens, cache)
        return logits / temperature, cache

    logits, cache = generator.prefill(arguments, cache_length=tokens.shape[1] + new)
    generated: Generated = decoding.generate(
        extend_tempered,
        logits / temperature,
        cache,
        max_new_tokens=new,
        eos_ids=() if module.end_id is None else module.end_id,
        choose=decoding.sample,
        rng=rng,
        log_probs=True,
    )
    assert generated.log_probs is not None
    mask = mask_of(generated.lengths, new)
    mask *= jnp.any(real, axis=1, keepdims=True)
    segments = jnp.concatenate([real, mask > 0], axis=1).astype(jnp.int32)
    episodes = {
        "decoder_input_tokens": jnp.concatenate([tokens, generated.tokens], axis=1),
        "decoder_segment_ids": segments,
        "decoder_positions": jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0),
        "response_mask": mask,
    }
    if "encoder" not in module.sides:  # in sampling, a prefix LM has the prompt as its prefix
        episodes["decoder_causal_attention"] = segments.at[:, -new:].set(0)
    return {**prompts, **episodes}, generated.log_probs


def log_probs(
    logits: VocabularyProduct, episodes: Batch, *, temperature: float
) -> Float[Array, "B N"]:
    """Return the log-probability of each response token, at the temperature of sampling."""
    new = episodes["response_mask"].shape[1]
    tokens = episodes["decoder_input_tokens"][:, -new:]
    tempered = logits if temperature == 1 else logits.logits() / temperature
    return losses.log_probs(tempered, tokens)


def prepare(
    module: ActorCritic,
    state: Any,
    batch: Batch,
    rng: Array,
    *,
    beta: float = 0.02,
    temperature: float = 1.0,
    missing_end: float | None = None,
    whiten_rewards: bool = True,
    discount: float = 1.0,
    gae_decay: float = 0.95,
) -> dict[str, Array]:
    """Sample a response to each prompt, and compute its rewards and advantages.

    Args:
        batch: see `sample`.
        beta: the weight of the divergence from the reference.
        temperature: divides the logits, in sampling and in every log-probability.
        missing_end: the score of a response without an end token, instead of the reward model's
            score; None to keep the latter.
        whiten_rewards: whether rewards are divided by their standard deviation over the batch.
        discount, gae_decay: see `generalized_advantages`; the paper does not discount, and does
            not report lambda.

    Returns:
        The batch as episodes, with [B, N] `old_log_probs`, `old_values`, `advantages` (with mean 0
        and variance 1 over the batch), `returns`; and [B] `score`, `divergence`, the sum of
        log p - log p_reference over the response, and `ended`, 1 if it has an end token.

    Raises:
        ValueError: a setting is out of its range, or prompts and responses are longer than the
            positions of a network.
    """
    _check(temperature=temperature, beta=beta)
    params = state.params
    episodes, sampled = sample(module, params, batch, rng, temperature=temperature)
    variables, mask = {"params": params}, episodes["response_mask"]
    logits = module.apply(variables, episodes, method="reference_logits")
    reference = log_probs(logits, episodes, temperature=temperature)
    values = module.apply(variables, episodes, method="values")
    score = module.apply(variables, episodes, method="rewards").astype(jnp.float32)
    ended = _ended(episodes, end_id=module.end_id)
    if missing_end is not None:
        score = jnp.where(ended, score, missing_end)
    rewards = kl_rewards(sampled, reference, score, mask, beta=beta)
    if whiten_rewards:
        rewards = whiten(rewards, mask, shift=False)
    advantages, returns = generalized_advantages(
        rewards, values, mask, discount=discount, decay=gae_decay
    )
    return {
        **episodes,
        "old_log_probs": sampled,
        "old_values": values,
        "advantages": whiten(advantages, mask),
        "returns": returns,
        "score": score,
        "divergence": jnp.sum(jnp.where(mask > 0, sampled - reference, 0.0), axis=1),
        "ended": ended.astype(jnp.float32),
    }


def _ended(episodes: Batch, *, end_id: int | None) -> Bool[Array, " B"]:
    """Return whether each response has an end token."""
    mask = episodes["response_mask"]
    is_end = episodes["decoder_input_tokens"][:, -mask.shape[1] :] == (
        -1 if end_id is None else end_id
    )
    return jnp.any(is_end & (mask > 0), axis=1)


def loss(
    module: ActorCritic,
    params: PyTree,
    batch: Batch,
    rng: Array | None,
    *,
    clip: float = 0.2,
    value_clip: float = 0.2,
    value_weight: float = 0.1,
    temperature: float = 1.0,
    gamma_ptx: float = 0.0,
) -> losses.LossSums:
    """Return the clipped losses of policy and value plus PPO-ptx's pretraining loss (equation 2).

    Each is a mean over the tokens of the responses or of the pretraining rows. Dropout is off, so
    that the gradient is taken of the same policy that sampled.

    Args:
        batch: from `prepare`; with `gamma_ptx` also the fields of R pretraining rows for each
            episode, [B, R, ...]: the fields that the policy reads, with the prefix `pretraining_`.
        rng: not used.
        clip, value_clip: see `clipped_policy` and `clipped_value`.
        value_weight: the weight of the value loss.
        temperature: as in `prepare`.
        gamma_ptx: the weight of the pretraining loss; 0 for PPO without it.

    Raises:
        ValueError: a setting is out of its range, or `gamma_ptx` is set and the batch has no
            pretraining rows.
    """
    del rng
    _check(clip=clip, value_clip=value_clip, temperature=temperature)
    mask = batch["response_mask"]
    logits, values = module.apply({"params": params}, batch, method="act")
    terms: dict[str, tuple[float, losses.LossSums]] = {
        "policy": (
            1.0,
            clipped_policy(
                log_probs(logits, batch, temperature=temperature),
                batch["old_log_probs"],
                batch["advantages"],
                mask,
                clip=clip,
            ),
        ),
        "value": (
            value_weight,
            clipped_value(values, batch["old_values"], batch["returns"], mask, clip=value_clip),
        ),
    }
    if gamma_ptx:
        rows = _pretraining_rows(batch)
        language_modeling = autoregressive.loss(
            undropped(module.make_policy()), params["policy"], rows, None
        )
        terms["pretraining"] = gamma_ptx, language_modeling
    total, weight, metrics = losses.combine(terms)
    return total, weight, {**metrics, **_of_episodes(batch)}


def _pretraining_rows(batch: Batch) -> dict[str, Array]:
    """Return the pretraining rows of all episodes, [B * R, ...], without the prefix."""
    rows = {
        name.removeprefix(PRETRAINING): x.reshape(-1, *x.shape[2:])
        for name, x in batch.items()
        if name.startswith(PRETRAINING)
    }
    if not rows:
        raise ValueError(
            "loss.gamma_ptx is above 0, and the batches have no pretraining rows: set "
            "data.objective_settings.pretraining_rows (8 in the paper), or loss.gamma_ptx=0"
        )
    return rows


def _of_episodes(batch: Batch) -> dict[str, tuple[Array, Array]]:
    """Return the metrics of the sampled responses."""
    lengths = jnp.sum(batch["response_mask"], axis=1)
    sampled = (lengths > 0).astype(jnp.float32)
    number, tokens = jnp.sum(sampled), jnp.sum(lengths)
    metrics = {
        "reward": (jnp.sum(batch["score"] * sampled), number),
        "divergence": (jnp.sum(batch["divergence"] * sampled), number),
        "ended": (jnp.sum(batch["ended"] * sampled), number),
        "response_length": (tokens, number),
        "entropy": (-jnp.sum(batch["old_log_probs"] * batch["response_mask"]), tokens),
    }
    return jax.lax.stop_gradient(metrics)


def _check(**settings: float) -> None:
    """Check that settings of the loss are in their ranges."""
    for name, value in settings.items():
        if value < 0 or (name == "temperature" and value == 0):
            allowed = "above 0" if name == "temperature" else "0 or more"
            raise ValueError(f"loss.{name}={value} must be {allowed}")
