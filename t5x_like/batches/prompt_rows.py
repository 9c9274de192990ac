"""Converters of prompts for a model to respond to, and of comparisons of responses."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from t5x_like.batches.conversion import (
    Example,
    GenerativeConverter,
    NumpyBatch,
    SequenceRows,
    Sequences,
)
from t5x_like.batches.grouped_rows import one_by_one

NO_TOKEN = -1  # pads pretraining rows, which must all have the same length


@dataclasses.dataclass(frozen=True)
class DecoderPrompts(GenerativeConverter):
    """Prompts of a decoder, padded on the left, since a decoder generates after them.

    An example has `inputs`, the prompt, and with R pretraining rows `pretraining`, R * L tokens,
    padded with NO_TOKEN in shorter rows. With `lengths` of P inputs, N targets and L pretraining
    tokens they become

        decoder_input_tokens              [B, 1 + P]  the start token and the prompt
        decoder_segment_ids               [B, 1 + P]  0 on padding
        responses                         [B, N]      0: room for the responses
        pretraining_decoder_input_tokens  [B, R, L]   the start token and the text
        pretraining_decoder_target_tokens [B, R, L]   the text
        pretraining_decoder_loss_weights  [B, R, L]   1.0 on the text

    Attributes:
        pretraining_rows: R, the number of pretraining rows; may be 0.
        start: the first input token of the decoder.
    """

    packs: ClassVar[bool] = False
    lengths: ClassVar[tuple[str, ...]] = ("inputs", "targets", "pretraining")
    texts: ClassVar[tuple[str, ...]] = ("pretraining",)  # the features of pretraining rows

    pretraining_rows: int = 0
    start: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """The prompt, and the tokens of the pretraining rows if there are any."""
        return ("inputs", *self._beside)

    @property
    def _beside(self) -> tuple[str, ...]:
        return self.texts if self.pretraining_rows else ()

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths; pretraining counts the tokens of all rows together."""
        every = {name: self.pretraining_rows * lengths.get(name, 0) for name in self._beside}
        return {**lengths, **every}

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths of start token and prompt, response, and pretraining rows."""
        return {"decoder": 1 + lengths["inputs"], **self._other_lengths(lengths)}

    def _other_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        if not lengths.get("targets"):
            raise ValueError("data.lengths.targets is not set: the most tokens of a response")
        return {"response": lengths["targets"], **{name: lengths[name] for name in self._beside}}

    def sequences(self, example: Example) -> Sequences:
        """Return one channel per side: the tokens."""
        return {"decoder": _after(self.start, example["inputs"]), **self._others(example)}

    def _others(self, example: Example) -> Sequences:
        response = {"response": np.zeros((1, 0), np.int32)}
        return response | {name: example[name][None] for name in self._beside}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Return the fields listed in the class; only pretraining rows have targets."""
        side = rows["decoder"]
        padding = np.sum(side.segment_ids == 0, axis=1, keepdims=True)
        order = (np.arange(side.segment_ids.shape[1]) - padding) % side.segment_ids.shape[1]
        tokens, segments = (
            np.take_along_axis(x, order, axis=1) for x in (side.channels[0], side.segment_ids)
        )
        fields = {"decoder_input_tokens": tokens, "decoder_segment_ids": segments}
        return {**fields, **self._other_fields(rows)}

    def _other_fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        fields = {"responses": rows["response"].channels[0]}
        texts = []
        for name in self._beside:
            side = rows[name]
            tokens = np.where(side.segment_ids > 0, side.channels[0], NO_TOKEN)
            shape = (len(tokens), self.pretraining_rows, tokens.shape[1] // self.pretraining_rows)
            texts.append(tokens.reshape(shape))
        pretraining = self._pretraining_fields(*texts) if texts else {}
        return fields | {f"pretraining_{name}": values for name, values in pretraining.items()}

    def _pretraining_fields(self, *texts: Int[np.ndarray, "B R _"]) -> NumpyBatch:
        """Return the fields of pretraining rows, from the tokens of each feature in `texts`."""
        [text] = texts
        return self._predicted(text)

    def _predicted(self, text: Int[np.ndarray, "B R L"]) -> NumpyBatch:
        real, tokens = text != NO_TOKEN, np.maximum(text, 0)
        inputs = np.roll(tokens, 1, axis=2)
        inputs[..., :1] = self.start
        return {
            "decoder_input_tokens": np.where(real, inputs, 0),
            "decoder_target_tokens": tokens,
            "decoder_loss_weights": real.astype(np.float32),
        }


@dataclasses.dataclass(frozen=True)
class EncoderPrompts(DecoderPrompts):
    """Like `DecoderPrompts`, with the prompt in the encoder, [B, P], padded on the right.

    An example with pretraining rows has `pretraining_inputs` for the encoder and
    `pretraining_targets` for the decoder instead of `pretraining`; with lengths I and L they become

        pretraining_encoder_input_tokens  [B, R, I]   the inputs
        pretraining_encoder_segment_ids   [B, R, I]   0 on padding

    and the fields `pretraining_decoder_*` as above, made from the targets.
    """

    texts: ClassVar[tuple[str, ...]] = ("pretraining_inputs", "pretraining_targets")
    lengths: ClassVar[tuple[str, ...]] = ("inputs", "targets", *texts)

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths of prompt, decoder start token, response, and pretraining rows."""
        return {"encoder": lengths["inputs"], "decoder": 1, **self._other_lengths(lengths)}

    def sequences(self, example: Example) -> Sequences:
        """Return one channel per side: the tokens."""
        nothing = np.zeros(0, np.int32)
        start = _after(self.start, nothing)
        return {"encoder": example["inputs"][None], "decoder": start, **self._others(example)}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Return the encoder's tokens, the decoder's start token, and the fields of the base."""
        return {
            "encoder_input_tokens": rows["encoder"].channels[0],
            "encoder_segment_ids": rows["encoder"].segment_ids,
            **super().fields(rows),
        }

    def _pretraining_fields(self, *texts: Int[np.ndarray, "B R _"]) -> NumpyBatch:
        inputs, targets = texts
        return {
            "encoder_input_tokens": np.maximum(inputs, 0),
            "encoder_segment_ids": (inputs != NO_TOKEN).astype(np.int32),
            **self._predicted(targets),
        }


def _after(start: int, tokens: Int[np.ndarray, " L"]) -> Int[np.ndarray, "1 L+1"]:
    return np.concatenate([np.array([start], np.int32), tokens])[None]


@dataclasses.dataclass(frozen=True)
class DecoderComparisons(GenerativeConverter):
    """Rows of a prompt and a response; an example has all rows of one prompt.

    Ouyang et al. 2022, section 3.5. An example has `inputs`, the prompt; `targets`, the responses
    one after the other; `row_numbers`, 1, 2, ..., the responses that those tokens belong to; and
    `ranks`, 1 for the best response, equal for ties. They become, with K responses and rows of
    L = 1 + inputs + targets tokens, padded at their end,

        decoder_input_tokens      [B, K, L]  the start token, the prompt, the response
        decoder_segment_ids       [B, K, L]  0 on padding
        decoder_causal_attention  [B, K, L]  1 on the start token and the prompt
        decoder_target_tokens     [B, K, L]  the next token
        decoder_loss_weights      [B, K, L]  1.0 where the next token belongs to the response
        ranks                     [B, K]     0 where there is no response

    Attributes:
        responses: the most responses of an example, K.
        start: the first input token of the decoder.
    """

    responses: int = 2
    start: int = 0

    features = ("inputs", "targets", "row_numbers", "ranks")

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths; tokens of all responses are counted together."""
        size = self.responses * lengths.get("targets", 0)
        return {**lengths, "targets": size, "row_numbers": size, "ranks": self.responses}

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the sides from the features' lengths: all rows of an example together, ranks."""
        rows = self.responses * (1 + lengths["inputs"]) + lengths["targets"]
        return {"decoder": rows, "ranks": self.responses}

    def sequences(self, example: Example) -> Sequences:
        """Return three channels: the tokens of all rows, their row numbers, and 1 on responses."""
        return {
            "decoder": self._rows(example, before=[self.start, *example["inputs"]]),
            "ranks": example["ranks"][None],
        }

    def _rows(self, example: Example, *, before: list[int]) -> np.ndarray:
        """Return a row for each response, after the tokens `before`: int32 [3, L]."""
        rows = [np.zeros([3, 0], np.int32)]
        for number in range(1, len(example["ranks"]) + 1):
            response = example["targets"][example["row_numbers"] == number]
            tokens = np.concatenate([np.array(before, np.int32), response])
            in_response = np.arange(len(tokens)) >= len(before)
            rows.append(np.stack([tokens, np.full(len(tokens), number), in_response]))
        return np.concatenate(rows, axis=1)

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on the tokens of responses."""
        tokens, numbers, in_response = rows["decoder"].channels
        values, segments = one_by_one(np.stack([tokens, in_response]), numbers, rows=self.responses)
        tokens, in_response = values
        targets, weights = (np.pad(x[..., 1:], [(0, 0), (0, 0), (0, 1)]) for x in values)
        return {
            "decoder_input_tokens": tokens,
            "decoder_segment_ids": segments,
            "decoder_causal_attention": segments - in_response,
            "decoder_target_tokens": targets,
            "decoder_loss_weights": weights.astype(np.float32),
            "ranks": rows["ranks"].channels[0],
        }


@dataclasses.dataclass(frozen=True)
class EncoderDecoderComparisons(DecoderComparisons):
    """Like `DecoderComparisons`, with the prompt in the encoder, [B, S]; rows hold a response."""

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the sides from the features' lengths: prompt, all rows of an example, ranks."""
        rows = self.responses + lengths["targets"]
        return {"encoder": lengths["inputs"], "decoder": rows, "ranks": self.responses}

    def sequences(self, example: Example) -> Sequences:
        """Return the tokens of the prompt, and the decoder's channels as in the base class."""
        return {
            "encoder": example["inputs"][None],
            "decoder": self._rows(example, before=[self.start]),
            "ranks": example["ranks"][None],
        }

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on the tokens of responses."""
        batch = super().fields(rows)
        del batch["decoder_causal_attention"]  # the encoder reads the prompt
        return {
            "encoder_input_tokens": rows["encoder"].channels[0],
            "encoder_segment_ids": rows["encoder"].segment_ids,
            **batch,
        }
