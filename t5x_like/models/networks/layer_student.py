"""A student encoder that is compared with a teacher layer by layer."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like.models.blocks.shared import Collected
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs

_ALL = ("hidden_states", "attention_scores")


class LayerStudent(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Jiao et al. 2019, section 3.1: a student of M layers and its frozen `teacher`.

    `__call__` runs the student, `compare` both.

    Attributes:
        make_teacher: factory of an `Encoder`.
        make_hidden_map, make_embedding_map: factories of W_h and W_e, the linear maps from the
            student's width to the teacher's; they are used only in `compare`.
        teacher_layers: the layer of the teacher, from 1, that each layer of the student learns
            from: g(1), ..., g(M).
    """

    make_teacher: Callable[..., nn.Module]
    make_hidden_map: Callable[..., nn.Module]
    make_embedding_map: Callable[..., nn.Module]
    teacher_layers: tuple[int, ...]

    def setup(self) -> None:
        super().setup()
        self.teacher = self.make_teacher()
        self.hidden_map = self.make_hidden_map()
        self.embedding_map = self.make_embedding_map()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The student's outputs, as `Encoder` returns them."""
        if self.is_initializing():  # parameters are made by calling what has them
            self.teacher(batch)
            embedded = self.embed(batch)
            self.hidden_map(embedded)
            self.embedding_map(embedded)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def compare(
        self, batch: Batch, *, deterministic: bool = True, layers: bool = True
    ) -> tuple[Outputs, Outputs]:
        """The outputs of the student and of the teacher, with those of the compared layers.

        The teacher has no dropout, and gets no gradient.

        Args:
            layers: whether to return, beside the outputs of the heads, the layers': `embeddings`
                [B, L, D], the input of the first layer; `hidden_states` [M, B, L, D], the outputs
                of the compared layers, both in the teacher's width; `attention_scores`
                [M, B, H, L, L], theirs before the softmax.
        """
        own: Any = self  # what a call returns depends on `collect`
        if not layers:
            student = own(batch, deterministic=deterministic)
            return student, jax.lax.stop_gradient(self.teacher(batch))
        every = tuple(range(1, len(self.teacher_layers) + 1))
        student = _with_layers(own(batch, deterministic=deterministic, collect=_ALL), every)
        teacher = _with_layers(self.teacher(batch, collect=_ALL), self.teacher_layers)
        student["embeddings"] = self.embedding_map(student["embeddings"])
        student["hidden_states"] = self.hidden_map(student["hidden_states"])
        return student, jax.lax.stop_gradient(teacher)


def _with_layers(called: Any, layers: tuple[int, ...]) -> Outputs:
    """The outputs, the input of layer 1, and the outputs and scores of layers counted from 1."""
    outputs, collected = called
    found, numbers = collected["encoder"], jnp.array(layers)
    return {
        **outputs,
        "embeddings": found.hidden_states[0],
        "hidden_states": found.hidden_states[numbers],
        "attention_scores": found.attention_scores[numbers - 1],
    }
