"""A network that writes, with its vocabulary: text in, text out, and how likely a text is.

A language model reads the token that begins a text, then the prompt, and goes on with it. An
encoder-decoder reads the prompt closed by an end token, as do language models that were trained on
pairs (converter prefix_lm); what they write ends with one too.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import ml_collections
import numpy as np

from t5x_like import partitioning
from t5x_like.batches.conversion import GenerativeConverter
from t5x_like.batches.converters import PrefixLM
from t5x_like.decoding.detokenization import continued
from t5x_like.decoding.generation import StreamStep
from t5x_like.experiment import text_data
from t5x_like.experiment.text_data import TextData
from t5x_like.inference.likelihood import Batch, Pair, PromptFormat, Score, Scorer
from t5x_like.pretrained import Pretrained
from t5x_like.vocabularies import Vocabulary

_SHORTEST = 16  # tokens of a row of prompts; longer rows are twice as long, and so on


class TextModel:
    """Score and continue texts in batches of `batch_size`.

    Attributes:
        pretrained, vocabulary: of the texts.
        prompt_format: how the network reads.
        decode: settings of `generate`, by Hugging Face's names, with the vocabulary's end token.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        vocabulary: Vocabulary,
        prompt_format: PromptFormat,
        *,
        batch_size: int,
        decode: Mapping[str, Any],
    ):
        self.pretrained, self.vocabulary, self._batch_size = pretrained, vocabulary, batch_size
        ends = pretrained.generation.eos_token_id
        # A folder with several end tokens knows better than its vocabulary, of which one is an end.
        if vocabulary.eos_id is not None and not isinstance(ends, Sequence):
            ends = vocabulary.eos_id
        ids = {"eos_token_id": ends, "decoder_start_token_id": prompt_format.start}
        self.decode = {**ids, **decode}
        self._ends = np.atleast_1d([] if ends is None else self.decode["eos_token_id"]).tolist()
        if (
            prompt_format.inputs
        ):  # a decoder with an encoder may write more than its targets were long
            prompt_format = dataclasses.replace(
                prompt_format, length=max(prompt_format.length, self.new_tokens)
            )
        self.prompt_format = prompt_format
        self._scorer = Scorer(
            pretrained.module,
            pretrained.params,
            prompt_format,
            batch_size=batch_size,
            put=self._put,
        )

    @property
    def length(self) -> int:
        """Tokens that are read of a prompt, without an encoder with what comes after it."""
        return self.prompt_format.inputs or self.prompt_format.length

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt."""
        return bool(self.prompt_format.inputs)

    @property
    def new_tokens(self) -> int:
        """The most tokens that are generated."""
        return self.pretrained.generation.override(self.decode).new_tokens(prompt=1)[1]

    def tokens(self, text: str, *, end: bool) -> list[int]:
        """The tokens of a text with those that begin it, and with `end` the end token."""
        own = [*self.prompt_format.begin, *self.vocabulary.encode(text)]
        return [*own, self.vocabulary.required_id("eos_id")] if end else own

    def pair(self, prompt: str, continuation: str) -> Pair:
        """The tokens of a prompt and of what comes after it.

        Both are cut into tokens together, so that a continuation's first token is what the model
        would say; a blank at the end of the prompt belongs to it. Where an end token stands between
        them they are cut apart.
        """
        prompt_ends, continuation_ends = self.prompt_format.ends
        if prompt_ends:
            own, after = self.prompt(prompt), self.tokens(continuation.lstrip(), end=False)
        else:
            bare = prompt.rstrip(" ")
            own = self.prompt(bare)
            whole = self.tokens(prompt + continuation, end=False)
            # A prompt whose last word goes on is cut in another way: then its tokens stay.
            joined = whole[: len(own)] == own
            after = whole[len(own) :] if joined else self.tokens(continuation, end=False)
        end = [self.vocabulary.required_id("eos_id")] if continuation_ends else []
        return Pair(own, [*after, *end])

    def prompt(self, text: str) -> list[int]:
        """The tokens of a prompt, without the one that begins it."""
        ends = self.prompt_format.ends[0]
        return self.tokens(text if ends else text.rstrip(" "), end=ends)

    def excess(self, prompt: str, continuation: str | None) -> int:
        """By how many tokens the two are too long; None for what `generate` may write."""
        if continuation is None:
            return self.prompt_format.excess(Pair(self.prompt(prompt), [0] * self.new_tokens))
        return self.prompt_format.excess(self.pair(prompt, continuation))

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The likelihood of continuations of prompts; prompts too long lose their beginning.

        Raises:
            ValueError: a continuation is too long by itself.
        """
        return self.score_tokens([self._without_excess(self.pair(*pair)) for pair in pairs])

    def score_tokens(self, pairs: Sequence[Pair]) -> list[Score]:
        """Like `score`, for tokenized pairs, without truncation."""
        with self._layout():
            return self._scorer(pairs)

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Generate a text after each prompt, see `generate_tokens`."""
        own = [self.prompt(text) for text in prompts]
        written = self.generate_tokens(own)
        return [self.text(new, prompt=one) for one, new in zip(own, written, strict=True)]

    def generate_tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generate the tokens after each prompt's tokens, without the end token.

        Of a prompt that is too long a language model reads the end, and an encoder the beginning.
        With several samples or beams for each prompt, the first.

        Raises:
            ValueError: settings of `decode` that are wrong, or leave no room for a prompt.
        """
        written: list[list[int]] = []
        for first in range(0, len(prompts), self._batch_size):
            some = prompts[first : first + self._batch_size]
            # One number of rows for all batches, so that one compiled program serves them all.
            rows = [*some, *[some[0]] * (self._batch_size - len(some))]
            tokens, mask = self.lay_out(rows)
            out = self.pretrained.generate(tokens, mask, **self.decode)
            new = out[:, 1 if self.encodes else tokens.shape[1] :]
            written += [self.until_end(row) for row in new[:: len(out) // len(rows)][: len(some)]]
        return written

    def score_written(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]]
    ) -> list[Score]:
        """The likelihood of generated tokens after the prompts as they were truncated then."""
        pairs = zip(self._read(prompts), written, strict=True)
        return self.score_tokens([Pair(prompt, tokens) for prompt, tokens in pairs])

    def stream(
        self, prompt: Sequence[int], callback: Callable[[StreamStep], bool | None], *, seed: int = 0
    ) -> None:
        """Generate after one prompt's tokens, and call `callback` with each new one.

        Args:
            callback: see `Pretrained.stream`.
            seed: added to that of `decode`, for another text after the same prompt.

        Raises:
            ValueError: as `generate_tokens`, or beams.
        """
        tokens, mask = self.lay_out([prompt])
        settings = {**self.decode, "seed": self.decode.get("seed", 0) + seed}
        self.pretrained.stream(tokens, mask, callback=callback, **settings)

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        return token in self._ends

    def lay_out(self, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Prompts as [B, S] and their mask: padded on the left, for an encoder on the right.

        Raises:
            ValueError: `decode.max_new_tokens` leaves no room.
        """
        rows = self._read(prompts)
        places = self.length
        if not self.encodes:
            rows = [[self.prompt_format.start, *row] for row in rows]
            places += 1 - self.new_tokens
        width = 1 << (max(max(map(len, rows)), _SHORTEST) - 1).bit_length()
        tokens = np.zeros((len(rows), min(width, places)), np.int32)
        mask = np.zeros_like(tokens)
        for number, row in enumerate(rows):
            own = slice(len(row)) if self.encodes else slice(tokens.shape[1] - len(row), None)
            tokens[number, own], mask[number, own] = row, 1
        return tokens, mask

    def _read(self, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """What is read of prompts: all, if they fit."""
        if self.encodes:
            most, end = self.length, self.vocabulary.required_id("eos_id")
            return [[*row[: most - 1], end] if len(row) > most else row for row in prompts]
        room = self.length - self.new_tokens
        if room < 1:
            raise ValueError(
                f"decode.max_new_tokens={self.new_tokens} leaves no room for a prompt: a row of "
                f"this model has {self.length} tokens"
            )
        return [row[max(0, len(row) - room) :] for row in prompts]

    def until_end(self, tokens: Iterable[int]) -> list[int]:
        """The tokens before the first end token."""
        return list(itertools.takewhile(lambda token: not self.is_end(token), map(int, tokens)))

    def text(self, tokens: Sequence[int], *, prompt: Sequence[int] = ()) -> str:
        """The text of tokens that were written, after a prompt if a language model wrote them."""
        before = () if self.prompt_format.ends[0] else prompt
        size = len(self.prompt_format.begin)
        if tuple(tokens[:size]) == self.prompt_format.begin:
            tokens = tokens[size:]
        return continued(self.vocabulary.decode, tokens, prompt=before)

    def piece(self, token: int) -> str:
        """A token as its vocabulary has it, "\u0120the" with a sign for the blank, or its text."""
        return self.vocabulary.piece(token)

    def shown(self, token: int) -> str:
        """A token's text in quotes, to be looked at; what has none of its own in <brackets>."""
        if self.is_end(token):
            return "<end>"
        text = self.vocabulary.decode([token])
        if not text or "\N{REPLACEMENT CHARACTER}" in text:
            return f"<{self.piece(token) or token}>"
        return json.dumps(text, ensure_ascii=False)

    def _without_excess(self, pair: Pair) -> Pair:
        room = self.prompt_format.inputs or max(
            0, self.prompt_format.length - len(pair.continuation)
        )
        return Pair(pair.prompt[max(0, len(pair.prompt) - room) :], pair.continuation)

    def _layout(self) -> contextlib.AbstractContextManager[None]:
        mesh = self.pretrained.mesh
        return contextlib.nullcontext() if mesh is None else partitioning.layout(mesh)

    def _put(self, batch: Batch) -> Any:
        mesh = self.pretrained.mesh
        if mesh is None:
            return batch
        index, number = partitioning.batch_slice(mesh)
        mine = {name: np.split(rows, number)[index] for name, rows in batch.items()}
        return partitioning.shard_batch(mine, mesh)


def build(
    pretrained: Pretrained, settings: ml_collections.ConfigDict, text: TextData | None = None
) -> TextModel:
    """The text model of a config, whose `data` says how the network was taught to read.

    Raises:
        ValueError: a network that writes no text, a vocabulary that does not exist or is larger
            than the network's, a length that is not set, or a converter of another architecture.
    """
    if not pretrained.module.generates:
        raise ValueError(f"this {pretrained.system} does not generate text")
    text = text or text_data.build(settings)
    vocabulary = text.vocabulary
    if vocabulary.vocab_size > pretrained.config["vocab_size"]:
        raise ValueError(
            f"data.vocabulary={settings.data.vocabulary!r} has {vocabulary.vocab_size} ids, and "
            f"the model {pretrained.config['vocab_size']}"
        )
    return TextModel(
        pretrained,
        vocabulary,
        _prompt_format(pretrained.module, text),
        batch_size=settings.data.batch_size,
        decode=settings.decode.to_dict(),
    )


def _prompt_format(module: nn.Module, text: TextData) -> PromptFormat:
    data, converter = text.config.data, text.converter
    sizes = {name: size or 0 for name, size in data.lengths.items()}
    for name in converter.features:
        if not sizes.get(name):
            raise ValueError(f"data.lengths.{name} is not set: tokens a row, of this model")
    rows = converter.row_lengths(converter.feature_lengths(sizes))
    encodes = module.sides == ("encoder", "decoder")
    suits = encodes == ("encoder" in rows)
    if not suits or not isinstance(converter, GenerativeConverter):
        raise ValueError(
            f"data.converter={data.converter!r} makes batches of {', '.join(rows)}, and the model "
            f"has {'an encoder and a decoder' if encodes else 'a decoder alone'}"
        )
    closed = encodes or isinstance(converter, PrefixLM)
    return PromptFormat(
        length=rows["decoder"],
        inputs=rows.get("encoder", 0),
        start=converter.start,
        sees_prompt=getattr(module, "visibility", "causal") == "prefix",
        ends=(closed, closed),
        begin=(text.vocabulary.required_id("cls_id"),) if text.examples.special_tokens else (),
    )
