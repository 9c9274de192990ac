"""The states of a network for a text: outputs, attention, hidden states, experts, logit lens."""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from t5x_like.decoding.generator import power_of_two
from t5x_like.nn import moe
from t5x_like.nn.blocks import Collected
from t5x_like.nn.networks import Decoder, Encoder, EncoderDecoder, Tower
from t5x_like.pretrained import Pretrained

# Rows are padded to the next of three lengths, so that few shapes are compiled.
LENGTHS = (32, 128, 512)
_MOST_CACHED = 4  # texts whose states stay in memory, so that choosing another head is fast


@dataclasses.dataclass(frozen=True)
class States:
    """The states of one text, without padding.

    Attributes:
        logits: the network's `logits`, [T, V] or [T]; None if its head has no logits per token.
        attention: {`encoder`, `decoder` or `cross`: attention weights [N, H, T, S]}.
        hidden: {`encoder` or `decoder`: the input of the first layer and the output of each layer
            [N + 1, T, D]}; {} if the layers carry something else.
        experts: {side: which of E experts compute each token in each of M sparse layers [M, T, E]};
            {} if no tokens are routed.
    """

    logits: Float[np.ndarray, "T ..."] | None
    attention: dict[str, Float[np.ndarray, "N H T S"]]
    hidden: dict[str, Float[np.ndarray, "N+1 T D"]]
    experts: dict[str, Bool[np.ndarray, "M T E"]]


class NetworkStates:
    """Computes the states of texts with one network.

    Attributes:
        most: maximum tokens per side.
        routes: whether tokens are routed to experts.
        pads: whether rows are padded to `LENGTHS`; False if tokens are routed, since padding would
            take up the experts' capacity.
    """

    def __init__(self, pretrained: Pretrained):
        self.pretrained = pretrained
        self.most = min(LENGTHS[-1], pretrained.config.get("positions") or LENGTHS[-1])
        self._cached: collections.OrderedDict[Any, States] = collections.OrderedDict()
        self.pads = False  # until `routes` is known
        self.routes = self._routes()
        self.pads = not self.routes
        self._collect = self._collectable()

    @functools.cached_property
    def has_lens(self) -> bool:
        """Whether the output layer can read the layers: the last must give the logits."""
        kinds = (Decoder, EncoderDecoder, Encoder)
        if "hidden_states" not in self._collect or not isinstance(self.pretrained.module, kinds):
            return False
        states = self.of(*self._example())
        side = self.pretrained.module.sides[-1]
        if side not in states.hidden or states.logits is None or states.logits.ndim != 2:
            return False
        likeliest = np.max(jax.nn.softmax(states.logits), axis=-1)
        last = self.lens(states.hidden[side], top=1)[0][-1, :, 0]
        return bool(np.allclose(last, likeliest, rtol=1e-3))

    def of(self, tokens: Sequence[int], targets: Sequence[int] | None = None) -> States:
        """Return the states of a text, and of what is generated from it.

        Args:
            tokens: the text.
            targets: what the decoder of an encoder-decoder reads; for an encoder that generates in
                the row of its source, the last token of the source and the generated tokens. The
                states are then of the whole row, the logits after each of the targets.

        Raises:
            ValueError: a side has no token, or more than `most`.
        """
        key = (tuple(tokens), None if targets is None else tuple(targets))
        if key not in self._cached:
            self._cached[key] = self._computed(tokens, targets)
            while len(self._cached) > _MOST_CACHED:
                self._cached.popitem(last=False)
        self._cached.move_to_end(key)
        return self._cached[key]

    def check_size(self, size: int) -> None:
        """Raise ValueError if a text has no token, or more than `most`."""
        if not 1 <= size <= self.most:
            raise ValueError(f"a text of {size} tokens: this model is shown 1 to {self.most}")

    def lens(self, hidden: Float[np.ndarray, "N+1 T D"], *, top: int) -> tuple[Any, Any]:
        """Return the most likely tokens when the output layer reads each layer's states.

        This is the logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens"). The last
        layer gives the model's actual prediction.

        Returns:
            Probabilities and token ids, each [N + 1, T, top], the most likely first.
        """
        length = self._padded(hidden.shape[1])
        padded = np.pad(hidden, [(0, 0), (0, length - hidden.shape[1]), (0, 0)])
        with self.pretrained.layout():
            outputs = self._lens(self.pretrained.params, padded, top=top)
        probabilities, tokens = (np.asarray(array)[:, : hidden.shape[1]] for array in outputs)
        return probabilities, tokens

    def _computed(self, tokens: Sequence[int], targets: Sequence[int] | None) -> States:
        batch = self._batch(tokens, targets)
        with self.pretrained.layout():
            outputs, collected, assignment = self._run(self.pretrained.params, batch)
        in_row = targets is not None and len(self.pretrained.module.sides) == 1
        generated = (targets or [0])[1:]
        row = [*tokens, *generated] if in_row else tokens
        sizes = {"encoder": len(row), "decoder": len(tokens if targets is None else targets)}
        attention, hidden = {}, {}
        for tower in (name for name in sizes if name in collected):
            size, layers = sizes[tower], collected[tower]
            if layers.hidden_states is not None:
                hidden[tower] = np.asarray(layers.hidden_states, np.float32)[:, 0, :size]
            if layers.attention_scores is not None:
                attention[tower] = _weights(layers.attention_scores)[:, :, :size, :size]
            if layers.cross_attention_scores is not None:
                weights = _weights(layers.cross_attention_scores)
                attention["cross"] = weights[:, :, :size, : sizes["encoder"]]
        logits: Any = outputs if not isinstance(outputs, Mapping) else outputs.get("logits")
        size = sizes[self.pretrained.module.sides[-1]]
        if in_row:
            logits = self._logits_in_row(tokens, generated)
        elif logits is not None and logits.shape[1:2] == (self._padded(size),):
            logits = np.asarray(logits, np.float32)[0, :size]
        else:
            logits = None
        experts = {
            # One row, one group.
            side: np.asarray(moe.collect({side: assignment[side]})["computed_by"])[:, 0]
            for side in self.pretrained.module.sides
            if side in assignment
        }
        return States(logits, attention, hidden, experts)

    def _batch(self, tokens: Sequence[int], targets: Sequence[int] | None) -> dict[str, np.ndarray]:
        sides = self.pretrained.module.sides
        if targets is not None and len(sides) == 1:
            full_row = [*tokens, *targets[1:]]
            segments = self.pretrained.module.segments_of(source=len(tokens), length=len(full_row))
            segments = np.pad(
                segments, (0, self._padded(len(full_row)) - len(full_row)), mode="edge"
            )
            return {**self._batch(full_row, None), "encoder_token_types": segments[None]}
        rows = [tokens] if targets is None else [tokens, targets]
        batch = {}
        for side, row in zip(sides, rows, strict=True):
            padded = np.zeros((2, self._padded(len(row))), np.int32)
            padded[:, : len(row)] = row, np.ones(len(row))
            batch[f"{side}_input_tokens"], batch[f"{side}_segment_ids"] = padded[:, None]
        return batch

    def _padded(self, size: int) -> int:
        self.check_size(size)
        if not self.pads:
            return size
        return min(self.most, next(length for length in LENGTHS if size <= length))

    def _example(self) -> tuple[list[int], list[int] | None]:
        """Return example tokens for each side of the network."""
        return [1, 2, 3], [1, 2, 3] if len(self.pretrained.module.sides) == 2 else None

    def _routes(self) -> bool:
        """Return whether tokens are routed to experts."""
        run = functools.partial(self.pretrained.module.apply, mutable=["assignment"])
        batch = self._batch(*self._example())
        _, written = jax.eval_shape(run, {"params": self.pretrained.params}, batch)
        return bool(jax.tree.leaves(written))

    def _collectable(self) -> tuple[str, ...]:
        """Return the kinds of states that the network can collect, of its layers and scores."""
        module, params = self.pretrained.module, self.pretrained.params
        batch = self._batch(*self._example())
        collectable = []
        for name in ("hidden_states", "attention_scores"):
            run = functools.partial(module.apply, collect=(name,))
            try:
                _, collected = jax.eval_shape(run, {"params": params}, batch)
            except (TypeError, ValueError):
                continue
            states = [tower.hidden_states for tower in collected.values()]
            if name == "attention_scores" or all(
                isinstance(x, jax.ShapeDtypeStruct) for x in states
            ):
                collectable.append(name)
        return tuple(collectable)

    @functools.cached_property
    def _run(self) -> Any:
        apply = functools.partial(self.pretrained.module.apply, mutable=["assignment"])

        def run(params: PyTree, batch: Any) -> tuple[Any, dict[str, Collected], PyTree]:
            variables = {"params": params}
            if self._collect:
                (outputs, collected), sown = apply(variables, batch, collect=self._collect)
            else:
                (outputs, sown), collected = apply(variables, batch), {}
            return outputs, collected, sown.get("assignment", {})

        return jax.jit(run)

    def _logits_in_row(
        self, source: Sequence[int], generated: Sequence[int]
    ) -> Float[np.ndarray, "T V"]:
        """Return the logits of the tokens generated in the row of a source, and of the next."""
        before, after = len(source), len(generated)
        before = min(power_of_two(before), self.most - after)
        tokens, mask = np.zeros([2, 1, before], np.int32)
        tokens[0, before - len(source) :], mask[0, before - len(source) :] = source, 1
        following = np.zeros(min(power_of_two(after), self.most - before), np.int32)
        following[:after] = generated
        with self.pretrained.layout():
            logits = self._step(self.pretrained.params, tokens, mask > 0, following)
        return np.asarray(logits, np.float32)[: after + 1]

    @functools.cached_property
    def _step(self) -> Any:
        def logits(params: PyTree, source: Array, mask: Array, following: Array) -> Array:
            apply = functools.partial(self.pretrained.module.apply, {"params": params})

            def step(cache: Any, token: Array) -> tuple[Any, Array]:
                logits, cache = apply(token[None, None], cache, method="extend")
                return cache, logits[0]

            slots = source.shape[1] + len(following)
            first, cache = apply(source, decoder_mask=mask, cache_length=slots, method="prefill")
            _, others = jax.lax.scan(step, cache, following)
            return jnp.concatenate([first, others[:, 0]])

        return jax.jit(logits)

    @functools.cached_property
    def _lens(self) -> Any:
        def lens(params: PyTree, hidden: Array, *, top: int) -> tuple[Array, Array]:
            def of_layer(states: Array) -> tuple[Array, Array]:
                logits = self.pretrained.module.apply({"params": params}, states, method=_output)
                return jax.lax.top_k(jax.nn.softmax(logits[0]), top)

            # One layer after the other, since the logits of all would not fit into memory.
            return jax.lax.map(of_layer, hidden[:, None])

        return jax.jit(lens, static_argnames="top")


def _output(module: nn.Module, states: Float[Array, "1 T D"]) -> Float[Array, "1 T V"]:
    """Return the logits of the output layer for the states of any layer."""
    if not isinstance(module, Encoder):
        states = _finished(module.decoder, states)
        return module.lm_head.product(states, module.token_embedder.embedding).logits()
    zeros = jnp.zeros(states.shape[:2], jnp.int32)
    batch = {"encoder_input_tokens": zeros, "encoder_segment_ids": zeros + 1}
    return module.head(_finished(module.encoder, states), module.table(), batch)["logits"]


def _finished(tower: Tower, states: Array) -> Array:
    """Apply what follows the last layer of the tower: its exit and final norm."""
    states = states if tower.make_exit is None else tower.exit(states)
    return states if tower.make_norm is None else tower.final_norm(states)


def _weights(scores: Float[Array, "N 1 H T S"]) -> Float[np.ndarray, "N H T S"]:
    """Return the softmax of the scores of one row."""
    return np.asarray(jax.nn.softmax(scores[:, 0], axis=-1), np.float32)
