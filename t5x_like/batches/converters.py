"""Convert the token features of examples to the fields of a batch: shift, concatenate, pad or pack.

A converter declares which features of an example it reads, turns them into sequences, and makes the
fields of a batch from the rows that those sequences fill. It works in NumPy on the examples that
tf.data reads: a row costs microseconds, and no graph is traced again for each epoch. To add one,
subclass `Converter` and add a line to `CONVERTERS`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_like.batches import prompt_rows
from t5x_like.batches.conversion import (
    Converter,
    Example,
    GenerativeConverter,
    NumpyBatch,
    SequenceRows,
    Sequences,
)
from t5x_like.batches.grouped_rows import DecoderRows, EncoderRows
from t5x_like.batches.packing import to_batch
from t5x_like.names import check_settings, choose
from t5x_like.vocabularies.words import LONGEST

LOSS_ON_TOKENS = ("targets", "all")
LOSS_ON_POSITIONS = ("changed", "weights", "all")
# Features that describe an example as a whole, with the number of values of each.
OF_AN_EXAMPLE = {
    **{"label": 1, "value": 1, "answer": 2, "long_answer": 2},
    **{"reused": 1, "continued": 1, "reversed": 1},
}
# Aligned features with several values for each token.
_OF_A_WORD = {"characters": LONGEST, "backward_characters": LONGEST}
# Positions in a row, and numbers of its branches or sentences, also describe a row.
_OF_A_ROW = {*OF_AN_EXAMPLE, "span_left", "span_right", "branches", "sentences", "ranks"}
_ENCODER_FIELDS = {"inputs": "encoder_input_tokens", "targets": "encoder_target_tokens"}


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConverter(GenerativeConverter):
    """Read inputs, predict targets (T5, section 2.1).

    Attributes:
        start: the first input token of the decoder.
    """

    start: int = 0

    features = ("inputs", "targets")

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Each side has the length of its feature."""
        return {"encoder": lengths["inputs"], "decoder": lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """Return one channel per side: the tokens."""
        return {"encoder": example["inputs"][None], "decoder": example["targets"][None]}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on every target; segment ids mark padding, since token 0 may be a word."""
        return {
            "encoder_input_tokens": rows["encoder"].channels[0],
            "encoder_segment_ids": rows["encoder"].segment_ids,
            **_decoder_fields(rows, start=self.start),
        }


@dataclasses.dataclass(frozen=True)
class Fragment(EncoderDecoderConverter):
    """Predict a part of a text, whose tokens keep their positions in it (MASS, section 3.2).

    An example also has the `positions` of its targets, which become `decoder_positions`.
    """

    features = ("inputs", "targets", "positions")  # type: ignore[assignment]

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """There are as many positions as targets."""
        return {**lengths, "positions": lengths.get("targets", 0)}

    def sequences(self, example: Example) -> Sequences:
        """Return the tokens of both sides, with positions as the decoder's second channel."""
        targets = np.stack([example["targets"], example["positions"]])
        return {"encoder": example["inputs"][None], "decoder": targets}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on every target."""
        return {**super().fields(rows), "decoder_positions": rows["decoder"].channels[1]}


@dataclasses.dataclass(frozen=True)
class DecoderConverter(GenerativeConverter):
    """Predict each target from the targets before it: a language model.

    Attributes:
        start: the first input token of the decoder.
    """

    start: int = 0

    features = ("targets",)

    def continued(self, *, end: int) -> Converter:
        """Return the converter for running text, see `ContinuedDecoder`."""
        return ContinuedDecoder(start=self.start, end=end)

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the length of the targets."""
        return {"decoder": lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """Return one channel: the tokens."""
        return {"decoder": example["targets"][None]}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on every token."""
        return _decoder_fields(rows, start=self.start)


@dataclasses.dataclass(frozen=True)
class ContinuedDecoder(DecoderConverter):
    """Predict running text, where row r of a batch continues row r of the batch before.

    The first input token of a row is the last target of the row before (`previous` of an example),
    so no token is lost between two batches. `decoder_document_starts`, int32 [B, L], is 1 where the
    input is the end token of the previous document, or `start`. A row can end in padding when its
    epoch ends.

    Attributes:
        end: the token that ends a document.
    """

    end: int = 0

    continues = True

    def sequences(self, example: Example) -> Sequences:
        """Return two channels: the tokens, and (at position 0) the token before the first."""
        tokens = example["targets"]
        before = np.zeros_like(tokens)
        before[:1] = example.get("previous", self.start)
        return {"decoder": np.stack([tokens, before])}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on every token."""
        batch, side = super().fields(rows), rows["decoder"]
        inputs = np.where(side.positions == 0, side.channels[1], batch["decoder_input_tokens"])
        starts = np.isin(inputs, (self.start, self.end)) & (side.segment_ids > 0)
        batch["decoder_input_tokens"] = inputs
        return batch | {"decoder_document_starts": starts.astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class PrefixLM(GenerativeConverter):
    """Inputs, then targets, in one row; the inputs attend to each other (T5, section 3.2.1).

    `decoder_causal_attention` is 1 where the decoder reads an input or the start token, and 0 where
    it reads a target: with n inputs, it is 1 on the first n + 1 positions.

    Attributes:
        loss_on: "targets", or "all" for inputs and targets.
        length: tokens per row, 0 for the sum of both lengths; longer sequences are truncated.
        start: the first input token of the decoder.
    """

    loss_on: str = "targets"
    length: int = 0
    start: int = 0

    features = ("inputs", "targets")

    def __post_init__(self) -> None:
        choose("loss_on", self.loss_on, dict.fromkeys(LOSS_ON_TOKENS))
        if self.length < 0:
            raise ValueError(f"length={self.length} of the rows of prefix_lm must be 0 or more")

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return one side, by default of both lengths together."""
        return {"decoder": self.length or lengths["inputs"] + lengths["targets"]}

    def sequences(self, example: Example) -> Sequences:
        """Return two channels: the tokens, and 1 on inputs."""
        inputs, targets = example["inputs"], example["targets"]
        tokens = np.concatenate([inputs, targets])
        return {"decoder": np.stack([tokens, np.arange(len(tokens)) < len(inputs)])}

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss on targets, or on all tokens."""
        batch = _decoder_fields(rows, start=self.start)
        if self.loss_on == "targets":
            batch["decoder_loss_weights"] *= 1 - rows["decoder"].channels[1]
        batch["decoder_causal_attention"] = rows["decoder"].shifted(1, first=1)
        return batch


@dataclasses.dataclass(frozen=True)
class EncoderConverter(Converter):
    """Rows of an encoder: tokens, features aligned with them, and features of a whole example.

    `inputs` become `encoder_input_tokens`, `targets` `encoder_target_tokens` with the loss set by
    `loss_on`, and any other aligned feature x becomes `encoder_x`, int32 [B, L]; characters, of
    which an example has 50 per word, become [B, L, 50]. An example may also have a `label`, a class
    (int32 [B]), a `value` (float32 [B]), or an `answer` and a `long_answer`, the first and last
    token of each (int32 [B, 2]); and, if rows continue each other, `reused`, `continued` and
    `reversed` (int32 [B]).
    `encoder_segment_ids` is always included, since padding is not token 0 in every vocabulary.

    Attributes:
        features: the features of an example.
        loss_on: "changed", where targets differ from inputs; "weights", where the feature
            "loss_weights" is 1, for noise that leaves some selected tokens unchanged; or "all".
    """

    features: tuple[str, ...] = ("inputs", "targets")
    loss_on: str = "changed"

    def __post_init__(self) -> None:
        choose("loss_on", self.loss_on, dict.fromkeys(LOSS_ON_POSITIONS))
        object.__setattr__(self, "features", tuple(self.features))  # a config gives a list
        needed = ("inputs", "loss_weights") if self.loss_on == "weights" else ("inputs",)
        for name in needed:
            if name not in self.features:
                raise ValueError(f"features={self.features} of the converter encoder lack {name!r}")

    def continued(self, *, end: int) -> Converter:
        """Return the converter for rows that continue each other, see `ContinuedEncoder`."""
        if not {"backward_targets", "continued"} & {*self.features}:  # of ELMo and XLNet
            return super().continued(end=end)
        return ContinuedEncoder(features=self.features, loss_on=self.loss_on)

    @property
    def _aligned(self) -> tuple[str, ...]:
        others = (name for name in self.features if name not in {"inputs", *OF_AN_EXAMPLE})
        return ("inputs", *others)

    def feature_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths; aligned features have the length of the inputs, whatever is set."""
        length = lengths.get("inputs", 0)
        aligned = {name: length * _OF_A_WORD.get(name, 1) for name in self._aligned}
        return {**lengths, **aligned, **OF_AN_EXAMPLE}

    def row_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the length of the inputs, and a side for each feature of a whole example."""
        of_example = {name: size for name, size in OF_AN_EXAMPLE.items() if name in self.features}
        return {"encoder": lengths["inputs"], **of_example}

    def sequences(self, example: Example) -> Sequences:
        """Return a channel for each aligned feature; a float is stored as the bits of a float32.

        Raises:
            ValueError: aligned features differ in length.
        """
        sizes = {name: len(example[name]) // _OF_A_WORD.get(name, 1) for name in self._aligned}
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"the converter encoder needs targets aligned with inputs, got lengths {sizes}; "
                "take an objective with aligned targets, or the converter encoder_decoder"
            )
        of_example = {name: example[name] for name in OF_AN_EXAMPLE if name in self.features}
        if "value" in of_example:
            of_example["value"] = of_example["value"].astype(np.float32).view(np.int32)
        tokens = [example[name].reshape(-1, _OF_A_WORD.get(name, 1)).T for name in self._aligned]
        return {
            "encoder": np.concatenate(tokens),
            **{name: value[None] for name, value in of_example.items()},
        }

    def fields(self, rows: Mapping[str, SequenceRows]) -> NumpyBatch:
        """Put the loss where `loss_on` sets it, never on padding; no loss without targets."""
        segment_ids = rows["encoder"].segment_ids
        channels = self._channels(rows["encoder"].channels)
        batch: NumpyBatch = {"encoder_segment_ids": segment_ids}
        if "targets" in channels:
            changed = channels["inputs"] != channels["targets"]
            weights = {"changed": changed, "all": segment_ids > 0, **channels}
            name = "loss_weights" if self.loss_on == "weights" else self.loss_on
            batch["encoder_loss_weights"] = weights[name].astype(np.float32)
        for name, values in channels.items():
            if name != "loss_weights":
                batch[encoder_field(name)] = values
        of_example = {name: rows[name].channels[0] for name in OF_AN_EXAMPLE if name in rows}
        if "value" in of_example:
            of_example["value"] = of_example["value"].view(np.float32)
        return batch | {n: v if OF_AN_EXAMPLE[n] > 1 else v[:, 0] for n, v in of_example.items()}

    def _channels(self, channels: Int[np.ndarray, "C B L"]) -> dict[str, np.ndarray]:
        """Return the aligned features [B, L], and the characters of words [B, L, 50]."""
        features, first = {}, 0
        for name in self._aligned:
            size = _OF_A_WORD.get(name, 1)
            part, first = channels[first : first + size], first + size
            features[name] = np.moveaxis(part, 0, -1) if name in _OF_A_WORD else part[0]
        return features


@dataclasses.dataclass(frozen=True)
class ContinuedEncoder(EncoderConverter):
    """Rows of an encoder, where row r of a batch continues row r of the batch before.

    If a batch has them, `continued` [B] is 0 for rows that do not continue the previous batch, and
    `reused` is the number of leading tokens after which the next row continues.
    """

    continues = True


def encoder_field(feature: str) -> str:
    """Return the batch field that an aligned feature of an encoder's examples becomes."""
    return _ENCODER_FIELDS.get(feature, f"encoder_{feature}")


def _decoder_fields(rows: Mapping[str, SequenceRows], *, start: int) -> dict[str, Any]:
    side = rows["decoder"]
    return {
        "decoder_input_tokens": side.shifted(0, first=start),
        "decoder_target_tokens": side.channels[0],
        # From segment ids, since token 0 is a word in GPT-2's vocabulary.
        "decoder_loss_weights": (side.segment_ids > 0).astype(np.float32),
    }


CONVERTERS: dict[str, type[Converter]] = {
    "encoder_decoder": EncoderDecoderConverter,
    "fragment": Fragment,
    "decoder": DecoderConverter,
    "prefix_lm": PrefixLM,
    "encoder": EncoderConverter,
    "decoder_rows": DecoderRows,
    "encoder_rows": EncoderRows,
    "decoder_comparisons": prompt_rows.DecoderComparisons,
    "encoder_decoder_comparisons": prompt_rows.EncoderDecoderComparisons,
    "decoder_prompts": prompt_rows.DecoderPrompts,
    "encoder_prompts": prompt_rows.EncoderPrompts,
}


def find(name: str) -> type[Converter]:
    """Return the class of the converter `name`; raise ValueError if the name is unknown."""
    return choose("data.converter", name, CONVERTERS)


def build(name: str, **settings: Any) -> Converter:
    """Build a converter by name, with its settings.

    Raises:
        ValueError: no converter has this name, or it has no such setting, or a value is bad.
    """
    converter = find(name)
    check_settings("data.converter_settings", converter, settings)
    return converter(**settings)


def empty_row(
    converter: Converter, *, features: Sequence[str], lengths: Mapping[str, int], pack: bool
) -> NumpyBatch:
    """Return a batch of one row of padding: the shapes of a task's batches, without data.

    Args:
        converter, features, lengths, pack: see `check`.

    Raises:
        ValueError: the task does not suit the converter.
    """
    check(converter, features=features, lengths=lengths, pack=pack)
    lengths = converter.feature_lengths(lengths)
    return to_batch([[]], converter=converter, lengths=lengths, pack=pack)


def check(
    converter: Converter,
    *,
    features: Sequence[str],
    lengths: Mapping[str, int],
    pack: bool = False,
) -> None:
    """Check that a task suits a converter.

    Args:
        converter: makes the batches.
        features: the features of the task's examples.
        lengths: the most tokens of each feature.
        pack: whether several examples share a row.

    Raises:
        ValueError: the converter lacks a feature or would ignore one, a length is missing or below
            1, or the examples cannot share rows although `pack` is set.
    """
    name = _name(converter)
    if set(features) != set(converter.features):
        fitting = [
            name for name, other in CONVERTERS.items() if set(other().features) == set(features)
        ]
        raise ValueError(
            f"the converter {name} reads {', '.join(converter.features)}, but the "
            f"examples have {', '.join(features)}. Converters that read these: "
            f"{', '.join(fitting) or 'none, as they are set'}"
        )
    for feature in lengths:
        choose("data.lengths", feature, dict.fromkeys((*converter.lengths, *converter.features)))
    known = converter.feature_lengths(lengths)
    for feature in converter.features:
        if known.get(feature, 0) < 1:
            raise ValueError(
                f"data.lengths.{feature}={lengths.get(feature)} must be 1 or more tokens for the "
                f"converter {name}"
            )
    of_row = [feature for feature in converter.features if feature in _OF_A_ROW]
    if pack and (of_row or not converter.packs):
        why = (
            f" with the feature {of_row[0]!r}, which describes a row," if of_row else f" of {name}"
        )
        raise ValueError(f"data.pack=True: examples{why} cannot share one; use data.pack=False")


def _name(converter: Converter) -> str:
    names = [name for name, kind in CONVERTERS.items() if type(converter) is kind]
    return names[0] if names else type(converter).__name__
