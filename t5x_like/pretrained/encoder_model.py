"""A pretrained encoder whose arguments have Hugging Face's names."""

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
    """A pretrained encoder with its head and its parameters."""

    def __call__(  # type: ignore[override]
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        **unknown: Any,
    ) -> ModelOutput:
        """Run the network and its head; outputs at padding match Hugging Face's, too.

        Args:
            input_ids: [B, L].
            attention_mask: [B, L], 0 on padding; None for all ones.
            token_type_ids: [B, L], the segment of each token; None for all 0.
            labels: the targets of the loss: tokens, tags or replaced tokens (1) [B, L], where -100
                is ignored, classes [B], or numbers [B].

        Raises:
            ValueError: an argument does not exist, a token is outside the vocabulary, or shapes
                do not match.
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
            raise ValueError(f"this {self.system} has no segments: omit token_type_ids")
        checked = arguments.check_tokens("token_type_ids", types, vocab_size=number)
        if checked.shape != tokens.shape:
            raise ValueError(
                f"token_type_ids has shape {list(checked.shape)}; input_ids has "
                f"{list(tokens.shape)}"
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
        raise ValueError(
            f"labels: this head outputs {', '.join(outputs)} and no logits, so it has no loss: "
            "omit labels"
        )
    if labels.dtype.kind == "f":
        expected, loss = logits[..., 0].shape, jnp.square(logits[..., 0] - labels)
        counted = np.ones_like(labels, bool)
    elif labels.ndim == 2 and labels.shape == logits.shape:  # one binary logit per token
        expected, counted = logits.shape, labels != arguments.IGNORED_LABEL
        loss = jax.nn.softplus(jnp.where(labels == 1, -logits, logits))
    else:
        expected, counted = logits.shape[:-1], labels != arguments.IGNORED_LABEL
        places = np.where(counted, labels, 0)[..., None]
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), places, axis=-1)[..., 0]
    if labels.shape != expected:
        raise ValueError(f"labels has shape {list(labels.shape)}; it must be {list(expected)}")
    return jnp.mean(loss, where=counted)
