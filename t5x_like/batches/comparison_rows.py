"""Converters of comparisons: one row for each ranked response to a prompt."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from t5x_like.batches.conversion import Batch, Example, GenerativeConverter, Rows, Sequences
from t5x_like.batches.grouped_rows import one_by_one


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

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
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

    def fields(self, rows: Mapping[str, Rows]) -> Batch:
        """Put the loss on the tokens of responses."""
        batch = super().fields(rows)
        del batch["decoder_causal_attention"]  # the encoder reads the prompt
        return {
            "encoder_input_tokens": rows["encoder"].channels[0],
            "encoder_segment_ids": rows["encoder"].segment_ids,
            **batch,
        }
