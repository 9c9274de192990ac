"""Converters of prompts that a model is to respond to, beside rows of pretraining text."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from t5x_like.batches.conversion import Batch, Example, GenerativeConverter, Rows, Sequences

NO_TOKEN = -1  # in the feature `pretraining`: every row of it has the same length


@dataclasses.dataclass(frozen=True)
class DecoderPrompts(GenerativeConverter):
    """Prompts of a decoder, padded on the left: as a decoder generates after them.

    An example has `inputs`, the prompt, and with R pretraining rows `pretraining`, R * L tokens,
    NO_TOKEN where a row is shorter. With `lengths` of P inputs, N targets and L pretraining tokens
    they become

        decoder_input_tokens              [B, 1 + P]  the start token and the prompt
        decoder_segment_ids               [B, 1 + P]  0 on padding
        responses                         [B, N]      0: room for the responses
        pretraining_decoder_input_tokens  [B, R, L]   the start token and the text
        pretraining_decoder_target_tokens [B, R, L]   the text
        pretraining_decoder_loss_weights  [B, R, L]   1.0 on the text

    Attributes:
        pretraining_rows: R; 0 for none.
        start: the token that the decoder reads first.
    """

    packs: ClassVar[bool] = False
    lengths: ClassVar[tuple[str, ...]] = ("inputs", "targets", "pretraining")

    pretraining_rows: int = 0
    start: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """The prompt, and the text of the pretraining rows if there are any."""
        return ("inputs", "pretraining") if self.pretraining_rows else ("inputs",)

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Tokens of all pretraining rows together."""
        if not self.pretraining_rows:
            return dict(lengths)
        return {**lengths, "pretraining": self.pretraining_rows * lengths.get("pretraining", 0)}

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The prompt after its start token, the response, and the pretraining rows."""
        rows = {"decoder": 1 + lengths["inputs"], "response": _response(lengths)}
        if self.pretraining_rows:
            rows["pretraining"] = lengths["pretraining"]
        return rows

    def sequences(self, example: Example) -> Sequences:
        """One channel: the tokens."""
        return {"decoder": _after(self.start, example["inputs"]), **self._beside(example)}

    def _beside(self, example: Example) -> Sequences:
        beside = {"response": np.zeros((1, 0), np.int32)}
        if self.pretraining_rows:
            beside["pretraining"] = example["pretraining"][None]
        return beside

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """See the class; there are no targets but those of pretraining."""
        side = rows["decoder"]
        padding = np.sum(side.segment_ids == 0, axis=1, keepdims=True)
        places = (np.arange(side.segment_ids.shape[1]) - padding) % side.segment_ids.shape[1]
        tokens, segments = (
            np.take_along_axis(x, places, axis=1) for x in (side.channels[0], side.segment_ids)
        )
        fields = {"decoder_input_tokens": tokens, "decoder_segment_ids": segments}
        return {**fields, **self._other_fields(rows)}

    def _other_fields(self, rows: Mapping[str, Rows]) -> Batch:
        fields = {"responses": rows["response"].channels[0]}
        if not self.pretraining_rows:
            return fields
        side = rows["pretraining"]
        shape = (len(side.segment_ids), self.pretraining_rows, -1)
        tokens = np.where(side.segment_ids > 0, side.channels[0], NO_TOKEN).reshape(shape)
        real, tokens = tokens != NO_TOKEN, np.maximum(tokens, 0)
        inputs = np.roll(tokens, 1, axis=2)
        inputs[..., :1] = self.start
        return fields | {
            "pretraining_decoder_input_tokens": np.where(real, inputs, 0),
            "pretraining_decoder_target_tokens": tokens,
            "pretraining_decoder_loss_weights": real.astype(np.float32),
        }


@dataclasses.dataclass(frozen=True)
class EncoderPrompts(DecoderPrompts):
    """As `DecoderPrompts`, with the prompt in the encoder, [B, P], padded on the right."""

    def __post_init__(self) -> None:
        if self.pretraining_rows:
            raise ValueError(
                f"pretraining_rows={self.pretraining_rows}: the rows of text beside the prompts "
                "are those of a decoder-only model; an encoder-decoder has 0"
            )

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The prompt, the decoder's start token, and the response."""
        return {"encoder": lengths["inputs"], "decoder": 1, "response": _response(lengths)}

    def sequences(self, example: Example) -> Sequences:
        """One channel: the tokens."""
        nothing = np.zeros(0, np.int32)
        start = _after(self.start, nothing)
        return {"encoder": example["inputs"][None], "decoder": start, **self._beside(example)}

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """The encoder's tokens, and the start token of the decoder."""
        return {
            "encoder_input_tokens": rows["encoder"].channels[0],
            "encoder_segment_ids": rows["encoder"].segment_ids,
            **super().fields(rows),
        }


def _after(start: int, tokens: Int[np.ndarray, " L"]) -> Int[np.ndarray, "1 L+1"]:
    return np.concatenate([np.array([start], np.int32), tokens])[None]


def _response(lengths: Mapping[str, int]) -> int:
    if not lengths.get("targets"):
        raise ValueError("data.lengths.targets is not set: the most tokens of a response")
    return lengths["targets"]
