"""A policy that samples several responses to a prompt, and writes the most rewarded response."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from t5x_like import stop_signal
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.inference.text_model import TextModel
from t5x_like.partitioning import fetch
from t5x_like.pretrained import Pretrained
from t5x_like.systems import policy_optimization

# The settings of `decode` that sampling the responses reads.
_READ = (
    *("max_new_tokens", "max_length", "do_sample", "temperature", "seed"),
    *("eos_token_id", "decoder_start_token_id"),
)


class RankedModel(TextModel):
    """A text model that generates the best of several responses (Glaese et al. 2022, section 3).

    Args:
        model: the policy, with its vocabulary and rows; of the settings of sampling in its `decode`
            the temperature and the seed are read.
        whole: the networks of the policy's run.
        number: how many responses to sample to each prompt.

    Raises:
        ValueError: the run has no networks that rank responses, or `decode` has a setting without
            effect, or a temperature of 0.
    """

    def __init__(self, model: TextModel, trained: Pretrained, *, number: int):
        if not hasattr(trained.module, "ranking"):
            raise ValueError(
                f"--best_of={number} ranks responses by the rewards of a run that trained a "
                f"policy with them (instructgpt, sparrow), and this is a {trained.system}"
            )
        for name, value in model.decode.items():
            if name not in _READ and value != getattr(GenerationSettings(), name):
                raise ValueError(f"decode.{name}={value!r} has no effect with --best_of: omit it")
        super().__init__(
            model.pretrained,
            model.vocabulary,
            model.prompt_format,
            batch_size=model.batch_size,
            decode=model.decode,
        )
        self._trained, self._number = trained, number
        self._best = jax.jit(
            functools.partial(best, trained.module, number=number, temperature=self._temperature)
        )

    @property
    def _temperature(self) -> float:
        settings = {**self.decode, "do_sample": True}
        return self.pretrained.generation.override(settings).temperature

    def generate_tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the tokens of the best response to each prompt, without the end token."""
        seed = jax.random.key(self.decode.get("seed", 0))
        params = {**self._trained.params, "policy": self.pretrained.params}
        written: list[list[int]] = []
        for first in range(0, len(prompts), self.batch_size):
            batch_prompts = prompts[first : first + self.batch_size]
            rows = [*batch_prompts, *[batch_prompts[0]] * (self.batch_size - len(batch_prompts))]
            batch = self._prompts(*self.lay_out(rows))
            with self._trained.layout():
                tokens, lengths = fetch(
                    self._best(params, batch, jax.random.fold_in(seed, first))[:2]
                )
            responses = zip(tokens[: len(batch_prompts)], lengths, strict=False)
            written += [self.until_end(row[:size]) for row, size in responses]
            stop_signal.between_batches()
        return written

    def _prompts(self, tokens: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
        """Return the batch that `policy_optimization.sample` reads."""
        batch = {"responses": np.zeros((len(tokens), self.new_tokens), np.int32)}
        if not self.encodes:
            return {**batch, "decoder_input_tokens": tokens, "decoder_segment_ids": mask}
        start = np.full((len(tokens), 1), self.prompt_format.start, np.int32)
        return {
            **batch,
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": mask,
            "decoder_input_tokens": start,
            "decoder_segment_ids": np.ones_like(start),
        }


def best(
    module: Any,
    params: PyTree,
    prompts: dict[str, Array],
    rng: Array,
    *,
    number: int,
    temperature: float,
) -> tuple[Array, Array, Float[Array, "B K"]]:
    """Sample K responses to each of B prompts, and choose the response with the highest rank.

    Args:
        module: an `ActorCritic`.
        prompts: see `policy_optimization.sample`.
        number: K.

    Returns:
        The tokens [B, N] of the chosen responses, their lengths [B], and `ActorCritic.ranking` of
        all responses.
    """
    many = {name: jnp.repeat(x, number, axis=0) for name, x in prompts.items()}
    episodes, _ = policy_optimization.sample(module, params, many, rng, temperature=temperature)
    ranks = module.apply({"params": params}, episodes, method="ranking").reshape(-1, number)
    mask = episodes["response_mask"]
    tokens = episodes["decoder_input_tokens"][:, -mask.shape[1] :]
    chosen = jnp.arange(len(ranks)) * number + jnp.argmax(ranks, axis=1)
    return tokens[chosen], jnp.sum(mask[chosen], axis=1).astype(jnp.int32), ranks
