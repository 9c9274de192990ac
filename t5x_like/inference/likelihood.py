"""Log-likelihoods of continuations of prompts, token by token, in batches."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import stop_signal
from t5x_like.batches.conversion import NumpyBatch
from t5x_like.decoding.generator import power_of_two
from t5x_like.nn.moe import undropped
from t5x_like.partitioning import fetch


class TokenPair(NamedTuple):
    """The tokens of a prompt, and the tokens of a continuation to score."""

    prompt: Sequence[int]
    continuation: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a continuation.

    Attributes:
        log_probs: natural log probability of each token, given all before it; float32.
        greedy: whether each token is the most likely, so that greedy decoding generates them.
    """

    log_probs: Float[np.ndarray, " n"]
    greedy: bool

    @property
    def total(self) -> float:
        """The natural log probability of the whole continuation."""
        return float(np.sum(self.log_probs, dtype=np.float64))

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.log_probs)

    @property
    def per_token(self) -> float:
        """The mean log probability of a token; 0 without tokens."""
        return self.total / max(self.tokens, 1)


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """The layout of prompts and continuations in a network's rows.

    Attributes:
        length: maximum tokens of a decoder row: of the continuation, and without an encoder also of
            the prompt before it.
        inputs: maximum tokens of the encoder's row; 0 for a network without an encoder.
        start: the first token that the decoder reads; None for a decoder whose prompts include it,
            so that their first token is not predicted.
        sees_prompt: the tokens of a prompt attend to the whole prompt (a prefix LM).
        ends: (for the prompt, for the continuation) whether an end token follows, as in training.
        begin: tokens that both start with, for an encoder-decoder trained so.
        input_begin, input_end: special tokens before and after an encoder's input, if they are not
            `begin` and the end token: mBART's language codes; [SEP] after a prompt in an encoder's
            row, which loses its end if it is too long.
    """

    length: int
    inputs: int = 0
    start: int | None = 0
    sees_prompt: bool = False
    ends: tuple[bool, bool] = (False, False)
    begin: tuple[int, ...] = ()
    input_begin: tuple[int, ...] = ()
    input_end: tuple[int, ...] = ()

    def excess(self, pair: TokenPair) -> int:
        """Return by how many tokens the prompt or the continuation is too long; 0 if both fit."""
        before, after = len(pair.prompt), len(pair.continuation)
        if self.inputs:
            return max(before - self.inputs, after - self.length, 0)
        return max(sum(self.sizes(pair)) - self.length, 0)

    def sizes(self, pair: TokenPair) -> tuple[int, int]:
        """Return the number of tokens in the decoder's row and in the encoder's row."""
        before, after = len(pair.prompt), len(pair.continuation)
        return (after, before) if self.inputs else (before + after - (self.start is None), 0)

    def check(self, pairs: Sequence[TokenPair]) -> None:
        """Check that all pairs fit into rows.

        Raises:
            ValueError: a pair is longer than a row.
        """
        for pair in pairs:
            if self.excess(pair):
                raise ValueError(
                    f"a prompt of {len(pair.prompt)} tokens and {len(pair.continuation)} after it "
                    f"are more than the {self.inputs or self.length} that the model reads"
                )

    def lay_out(self, pairs: Sequence[TokenPair], *, rows: int) -> NumpyBatch:
        """Pad pairs on the right to one of a few lengths: a batch of [rows, L] int32.

        Raises:
            ValueError: a pair is longer than a row.
        """
        self.check(pairs)
        longest = np.max([self.sizes(pair) for pair in pairs], axis=0).tolist()
        shape = (rows, min(power_of_two(longest[0]), self.length))
        names = ("input_tokens", "target_tokens", "segment_ids", "causal_attention")
        batch = {f"decoder_{name}": np.zeros(shape, np.int32) for name in names}
        if self.inputs:
            wide = (rows, min(power_of_two(longest[1]), self.inputs))
            batch |= {f"encoder_{name}": np.zeros(wide, np.int32) for name in (names[0], names[2])}
        for row, pair in enumerate(pairs):
            size = len(pair.prompt)
            if self.inputs:
                batch["encoder_input_tokens"][row, :size] = pair.prompt
                batch["encoder_segment_ids"][row, :size] = 1
            targets = pair.continuation if self.inputs else [*pair.prompt, *pair.continuation]
            first = self.start
            if first is None:
                first, *targets = targets
                size -= 1
            batch["decoder_input_tokens"][row, : len(targets)] = [first, *targets[:-1]]
            batch["decoder_target_tokens"][row, : len(targets)] = targets
            batch["decoder_segment_ids"][row, : len(targets)] = 1
            batch["decoder_causal_attention"][row, : size + 1] = 1
        if not self.sees_prompt:
            del batch["decoder_causal_attention"]
        return batch


class Scorer:
    """Score pairs in batches of `batch_size` rows.

    Mixture-of-experts layers drop no tokens, as in generation (see `undropped`).

    Args:
        module: `module.apply({"params": params}, batch)` gives logits [B, L, V].
        batch_size: rows of a global batch.
        put: moves a batch to the devices of the parameters.

    Raises:
        ValueError: the experts choose their tokens, so that the network gives texts no probability.
    """

    def __init__(
        self,
        module: nn.Module,
        prompt_format: PromptFormat,
        *,
        batch_size: int,
        put: Callable[[NumpyBatch], Any] = lambda batch: batch,
    ):
        self._prompt_format, self._put, self._rows = prompt_format, put, batch_size
        self._module = undropped(module)
        self._score = jax.jit(self._scores)

    def __call__(self, params: PyTree, pairs: Sequence[TokenPair]) -> list[Score]:
        """Return the score of each pair. Call it on all processes with the same pairs.

        Args:
            params: the module's parameters, sharded over any mesh; call it within the mesh's
                layout.
            pairs: the prompts and continuations.

        Raises:
            ValueError: a pair is longer than a row.
        """
        self._prompt_format.check(pairs)  # now: the longest is scored last, hours later
        # Sort by length, since a batch is as long as its longest row.
        order = sorted(range(len(pairs)), key=lambda n: self._prompt_format.sizes(pairs[n]))
        scores: dict[int, Score] = {}
        for first in range(0, len(order), self._rows):
            batch = order[first : first + self._rows]
            batch_scores = self._of_batch(params, [pairs[n] for n in batch])
            scores |= dict(zip(batch, batch_scores, strict=True))
            stop_signal.between_batches()
        return [scores[n] for n in range(len(pairs))]

    def _scores(self, params: PyTree, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        logits = self._module.apply({"params": params}, batch)
        return score_targets(logits, batch["decoder_target_tokens"])

    def _of_batch(self, params: PyTree, pairs: Sequence[TokenPair]) -> list[Score]:
        batch = self._put(self._prompt_format.lay_out(pairs, rows=self._rows))
        log_probs, likeliest = fetch(self._score(params, batch))
        scores = []
        for row, pair in enumerate(pairs):
            last = self._prompt_format.sizes(pair)[0]
            continuation = slice(last - len(pair.continuation), last)
            scores.append(
                Score(log_probs[row, continuation], bool(np.all(likeliest[row, continuation])))
            )
        return scores


class StepwiseScorer(Scorer):
    """Scores like `Scorer`, with a network whose forward pass does not predict each next token.

    It reads the prompts by `prefill` and the continuations by `extend`, token by token. Rows are
    prompts padded on the left, and continuations padded on the right.
    """

    def _scores(self, params: PyTree, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        def run(*arguments: Any, **named: Any) -> Any:
            return self._module.apply({"params": params}, *arguments, **named)

        def step(read: tuple[Array, Any], token: Array) -> tuple[Any, tuple[Array, Array]]:
            logits, cache = read
            after, cache = run(token[:, None], cache, method="extend")
            return (after[:, 0], cache), score_targets(logits, token)

        prompts, targets = batch["decoder_input_tokens"], batch["decoder_target_tokens"]
        read = run(
            prompts,
            decoder_mask=batch["decoder_mask"],
            cache_length=prompts.shape[1] + targets.shape[1],
            method="prefill",
        )
        _, (log_probs, likeliest) = jax.lax.scan(step, read, targets.T)
        return log_probs.T, likeliest.T

    def _of_batch(self, params: PyTree, pairs: Sequence[TokenPair]) -> list[Score]:
        room, start = self._prompt_format.length + 1, self._prompt_format.start
        lead = [] if start is None else [start]
        prompts = [[*lead, *pair.prompt] for pair in pairs]
        before, after = max(map(len, prompts)), max(len(pair.continuation) for pair in pairs)
        if before + after > room:  # of two pairs: each pair fits
            half = len(pairs) // 2
            return self._of_batch(params, pairs[:half]) + self._of_batch(params, pairs[half:])
        after = min(power_of_two(after), room - before)
        before = min(power_of_two(before), room - after)
        tokens, mask = np.zeros([2, self._rows, before], np.int32)
        mask[len(pairs) :] = 1
        targets = np.zeros([self._rows, after], np.int32)
        for row, (prompt, pair) in enumerate(zip(prompts, pairs, strict=True)):
            tokens[row, before - len(prompt) :], mask[row, before - len(prompt) :] = prompt, 1
            targets[row, : len(pair.continuation)] = pair.continuation
        names = ("decoder_input_tokens", "decoder_mask", "decoder_target_tokens")
        batch = self._put(dict(zip(names, (tokens, mask > 0, targets), strict=True)))
        log_probs, likeliest = fetch(self._score(params, batch))
        sizes = [len(pair.continuation) for pair in pairs]
        return [
            Score(log_probs[row, :size], bool(np.all(likeliest[row, :size])))
            for row, size in enumerate(sizes)
        ]


class MemoryScorer:
    """Score documents with a network that keeps a memory, each row continuing the row before it.

    The network has the methods `first_memory(batch)` and `predict(batch) -> (product of the logits,
    memory)`, where `batch["memory"]` is the memory (`systems/transformer_xl/`). A document's
    first row has an empty memory.

    Args:
        module: the network.
        start: the token read before a document.
        batch_size, put: see `Scorer`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        start: int,
        batch_size: int,
        put: Callable[[NumpyBatch], Any] = lambda batch: batch,
    ):
        self._module, self._start, self._rows, self._put = module, start, batch_size, put
        self._first, self._next = jax.jit(self._of_first), jax.jit(self._scores)

    def __call__(
        self, params: PyTree, documents: Sequence[Sequence[int]], *, length: int
    ) -> list[Float[np.ndarray, " n"]]:
        """Return the natural log probability of each token, given all that the memory reaches.

        Call it on all processes with the same documents, within the layout of the parameters.

        Args:
            documents: their tokens, with the end token if it is to be scored.
            length: tokens of a row.
        """
        order = sorted(range(len(documents)), key=lambda n: len(documents[n]))
        log_probs: dict[int, Float[np.ndarray, " n"]] = {}
        for first in range(0, len(order), self._rows):
            batch = order[first : first + self._rows]
            batch_log_probs = self._of_batch(params, [documents[n] for n in batch], length=length)
            log_probs |= {
                n: batch_log_probs[row, : len(documents[n])] for row, n in enumerate(batch)
            }
        return [log_probs[n] for n in range(len(documents))]

    def _of_batch(
        self, params: PyTree, documents: Sequence[Sequence[int]], *, length: int
    ) -> Float[np.ndarray, "B L"]:
        """Return the log probabilities of documents as rows; 0 after their ends."""
        size = -(-max(map(len, documents)) // length) * length
        inputs, targets, real = np.zeros([3, self._rows, size], np.int32)
        for row, tokens in enumerate(documents):
            inputs[row, : len(tokens)] = [self._start, *tokens[:-1]][: len(tokens)]
            targets[row, : len(tokens)], real[row, : len(tokens)] = tokens, 1
        parts, memory = [], None
        names = ("input_tokens", "target_tokens", "loss_weights")
        for first in range(0, size, length):
            part = (x[:, first : first + length] for x in (inputs, targets, real))
            batch = self._put({f"decoder_{n}": x for n, x in zip(names, part, strict=True)})
            log_probs, memory = (
                self._next(params, batch, memory) if first else self._first(params, batch)
            )
            parts.append(fetch(log_probs))
            stop_signal.between_batches()
        return np.concatenate(parts, axis=1) if parts else np.zeros([self._rows, 0], np.float32)

    def _of_first(self, params: PyTree, batch: Mapping[str, Array]) -> tuple[Array, PyTree]:
        return self._scores(params, batch, self._module.first_memory(batch))

    def _scores(
        self, params: PyTree, batch: Mapping[str, Array], memory: PyTree
    ) -> tuple[Array, PyTree]:
        product, memory = self._module.apply(
            {"params": params}, {**batch, "memory": memory}, method="predict"
        )
        return score_targets(product.logits(), batch["decoder_target_tokens"])[0], memory


def score_targets(
    logits: Float[Array, "*B V"], targets: Int[Array, "*B"]
) -> tuple[Float[Array, "*B"], Bool[Array, "*B"]]:
    """Return each target's natural log probability (float32), and whether it is the most likely."""
    logits = logits.astype(jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    likeliest = jnp.argmax(logits, axis=-1) == targets
    return target_logits - jax.nn.logsumexp(logits, axis=-1), likeliest
