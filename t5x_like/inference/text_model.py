"""A generative model with its vocabulary: generate text from text, and score texts.

A language model reads a start token and the prompt, and generates the continuation. An
encoder-decoder, or a language model trained on pairs (converter prefix_lm), reads the prompt and an
end token (no end token with `end_inputs` False of text_to_text), and generates a text with an end
token. An encoder that generates (UniLM) reads [CLS], the prompt and [SEP], and generates, in the
same row, a text that ends with [SEP].
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Float

from t5x_like import stop_signal
from t5x_like.batches.conversion import Converter, GenerativeConverter
from t5x_like.batches.converters import EncoderConverter, EncoderDecoderConverter, PrefixLM
from t5x_like.batches.prompt_rows import (
    DecoderComparisons,
    DecoderPrompts,
    EncoderDecoderComparisons,
)
from t5x_like.decoding.detokenization import continued
from t5x_like.decoding.generation import StreamStep
from t5x_like.decoding.generator import power_of_two
from t5x_like.decoding.settings import OF_SAMPLING
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.experiment.run import Part
from t5x_like.inference.likelihood import (
    MemoryScorer,
    PromptFormat,
    Score,
    Scorer,
    StepwiseScorer,
    TokenPair,
)
from t5x_like.pretrained import Pretrained
from t5x_like.vocabularies import Vocabulary, check_special_tokens

_MOST = 100  # new tokens, if neither a config nor the model's folder limits them


class TextModel:
    """Score and continue texts in batches of `batch_size`.

    Attributes:
        pretrained, vocabulary: the model and its vocabulary.
        prompt_format: the lengths and special tokens of the model's input rows.
        decode: settings of `generate`, with Hugging Face's names, including the end token.
        ends: ids of the tokens that end a text; [] without an end token.
        marks: ids of the tokens that begin or pad a text; detokenized texts leave them out.
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
        self.pretrained, self.vocabulary, self.batch_size = pretrained, vocabulary, batch_size
        ends = pretrained.generation.eos_token_id
        # A list of several end tokens takes precedence over the vocabulary's single one.
        if vocabulary.eos_id is not None and not isinstance(ends, Sequence):
            ends = vocabulary.eos_id
        ids = {"eos_token_id": ends, "decoder_start_token_id": prompt_format.start}
        self.decode = {**ids, **decode}
        begins = (vocabulary.bos_id, pretrained.generation.forced_bos_token_id)
        self.marks = frozenset({*begins, vocabulary.padding_id} - {None})
        ends = self.decode["eos_token_id"]
        self.ends = np.atleast_1d([] if ends is None else ends).tolist()
        if prompt_format.inputs:  # it may generate more tokens than its training targets had
            prompt_format = dataclasses.replace(
                prompt_format, length=max(prompt_format.length, self.new_tokens)
            )
        self.prompt_format = prompt_format
        score = Scorer if "decoder" in pretrained.module.sides else StepwiseScorer
        self._scorer = score(
            pretrained.module,
            prompt_format,
            batch_size=batch_size,
            put=pretrained.put,
        )

    def without_start(self, **decode: Any) -> "TextModel":
        """Return a copy of the model for prompts whose tokens already include the start token.

        Args:
            decode: settings of `generate` that replace the model's.
        """
        prompt_format = self.prompt_format
        if not self.encodes:
            prompt_format = dataclasses.replace(prompt_format, start=None)
        return self._copy(prompt_format, {**self.decode, **decode})

    def greedy(self) -> "TextModel":
        """Return a copy of the model that generates the likeliest tokens instead of sampling."""
        decode = {name: value for name, value in self.decode.items() if name not in OF_SAMPLING}
        return self._copy(self.prompt_format, {**decode, "do_sample": False})

    def generating(self, *, batch_size: int, **decode: Any) -> "TextModel":
        """Return a copy of the model with other batches and settings of `generate`."""
        return self._copy(self.prompt_format, {**self.decode, **decode}, batch_size=batch_size)

    def _copy(
        self,
        prompt_format: PromptFormat,
        decode: Mapping[str, Any],
        *,
        batch_size: int = 0,
        kind: "type[TextModel] | None" = None,
    ) -> "TextModel":
        return (kind or type(self))(
            self.pretrained,
            self.vocabulary,
            prompt_format,
            batch_size=batch_size or self.batch_size,
            decode=decode,
        )

    def dry(self) -> "TextModel":
        """Return a copy of the model that computes nothing, see `DryTextModel`."""
        return self._copy(self.prompt_format, self.decode, kind=DryTextModel)

    @property
    def samples(self) -> bool:
        """Whether it samples the tokens that it generates."""
        return self.pretrained.generation.override(self.decode).do_sample

    @property
    def length(self) -> int:
        """The maximum tokens of a prompt; without an encoder, of prompt and continuation."""
        return self.prompt_format.inputs or self.prompt_format.length

    @property
    def room(self) -> int:
        """The maximum tokens of a prompt that leave room for `new_tokens`."""
        return self.length if self.encodes else self.length - self.new_tokens

    @property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt."""
        return bool(self.prompt_format.inputs)

    @property
    def answers(self) -> bool:
        """Whether a prompt is a text of its own, which an encoder reads, and not a beginning.

        If it is too long it loses its end, as in training.
        """
        return self.encodes or bool(self.prompt_format.input_end)

    @property
    def new_tokens(self) -> int:
        """The maximum number of generated tokens."""
        return self.pretrained.generation.override(self.decode).new_tokens(prompt=1)[1]

    def tokens(self, text: str, *, end: bool) -> list[int]:
        """Tokenize a text, with the special tokens before it and, if `end`, after it."""
        tokens, begin = self.vocabulary.encode(text), self.prompt_format.begin
        if end:
            return [*(self.prompt_format.input_begin or begin), *tokens, *self._end]
        return [*begin, *tokens]

    @property
    def _end(self) -> tuple[int, ...]:
        """The special tokens after an input."""
        return self.prompt_format.input_end or (self.vocabulary.required_id("eos_id"),)

    def pair(self, prompt: str, continuation: str) -> TokenPair:
        """Tokenize a prompt and its continuation.

        Both are tokenized together (`Vocabulary.encode_continued`), unless an end token separates
        the two.
        """
        prompt_ends, continuation_ends = self.prompt_format.ends
        if prompt_ends:
            text = self.vocabulary.targets.encode(continuation.lstrip())
            before, after = self.prompt(prompt), [*self.prompt_format.begin, *text]
        else:
            text, after = self.vocabulary.encode_continued(prompt, continuation)
            before = [*self.prompt_format.begin, *text]
        end = [self.vocabulary.required_id("eos_id")] if continuation_ends else []
        return TokenPair(before, [*after, *end])

    def prompt(self, text: str) -> list[int]:
        """Tokenize a prompt, without the start token."""
        ends = self.prompt_format.ends[0]
        return self.tokens(text if ends else text.rstrip(" "), end=ends)

    def excess(self, prompt: str, continuation: str | None) -> int:
        """Return the number of tokens too many; a continuation of None has `new_tokens` tokens."""
        if continuation is None:
            return self.prompt_format.excess(TokenPair(self.prompt(prompt), [0] * self.new_tokens))
        return self.prompt_format.excess(self.pair(prompt, continuation))

    def cut(self, prompt: Sequence[int]) -> int:
        """Return the number of tokens by which `generate_tokens` truncates a prompt."""
        return max(0, len(prompt) - self.room)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Score continuations of prompts; prompts that are too long are truncated on the left.

        Raises:
            ValueError: a continuation is too long even without its prompt.
        """
        return self.score_tokens([self._without_excess(self.pair(*pair)) for pair in pairs])

    def score_tokens(self, pairs: Sequence[TokenPair]) -> list[Score]:
        """Like `score`, for tokenized pairs, without truncation."""
        with self.pretrained.layout():
            return self._scorer(self.pretrained.params, pairs)

    @property
    def has_memory(self) -> bool:
        """Whether the network keeps a memory of the rows before a row, see `MemoryScorer`."""
        return bool(getattr(self.pretrained.module, "memory", 0))

    def score_documents(
        self, documents: Sequence[Sequence[int]], *, length: int
    ) -> list[Float[np.ndarray, " n"]]:
        """Return the log probabilities of the tokens of documents, read with a memory.

        Args:
            documents: their tokens, without the start token.
            length: tokens of a row.
        """
        with self.pretrained.layout():
            return self._memory_scorer(self.pretrained.params, documents, length=length)

    @functools.cached_property
    def _memory_scorer(self) -> MemoryScorer:
        """Cached, since its programs are compiled once for each instance."""
        start = self.prompt_format.start
        assert start is not None  # every config's converter has a start token
        return MemoryScorer(
            self.pretrained.module,
            start=start,
            batch_size=self.batch_size,
            put=self.pretrained.put,
        )

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Generate a text after each prompt, see `generate_tokens`."""
        tokens = [self.prompt(text) for text in prompts]
        written = self.generate_tokens(tokens)
        return [self.text(new, prompt=prompt) for prompt, new in zip(tokens, written, strict=True)]

    def generate_tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generate the tokens after each prompt's tokens, without the end token.

        A prompt that is too long is truncated: for a language model on the left, for an encoder on
        the right. If there are several samples or beams per prompt, the first is returned. Equal
        prompts get different samples: a batch adds the index of its first prompt to the seed.

        Raises:
            ValueError: `decode` has an invalid setting, or leaves no room for a prompt.
        """
        written: list[list[int]] = []
        for first in range(0, len(prompts), self.batch_size):
            batch = prompts[first : first + self.batch_size]
            # All batches have the same number of rows, so that they share a compiled program.
            rows = [*batch, *[batch[0]] * (self.batch_size - len(batch))]
            tokens, mask = self.lay_out(rows)
            # Padding depends on a batch's other rows, so `no_repeat_ngram_size` must ignore it.
            settings = self._seeded(first)
            out = self.pretrained.generate(tokens, mask, padding_counts=False, **settings)
            new = out[:, 1 if self.encodes else tokens.shape[1] :]
            written += [self.until_end(row) for row in new[:: len(out) // len(rows)][: len(batch)]]
            stop_signal.between_batches()
        return written

    def score_written(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]]
    ) -> list[Score]:
        """Score generated tokens after their prompts, truncated as by `generate_tokens`."""
        pairs = zip(self._read(prompts), written, strict=True)
        return self.score_tokens([TokenPair(prompt, tokens) for prompt, tokens in pairs])

    def stream(
        self, prompt: Sequence[int], callback: Callable[[StreamStep], bool | None], *, seed: int = 0
    ) -> None:
        """Generate after one prompt's tokens, and call `callback` with each new token.

        Args:
            prompt: the tokens of the prompt.
            callback: see `Pretrained.stream`.
            seed: added to the seed of `decode`, for another text after the same prompt.

        Raises:
            ValueError: `decode` asks for beams; see also `generate_tokens`.
        """
        tokens, mask = self.lay_out([prompt])
        settings = self._seeded(seed)
        self.pretrained.stream(tokens, mask, callback=callback, padding_counts=False, **settings)

    def _seeded(self, seed: int) -> dict[str, Any]:
        """Return the settings of generation with a number added to their seed."""
        return {**self.decode, "seed": self.decode.get("seed", 0) + seed}

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a text."""
        return token in self.ends

    def lay_out(self, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Pad prompts to [B, L] on the left, for an encoder on the right; also return the mask.

        Raises:
            ValueError: `decode.max_new_tokens` leaves no room for a prompt.
        """
        rows = self._read(prompts)
        room = self.length
        if not self.encodes:
            start = self.prompt_format.start
            rows = rows if start is None else [[start, *row] for row in rows]
            room += (start is not None) - self.new_tokens
        width = power_of_two(max(map(len, rows)))
        tokens = np.zeros((len(rows), min(width, room)), np.int32)
        mask = np.zeros_like(tokens)
        for number, row in enumerate(rows):
            columns = slice(len(row)) if self.encodes else slice(tokens.shape[1] - len(row), None)
            tokens[number, columns], mask[number, columns] = row, 1
        return tokens, mask

    def _read(self, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Truncate the prompts that are too long."""
        self.check_room()
        room = self.room
        if self.answers:
            end = self._end
            return [[*row[: room - len(end)], *end] if len(row) > room else row for row in prompts]
        return [row[max(0, len(row) - room) :] for row in prompts]

    def check_room(self) -> None:
        """Check that a language model's row has room for a prompt before the new tokens.

        Raises:
            ValueError: it has none.
        """
        least = 1 + len(self.prompt_format.input_end)
        if not self.encodes and self.room < least:
            raise ValueError(
                f"decode.max_new_tokens={self.new_tokens} leaves no room for a prompt: a row of "
                f"this model has {self.length} tokens, so at most {self.length - least} allowed"
            )

    def until_end(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens before the first end token."""
        return list(itertools.takewhile(lambda token: not self.is_end(token), map(int, tokens)))

    def text(self, tokens: Sequence[int], *, prompt: Sequence[int] = ()) -> str:
        """Detokenize generated tokens, which for a language model continue the prompt's text.

        `marks`, such as a forced <s>, are left out.
        """
        before = () if self.prompt_format.ends[0] else prompt
        size = len(self.prompt_format.begin)
        if tuple(tokens[:size]) == self.prompt_format.begin:
            tokens = tokens[size:]
        tokens = [token for token in tokens if token not in self.marks]
        return continued(self.vocabulary.decode, tokens, prompt=before)

    def piece(self, token: int) -> str:
        """Return a token's piece in the vocabulary, with its marker for a space, as "\u0120the"."""
        return self.vocabulary.piece(token)

    def shown(self, token: int) -> str:
        """Return a token's text in quotes for display, or its piece in <brackets> if unreadable."""
        if self.is_end(token):
            return "<end>"
        text = self.vocabulary.decode([token])
        if not text or "\N{REPLACEMENT CHARACTER}" in text:
            return f"<{self.piece(token) or token}>"
        return json.dumps(text, ensure_ascii=False)

    def _without_excess(self, pair: TokenPair) -> TokenPair:
        room = self.prompt_format.inputs or max(
            0, self.prompt_format.length - len(pair.continuation)
        )
        return TokenPair(pair.prompt[max(0, len(pair.prompt) - room) :], pair.continuation)


class DryTextModel(TextModel):
    """A model for a dry run, which checks prompts and settings without parameters.

    It refuses what a `TextModel` refuses. Its scores are 0, and its texts are empty.
    """

    def score_tokens(self, pairs: Sequence[TokenPair]) -> list[Score]:
        """See `TextModel`."""
        self.prompt_format.check(pairs)
        return [Score(np.zeros(len(pair.continuation), np.float32), False) for pair in pairs]

    def score_documents(
        self, documents: Sequence[Sequence[int]], *, length: int
    ) -> list[Float[np.ndarray, " n"]]:
        """See `TextModel`."""
        return [np.zeros(len(tokens), np.float32) for tokens in documents]

    def generate_tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """See `TextModel`."""
        if prompts:
            self.pretrained.checked_prompts(*self.lay_out(prompts), self._seeded(0))
        return [[] for _ in prompts]


def build(pretrained: Pretrained, part: Part) -> TextModel:
    """Build the text model of a task, whose `data` settings define the vocabulary and the rows.

    Raises:
        ValueError: the network does not generate text, the vocabulary does not exist or is larger
            than the network's, a length is not set, or the converter is for another architecture.
    """
    if not pretrained.module.generates:
        raise ValueError(f"this {pretrained.system} does not generate text")
    text = part.text
    vocabulary = text.vocabulary
    if vocabulary.vocab_size > pretrained.config["vocab_size"]:
        raise ValueError(
            f"data.vocabulary={part.data.vocabulary!r} has {vocabulary.vocab_size} ids, more "
            f"than the {pretrained.config['vocab_size']} of the model: name the model's vocabulary"
        )
    prompt_format, decode = _prompt_format(pretrained.module, text), dict(part.decode)
    if pretrained.from_folder:
        if pretrained.generation.eos_token_id is not None:
            decode = {"eos_token_id": pretrained.generation.eos_token_id, **decode}
        prompt_format = _of_folder(prompt_format, pretrained, vocabulary)
        if "max_length" not in decode:
            decode = {**_limit(prompt_format, pretrained), **decode}
    model = TextModel(
        pretrained,
        vocabulary,
        prompt_format,
        batch_size=part.data.batch_size,
        decode=decode,
    )
    _check_positions(model)
    return model


def _of_folder(
    prompt_format: PromptFormat, pretrained: Pretrained, vocabulary: Vocabulary
) -> PromptFormat:
    """Return the format with the special tokens of a Hugging Face encoder-decoder's folder."""
    if not prompt_format.inputs:
        return prompt_format
    around = (vocabulary.prefix_ids, vocabulary.suffix_ids) if prompt_format.ends[0] else ((), ())
    return dataclasses.replace(
        prompt_format,
        start=pretrained.generation.decoder_start_token_id,
        input_begin=around[0],
        input_end=around[1],
    )


def _limit(prompt_format: PromptFormat, pretrained: Pretrained) -> dict[str, int]:
    """Return a limit on new tokens if a Hugging Face folder has none.

    A language model's `max_length` does not count: it includes the prompt, and is usually the
    number of positions.
    """
    limits, encodes = pretrained.generation, bool(prompt_format.inputs)
    if limits.max_new_tokens or (encodes and limits.max_length):
        return {}
    room = pretrained.longest_rows.get("decoder", _MOST) if encodes else prompt_format.length // 2
    return {"max_new_tokens": max(1, min(_MOST, room))}


def _check_positions(model: TextModel) -> None:
    """Check that the network has enough positions for prompts and generated texts.

    Raises:
        ValueError: a row has more tokens than the network has positions.
    """
    longest, sizes = model.pretrained.longest_rows, model.prompt_format
    rows = {"decoder": sizes.length, "encoder": sizes.inputs or sizes.length + 1}  # with [CLS]
    for side, most in longest.items():
        if rows[side] > most:
            raise ValueError(
                f"rows of {rows[side]} tokens, by data.lengths and decode.max_new_tokens="
                f"{model.new_tokens}, are more than the {most} positions of the model's {side} "
                f"(model.positions): at most {most}"
            )


def _of_texts(converter: Converter) -> Converter:
    """Return the converter of single texts that corresponds to a converter of comparisons."""
    if isinstance(converter, EncoderDecoderComparisons):
        return EncoderDecoderConverter(start=converter.start)
    return (
        PrefixLM(start=converter.start) if isinstance(converter, DecoderComparisons) else converter
    )


# {sides of a network that generates: (its name in messages, the converters of its rows)}
_ARCHITECTURES: dict[tuple[str, ...], tuple[str, type[Converter]]] = {
    ("decoder",): ("decoder-only", GenerativeConverter),
    ("encoder", "decoder"): ("an encoder-decoder", GenerativeConverter),
    ("encoder",): ("an encoder that generates", EncoderConverter),
}


def _prompt_format(module: nn.Module, text: DataSetup) -> PromptFormat:
    data, converter = text.data, _of_texts(text.converter)
    sizes = converter.feature_lengths({name: size or 0 for name, size in data.lengths.items()})
    for name in converter.features:
        if not sizes.get(name):
            raise ValueError(
                f"data.lengths.{name} is not set: it is the number of tokens of the model's rows"
            )
    rows = converter.row_lengths(sizes)
    kind, suiting = _ARCHITECTURES[module.sides]
    suits = ("encoder" in rows) == ("encoder" in module.sides)
    if not suits or not isinstance(converter, suiting):
        raise ValueError(
            f"data.converter={data.converter!r} makes batches of {', '.join(rows)}, but the model "
            f"is {kind}"
        )
    if module.sides == ("encoder",):
        special = check_special_tokens(text.vocabulary)
        return PromptFormat(
            length=rows["encoder"] - 1,  # without [CLS]
            start=special.required_id("cls_id"),
            ends=(True, True),
            input_end=(special.required_id("sep_id"),),
        )
    assert isinstance(converter, GenerativeConverter)  # for the type checker
    encodes = "encoder" in module.sides
    pairs = encodes or isinstance(converter, PrefixLM | DecoderPrompts)
    return PromptFormat(
        length=rows["decoder"] + rows.get("response", 0),
        inputs=rows.get("encoder", 0),
        start=converter.start,
        sees_prompt=module.visibility == "prefix",
        ends=(pairs and text.examples.ends_inputs, pairs),
        begin=(text.vocabulary.required_id("cls_id"),) if text.examples.special_tokens else (),
    )
