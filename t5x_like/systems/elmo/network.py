"""ELMo's network: LSTMs with projections, the bidirectional language model, heads, layer mix."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.names import choose
from t5x_like.nn.blocks import Collected
from t5x_like.nn.compute import Batch, Compute, Outputs, make_dropout
from t5x_like.nn.encoder_heads import output_layer
from t5x_like.nn.linear import Initializer
from t5x_like.nn.linear_chain import Chain
from t5x_like.nn.lstm import LSTMState, ProjectedLSTM
from t5x_like.nn.matrix_product import product

# ---- The layers: LSTMs in both directions.


DIRECTIONS = 2  # forward and backward


class StackedLSTM(nn.Module):
    """N layers of LSTMs in both directions: Peters et al. 2018, section 3.4.

    Every layer except the first has a residual connection.

    Attributes:
        layers: N.
        cell, features, cell_clip, projection_clip: see `ProjectedLSTM`.
        compute: its `dropout` is applied to the input of each layer, including the residual.
    """

    layers: int
    cell: int
    features: int | None
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "2 B T D"],
        real: Bool[Array, "2 B T"],
        state: LSTMState | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "N 2 B T P"], LSTMState]:
        """Return the outputs of all layers, in the order of reading, and the state.

        Args:
            x: the inputs of both directions, in the order in which each direction reads.
            real: False on padding.
            state: the state before the first step, [B, N, 2, ...]; None for zeros.
        """
        state = self.first_state(x.shape[1]) if state is None else state
        outputs, states = [], []
        for number in range(self.layers):
            layer = ProjectedLSTM(
                cell=self.cell,
                features=self.features,
                cell_clip=self.cell_clip,
                projection_clip=self.projection_clip,
                compute=self.compute,
                name=f"layer_{number}",
            )
            x = make_dropout(self.compute)(x, deterministic)
            before = jax.tree.map(lambda s, n=number: jnp.moveaxis(s[:, n], 0, 1), state)
            y, after = layer(x, real, before)
            x = x + y if number else y
            outputs.append(x)
            states.append(jax.tree.map(lambda s: jnp.moveaxis(s, 1, 0), after))
        return jnp.stack(outputs), jax.tree.map(lambda *s: jnp.stack(s, axis=1), *states)

    def first_state(self, rows: int) -> LSTMState:
        """Return the state before the first word: zeros [B, N, 2, ...]."""
        shape = (rows, self.layers, DIRECTIONS)
        width = self.features or self.cell
        return LSTMState(jnp.zeros((*shape, self.cell)), jnp.zeros((*shape, width)))


# ---- The mix of a bidirectional language model's layers, whose weights a task learns.


# Slices of the layers: the word vectors, and then the outputs of the LSTM layers.
LAYERS: Mapping[str, slice] = {
    "all": slice(None),
    "words": slice(0, 1),
    "first": slice(1, 2),
    "last": slice(-1, None),
}


class LayerMix(nn.Module):
    """gamma * sum_j softmax(weights)_j h_j: Peters et al. 2018, equation 1.

    The weights start at 0 and gamma at 1. A single layer also has gamma; its softmax weight is 1.

    Attributes:
        kind: one of LAYERS.
        norm: whether to normalize each h_j first, to mean 0 and variance 1 over the features of a
            word. (The paper names layer normalization; the authors' code takes mean and variance
            over all words of a batch, so that a word's vector depends on its batch.)
        dropout: the dropout rate of the sum.
    """

    kind: str = "all"
    norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "N+1 B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B L D"]:
        """Return the weighted sum of the layers; `states` are the word vectors and N layers."""
        chosen = states[LAYERS[self.kind]]
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("layers",))
        weights = jax.nn.softmax(self.param("weights", zeros, (len(chosen),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        if self.norm:
            chosen = jax.nn.standardize(chosen.astype(jnp.float32), axis=-1, epsilon=1e-12)
        mixed = gamma * jnp.einsum("n,nbld->bld", weights, chosen)
        return nn.Dropout(self.dropout)(mixed.astype(states.dtype), deterministic)


def select_mix(kind: str, *, norm: bool, dropout: float) -> Callable[..., nn.Module]:
    """Return the factory of a `LayerMix`.

    Raises:
        ValueError: the kind is unknown.
    """
    choose("model.mix", kind, LAYERS)
    return functools.partial(LayerMix, kind=kind, norm=norm, dropout=dropout)


# ---- Heads: predict the next and the previous word, tags of words, or the class of a text.


class BothDirections(nn.Module):
    """One softmax over V words for both directions: Peters et al. 2018, section 3.1.

    Attributes:
        features: P, the width of the input for one direction.
        dropout: the dropout rate of the input.
    """

    vocab_size: int
    features: int
    dropout: float = 0.0

    def setup(self) -> None:
        init = nn.initializers.normal(self.features**-0.5)
        matrix = nn.with_logical_partitioning(init, ("vocab", "embed"))
        self.kernel = self.param("kernel", matrix, (self.vocab_size, self.features))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        self.bias = self.param("bias", zeros, (self.vocab_size,))
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self, hidden: Float[Array, "B L 2*P"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `forward_logits` of each next word and `backward_logits` of each previous word.

        Both are float32 [B, L, V].
        """
        halves = jnp.split(self.drop(hidden, deterministic), 2, axis=-1)
        forward, backward = (to_vocabulary(half, self.kernel, self.bias) for half in halves)
        return {"forward_logits": forward, "backward_logits": backward}

    def inputs(self, hidden: Float[Array, "2 B T P"], *, deterministic: bool) -> Outputs:
        """Return `hidden`, `kernel` and `bias`, from which a loss computes the logits."""
        hidden = self.drop(hidden, deterministic)
        return {"hidden": hidden, "kernel": self.kernel, "bias": self.bias}


def to_vocabulary(
    x: Float[Array, "*batch P"], kernel: Float[Array, "V P"], bias: Float[Array, " V"]
) -> Float[Array, "*batch V"]:
    """Return float32 logits."""
    rows = product("np,vp->nv", x.reshape(-1, x.shape[-1]), kernel.astype(x.dtype))
    return rows.reshape(*x.shape[:-1], -1) + bias.astype(jnp.float32)


class WordsHead(nn.Module):
    """A head without parameters, which returns the hidden states for other uses."""

    def __call__(self, hidden: Array, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """Return `hidden` [B, L, F], the states of the last layer."""
        return {"hidden": hidden}


class WordTagger(nn.Module):
    """Predict a tag for each word."""

    outputs: int
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, L, outputs]."""
        return {"logits": output_layer(self.outputs, self.kernel_init, "tagger")(hidden)}


class WordSpans(nn.Module):
    """Predict the first and the last word of an answer."""

    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `start_logits` and `end_logits`, float32 [B, L]."""
        logits = output_layer(2, self.kernel_init, "answer")(hidden)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class ChainedWordTagger(WordTagger):
    """Predict the tags of a text together: a conditional random field (section 4, NER)."""

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, L, outputs], and the `chain`, a `linear_chain.Chain`."""
        ends = nn.with_logical_partitioning(nn.initializers.zeros, ("classes",))
        init = nn.with_logical_partitioning(nn.initializers.xavier_uniform(), (None, "classes"))
        shape = self.outputs, self.outputs
        chain = Chain(
            transitions=self.param("transitions", init, shape),
            first=self.param("first_tag", ends, shape[:1]),
            last=self.param("last_tag", ends, shape[:1]),
        )
        return {**super().__call__(hidden, batch, deterministic=deterministic), "chain": chain}


class TextClassifier(nn.Module):
    """Predict the class of a text from the largest value of each feature over its words."""

    outputs: int
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, outputs]; a row of padding is classified as zeros."""
        real = batch["encoder_segment_ids"] > 0
        # A finite number, so that a row of padding has a finite gradient.
        lowest: Any = jnp.finfo(hidden.dtype).min
        pooled = jnp.max(jnp.where(real[..., None], hidden, lowest), axis=1)
        pooled = jnp.where(jnp.any(real, axis=1)[:, None], pooled, 0)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(pooled)}


# ---- A bidirectional language model over characters, and the network of a task on top of it.


class BidirectionalLM(nn.Module):
    """Two language models over the same word vectors: Peters et al. 2018, section 3.1.

    One reads forward, the other backward; they share the word vectors and the softmax layer, but no
    LSTM.

    Attributes:
        make_words: factory of the map from characters to vectors, `CharacterCNN`.
        make_lstm: factory of the layers, `StackedLSTM`.
        make_head: factory of `head(hidden, batch, deterministic=) -> outputs`.
        sides: the sides of a batch that it reads.
        generates: False, since it does not generate text.
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
        """Return the outputs of the head for texts, each a row that begins and ends with a mark.

        Args:
            batch: `encoder_characters` [B, L, K] and `encoder_segment_ids` [B, L], 0 on padding.
            collect: ("hidden_states",) to return the word vectors and the outputs of all layers.

        Returns:
            The outputs; with `collect` also {"lstm": Collected}.
        """
        for name in collect:
            choose("collect", name, {"hidden_states": None})
        states = self.states(batch, deterministic=deterministic)
        outputs = self.read_out(states, batch, deterministic=deterministic)
        return (outputs, {"lstm": Collected(hidden_states=states)}) if collect else outputs

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "N+1 B L 2*P"]:
        """Return h_j of all words: [x; x], and then both directions' outputs of each layer.

        Each row is a separate text: both LSTMs start from zeros, and padding is at the end.
        """
        x, real = self.words(batch["encoder_characters"]), batch["encoder_segment_ids"] > 0
        layers = _read_both_ways(self.lstm, x, real, deterministic=deterministic)
        return jnp.concatenate([jnp.concatenate([x, x], axis=-1)[None], layers])

    def read_out(
        self, states: Float[Array, "N+1 B L 2*P"], batch: Batch, *, deterministic: bool
    ) -> Outputs:
        """Return the outputs of the head, which reads the last layer."""
        return self.head(states[-1], batch, deterministic=deterministic)

    def read_on(
        self, batch: Batch, state: LSTMState | None = None, *, deterministic: bool = True
    ) -> tuple[Outputs, LSTMState]:
        """Continue to read two streams of text, one forward and one backward.

        Args:
            batch: `encoder_characters` and `encoder_backward_characters` [B, T, K], each in the
                order of reading; `encoder_segment_ids` [B, T] are the same for both.
            state: the state after the preceding batch; None at the beginning.

        Returns:
            The inputs of the logits, see `BothDirections.inputs`, and the next state.
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

    def first_state(self, rows: int) -> LSTMState:
        """Return the state before the first word of a stream: zeros."""
        return self.make_lstm(parent=None).first_state(rows)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8, characters: int = 50) -> Batch:
        """Return the fields that `__call__` needs, with characters 0, to shape the parameters."""
        ids = jnp.zeros((batch, length, characters), jnp.int32)
        return {"encoder_characters": ids, "encoder_segment_ids": ids[..., 0] + 1}


PLACES = ("input", "output", "both", "none")


class TaskOverLM(BidirectionalLM, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """A task's biLSTM over a bidirectional language model: Peters et al. 2018, section 3.3.

    For each word k the biLSTM reads [x_k; ELMo_k] and the head reads [h_k; ELMo_k], where x_k is
    the word's vector without its context, h_k the biLSTM's output, and ELMo_k a mix of the language
    model's layers. The mixes of biLSTM and head have separate weights.

    Attributes:
        make_task_lstm: factory of the task's biLSTM, a `StackedLSTM`.
        make_mix: factory of `LayerMix`.
        places: where ELMo_k is included, one of PLACES: the "input" of the biLSTM, its "output"
            (the head's input), "both" or "none".
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
        """Return the outputs of the head, which reads the task's biLSTM."""
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
    """Return the outputs of all layers, both directions concatenated, for separate texts."""
    both, real_both = (jnp.stack([array, jnp.flip(array, axis=1)]) for array in (x, real))
    outputs, _ = lstm(both, real_both, deterministic=deterministic)
    return jnp.concatenate([outputs[:, 0], jnp.flip(outputs[:, 1], axis=2)], axis=-1)
