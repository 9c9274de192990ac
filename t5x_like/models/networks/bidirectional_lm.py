"""A bidirectional language model over characters, and networks of tasks on top of it."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.blocks.projected_lstm import State
from t5x_like.models.blocks.shared import Collected
from t5x_like.models.types import Batch, Outputs
from t5x_like.names import choose


class BidirectionalLM(nn.Module):
    """Two language models over the same vectors of words: Peters et al. 2018, section 3.1.

    One reads forward, one backward; they share the vectors and the softmax, and no LSTM.

    Attributes:
        make_words: factory of the map from characters to vectors, `CharacterCNN`.
        make_lstm: factory of the layers, `StackedLSTM`.
        make_head: factory of `head(hidden, batch, deterministic=) -> outputs`.
        sides: the sides of a batch that it reads.
        generates: it does not.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder",)
    generates: ClassVar[bool] = False

    make_words: Callable[..., nn.Module]
    make_lstm: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]

    def setup(self) -> None:
        self.words, self.lstm, self.head = self.make_words(), self.make_lstm(), self.make_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The outputs of the head for texts, each a row that begins and ends with a mark.

        Args:
            batch: `encoder_characters` [B, L, K] and `encoder_segment_ids` [B, L], 0 on padding.
            collect: ("hidden_states",) for those of the words and all layers.

        Returns:
            The outputs; with `collect` also {"lstm": Collected}.
        """
        for name in collect:
            choose("collect", name, {"hidden_states": None})
        states = self.states(batch, deterministic=deterministic)
        outputs = self.read_out(states, batch, deterministic=deterministic)
        return (outputs, {"lstm": Collected(hidden_states=states)}) if collect else outputs

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "N+1 B L 2*P"]:
        """h_j of all words: [x; x], then of each layer the outputs of both directions.

        A row begins without memory, and padding is at its end.
        """
        x, real = self.words(batch["encoder_characters"]), batch["encoder_segment_ids"] > 0
        layers = _read_both_ways(self.lstm, x, real, deterministic=deterministic)
        return jnp.concatenate([jnp.concatenate([x, x], axis=-1)[None], layers])

    def read_out(
        self, states: Float[Array, "N+1 B L 2*P"], batch: Batch, *, deterministic: bool
    ) -> Outputs:
        """The outputs of the head, which reads the last layer."""
        return self.head(states[-1], batch, deterministic=deterministic)

    def read_on(
        self, batch: Batch, state: State | None = None, *, deterministic: bool = True
    ) -> tuple[Outputs, State]:
        """Read two streams, of texts forward and of texts backward, from where they stopped.

        Args:
            batch: `encoder_characters` and `encoder_backward_characters` [B, T, K], each in the
                order of reading; `encoder_segment_ids` [B, T] of both.
            state: after the batch before; None for the beginning.

        Returns:
            What the head needs for its logits, see `BothDirections.inputs`, and the next state.
        """
        names = ("encoder_characters", "encoder_backward_characters")
        x = self.words(jnp.concatenate([batch[name] for name in names]))
        real = batch["encoder_segment_ids"] > 0
        outputs, state = self.lstm(
            jnp.reshape(x, (2, -1, *x.shape[1:])),
            jnp.stack([real, real]),
            state,
            deterministic=deterministic,
        )
        return self.head.inputs(outputs[-1], deterministic=deterministic), state

    def first_state(self, rows: int) -> State:
        """What it remembers before the first word of a stream: zeros."""
        return self.make_lstm(parent=None).first_state(rows)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8, characters: int = 50) -> Batch:
        """A batch of zeros of the fields that `__call__` needs, to shape the parameters."""
        ids = jnp.zeros((batch, length, characters), jnp.int32)
        return {"encoder_characters": ids, "encoder_segment_ids": ids[..., 0] + 1}


PLACES = ("input", "output", "both", "none")


class TaskOverLM(BidirectionalLM, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """A task's own biLSTM over a bidirectional language model: Peters et al. 2018, section 3.3.

    It reads [x_k; ELMo_k] for each word k, and the head [h_k; ELMo_k]: with x_k the vector of the
    word without its context, h_k the biLSTM's output, and ELMo_k a mix of the language model's
    layers, of its own weights at each of the two places.

    Attributes:
        make_task_lstm: factory of the task's biLSTM, a `StackedLSTM`.
        make_mix: factory of `LayerMix`.
        places: where ELMo_k is included, one of PLACES.
    """

    make_task_lstm: Callable[..., nn.Module]
    make_mix: Callable[..., nn.Module]
    places: str = "input"

    def setup(self) -> None:
        super().setup()
        self.task_lstm = self.make_task_lstm()
        if self.places in ("input", "both"):
            self.mix_input = self.make_mix()
        if self.places in ("output", "both"):
            self.mix_output = self.make_mix()

    def read_out(
        self, states: Float[Array, "N+1 B L 2*P"], batch: Batch, *, deterministic: bool
    ) -> Outputs:
        """The outputs of the head, which reads the task's biLSTM."""
        x = jnp.split(states[0], 2, axis=-1)[0]
        if self.places in ("input", "both"):
            mixed = self.mix_input(states, deterministic=deterministic)
            x = jnp.concatenate([x, mixed], axis=-1)
        real = batch["encoder_segment_ids"] > 0
        hidden = _read_both_ways(self.task_lstm, x, real, deterministic=deterministic)[-1]
        if self.places in ("output", "both"):
            mixed = self.mix_output(states, deterministic=deterministic)
            hidden = jnp.concatenate([hidden, mixed], axis=-1)
        return self.head(hidden, batch, deterministic=deterministic)


def _read_both_ways(
    lstm: nn.Module, x: Float[Array, "B L D"], real: Bool[Array, "B L"], *, deterministic: bool
) -> Float[Array, "N B L 2*P"]:
    """The outputs of all layers for texts without anything before or after them."""
    both, real_both = (jnp.stack([one, jnp.flip(one, axis=1)]) for one in (x, real))
    outputs, _ = lstm(both, real_both, deterministic=deterministic)
    return jnp.concatenate([outputs[:, 0], jnp.flip(outputs[:, 1], axis=2)], axis=-1)
