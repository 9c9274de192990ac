"""An encoder to call, by the names of arguments that Hugging Face has."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from t5x_like.names import hint
from t5x_like.pretrained import arguments
from t5x_like.pretrained.model import ModelOutput, Pretrained


class PretrainedEncoder(Pretrained):
    """An encoder with its head and its parameters."""

    def __call__(  # type: ignore[override]
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        **unknown: Any,
    ) -> ModelOutput:
        """What the head says, also at padding as Hugging Face has it.

        Args:
            input_ids: [B, L].
            attention_mask: [B, L], 0 on padding; None for all ones.
            token_type_ids: [B, L], the segment of each token; None for all 0.
            labels: what the loss is of: tokens, tags or replaced tokens (1) [B, L], where -100
                counts for nothing, classes [B], or numbers [B].

        Raises:
            ValueError: an argument that does not exist, a token that the vocabulary lacks, or
                shapes that do not go together.
        """
        allowed = ["input_ids", "attention_mask", "token_type_ids", "labels"]
        for name in unknown:
            raise ValueError(f"this {self.system} takes no argument {name!r}.{hint(name, allowed)}")
        tokens = self._tokens("input_ids", input_ids)
        batch = arguments.side(
            "encoder", tokens, arguments.check_mask("attention_mask", attention_mask, tokens)
        )
        if token_type_ids is not None:
            batch["encoder_token_types"] = self._token_types(token_type_ids, tokens)
        with self.layout():
            outputs = self._outputs(self.params, batch)
            loss = None if labels is None else _loss(outputs, np.asarray(labels))
        return ModelOutput(**outputs, loss=loss)

    def _token_types(self, types: ArrayLike, tokens: arguments.Tokens) -> arguments.Tokens:
        number = self.config.get("token_types", 0)
        if not number:
            raise ValueError(f"this {self.system} has no segments: leave token_type_ids out")
        checked = arguments.check_tokens("token_type_ids", types, vocab_size=number)
        if checked.shape != tokens.shape:
            raise ValueError(
                f"token_type_ids has shape {list(checked.shape)}, its tokens {list(tokens.shape)}"
            )
        return checked

    @functools.cached_property
    def _outputs(self) -> Callable[..., dict[str, Array]]:
        def outputs(params: PyTree, batch: Any) -> dict[str, Array]:
            return self.module.apply({"params": params}, batch)

        return jax.jit(outputs)


def _loss(outputs: dict[str, Array], labels: np.ndarray) -> Array:
    logits = outputs.get("logits")
    if logits is None:
        raise ValueError(f"labels: this head has {', '.join(outputs)}, and no loss of labels")
    if labels.dtype.kind == "f":
        expected, loss = logits[..., 0].shape, jnp.square(logits[..., 0] - labels)
        counted = np.ones_like(labels, bool)
    elif labels.ndim == 2 and labels.shape == logits.shape:  # of each token a yes or no
        expected, counted = logits.shape, labels != arguments.IGNORED_LABEL
        loss = jax.nn.softplus(jnp.where(labels == 1, -logits, logits))
    else:
        expected, counted = logits.shape[:-1], labels != arguments.IGNORED_LABEL
        places = np.where(counted, labels, 0)[..., None]
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), places, axis=-1)[..., 0]
    if labels.shape != expected:
        raise ValueError(f"labels has shape {list(labels.shape)}, what is said {list(expected)}")
    return jnp.mean(loss, where=counted)
