"""Pretrained encoders whose arguments have Hugging Face's names."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from t5x_like import systems
from t5x_like.hf.architectures import MULTI, REGRESSION
from t5x_like.names import hint
from t5x_like.pretrained import model
from t5x_like.pretrained.model import ModelOutput, Pretrained
from t5x_like.systems.elmo.character_cnn import CHARACTERS


class PretrainedEncoder(Pretrained):
    """A pretrained encoder with its head and its parameters."""

    def __call__(  # type: ignore[override]
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        output_hidden_states: bool = False,
        **unknown: Any,
    ) -> ModelOutput:
        """Run the network and its head; outputs at padding match Hugging Face's, too.

        Args:
            input_ids: [B, L]; for multiple choice [B, C, L], a row for each choice.
            attention_mask: shaped like input_ids, 0 on padding; None for all ones.
            token_type_ids: shaped like input_ids, the segment of each token; None for all 0.
            labels: the targets of the loss: tokens, tags or whether a token was replaced (1)
                [B, L], with -100 ignored; classes or choices [B]; numbers [B]; or, if each of C
                labels has its own probability (0 or 1) or number, [B, C] (`Labels.problem`).
            output_hidden_states: whether to return the hidden states of all layers.

        Raises:
            ValueError: an argument does not exist, a token is outside the vocabulary, or shapes
                do not match.
        """
        self._refuse(unknown)
        batch = self._batch(input_ids, attention_mask, token_type_ids)
        outputs = self._run(batch, all_layers=output_hidden_states)
        return ModelOutput(**outputs, loss=self._label_loss(outputs, labels))

    def _refuse(self, unknown: Mapping[str, Any]) -> None:
        allowed = list(inspect.signature(self.__call__).parameters)[:-1]
        for name in unknown:
            raise ValueError(f"this {self.system} takes no argument {name!r}.{hint(name, allowed)}")

    def _batch(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None,
        token_type_ids: ArrayLike | None,
    ) -> dict[str, Any]:
        tokens = self._rows("input_ids", input_ids, size=self.config["vocab_size"])
        mask = model.check_mask("attention_mask", attention_mask, tokens)
        batch = model.encoder_side(tokens, mask)
        if token_type_ids is not None:
            batch["encoder_token_types"] = self._token_types(token_type_ids, tokens)
        return batch

    def _run(self, batch: Mapping[str, Any], *, all_layers: bool) -> dict[str, Any]:
        with self.layout():
            return self._outputs(self.params, batch, all_layers=all_layers)

    def _label_loss(self, outputs: Mapping[str, Any], labels: ArrayLike | None) -> Array | None:
        if labels is None:
            return None
        return _loss(outputs, np.asarray(labels), problem=self.head_labels.problem)

    @property
    def _has_choices(self) -> bool:
        """Whether an example has a row for each of its choices."""
        tasks, head = systems.find(self.system).tasks, self.config.get("head")
        return head in list(tasks) and tasks[head].prediction == "encoder_choices"

    def _rows(self, name: str, tokens: ArrayLike, *, size: int) -> model.TokenArray:
        """Check rows of tokens [B, L]; for multiple choice [B, C, L]."""
        shape = ("rows", "choices", "length") if self._has_choices else ("rows", "length")
        return model.check_tokens(name, tokens, vocab_size=size, shape=shape)

    def _token_types(self, types: ArrayLike, tokens: model.TokenArray) -> model.TokenArray:
        number = self.config.get("token_types", 0)
        if not number:
            raise ValueError(f"this {self.system} has no segments: omit token_type_ids")
        checked = self._rows("token_type_ids", types, size=number)
        if checked.shape != tokens.shape:
            raise ValueError(
                f"token_type_ids has shape {list(checked.shape)}; input_ids has "
                f"{list(tokens.shape)}"
            )
        return checked

    @functools.cached_property
    def _outputs(self) -> Callable[..., dict[str, Array]]:
        def outputs(params: PyTree, batch: Any, *, all_layers: bool) -> dict[str, Array]:
            if not all_layers:
                return self.module.apply({"params": params}, batch)
            predictions, layers = self.module.apply(
                {"params": params}, batch, collect=("hidden_states",)
            )
            # BART has two towers; its heads read the decoder, which is last.
            *_, last = layers.values()
            return {**predictions, "hidden_states": last.hidden_states}

        return jax.jit(outputs, static_argnames="all_layers")


class PretrainedWords(PretrainedEncoder):
    """A pretrained network that reads words by their characters."""

    def __call__(  # type: ignore[override]
        self, characters: ArrayLike, *, output_hidden_states: bool = False, **unknown: Any
    ) -> ModelOutput:
        """Run the network and its head.

        Args:
            characters: [batch, words, characters], made by `vocabularies.words.spell_texts`; 0 on
                padding, which is at the end of a text.
            output_hidden_states: whether to return the hidden states of the words and all layers.

        Raises:
            ValueError: an argument does not exist, or `characters` has another shape or other ids.
        """
        for name in unknown:
            raise ValueError(
                f"this {self.system} reads words by their characters, and takes no argument "
                f"{name!r}: spell words with `vocabularies.words.spell_texts`"
            )
        shape = ("texts", "words", "characters")
        ids = model.check_tokens("characters", characters, vocab_size=CHARACTERS, shape=shape)
        real = np.any(ids > 0, axis=-1).astype(np.int32)
        batch = {"encoder_characters": ids, "encoder_segment_ids": real}
        return ModelOutput(**self._run(batch, all_layers=output_hidden_states))


def _loss(outputs: Mapping[str, Array], labels: np.ndarray, *, problem: str) -> Array:
    loss, logits = jnp.zeros(()), outputs.get("logits")
    if logits is None:
        raise ValueError(
            f"labels: this head outputs {', '.join(outputs)} and no logits, so it has no loss: "
            "omit labels"
        )
    # As in transformers, floats for several labels are probabilities unless the folder's
    # problem_type is regression.
    several = labels.ndim == 2 and logits.shape == labels.shape and logits.shape[-1] > 1
    if problem == MULTI or (problem, several, labels.dtype.kind) == ("", True, "f"):
        expected, counted = logits.shape, np.ones_like(labels, bool)
        if labels.shape == expected:
            loss = jax.nn.softplus(logits) - logits * labels
    elif problem == REGRESSION and several:
        expected, counted = logits.shape, np.ones_like(labels, bool)
        loss = jnp.square(logits - labels)
    elif labels.dtype.kind == "f":
        expected, loss = logits[..., 0].shape, jnp.square(logits[..., 0] - labels)
        counted = np.ones_like(labels, bool)
    elif labels.ndim == 2 and labels.shape == logits.shape:  # one binary logit per token
        expected, counted = logits.shape, labels != model.IGNORED_LABEL
        loss = jax.nn.softplus(jnp.where(labels == 1, -logits, logits))
    else:
        expected, counted = logits.shape[:-1], labels != model.IGNORED_LABEL
        indices = np.where(counted, labels, 0)[..., None]
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), indices, axis=-1)[..., 0]
    if labels.shape != expected:
        raise ValueError(f"labels has shape {list(labels.shape)}; it must be {list(expected)}")
    return jnp.mean(loss, where=counted)
