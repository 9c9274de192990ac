"""Pairs of texts, an input and an output: text to text (T5, section 2.4), translation.

Also for an encoder that learns to generate the second text (UniLM, section 2.5).
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.objectives import masking
from t5x_like.objectives.formats import SEGMENTS
from t5x_like.objectives.masking import Writing
from t5x_like.objectives.noise import check_rate, check_shares
from t5x_like.objectives.objective import PAIR, Example, ExampleSpec, OfPair, Pairs, of_masked

_CONVERTERS = ("encoder_decoder", "prefix_lm")
_NO_LIMIT = 2**31


def text_to_text(*, end_inputs: bool = True, end_targets: bool = True) -> Pairs:
    """Tokenize {"inputs": string, "targets": string}, truncated to fit and ended by EOS.

    For fine-tuning and for supervised tasks in a mixture. Other features are passed on, and the
    strings are kept as "inputs_pretokenized" and "targets_pretokenized", for metrics.

    Args:
        end_inputs: whether inputs end with EOS too. Without it the targets continue the text of the
            inputs, as a decoder does: the two are tokenized together, and inputs that are too long
            are truncated on the left.
        end_targets: whether targets end with EOS. Without it, only their tokens have a loss, as
            for a rating of one token.

    Raises:
        ValueError: inputs end with EOS, but targets do not.
    """
    if end_inputs and not end_targets:
        raise ValueError("end_targets=False needs end_inputs=False: targets continue the inputs")

    def plan(spec: ExampleSpec) -> OfPair:
        if not end_inputs:
            spec.check("text_to_text", *PAIR)
        ends = {side: spec.features[side].end for side in PAIR}
        ends = {"inputs": ends["inputs"][:end_inputs], "targets": ends["targets"][:end_targets]}
        # Without a length, nothing is truncated: a `seqio.Task` may be read without lengths.
        rooms = {side: spec.lengths.get(side, _NO_LIMIT) - len(end) for side, end in ends.items()}

        def example(
            inputs: np.ndarray, targets: np.ndarray, generator: np.random.Generator
        ) -> Example:
            del generator
            room = rooms["inputs"]
            shown = inputs[:room] if end_inputs else inputs[max(len(inputs) - room, 0) :]
            return {
                "inputs": np.concatenate([shown, ends["inputs"]]),
                "targets": np.concatenate([targets[: rooms["targets"]], ends["targets"]]),
            }

        return example

    return Pairs(
        name="text_to_text",
        features=PAIR,
        converters=_CONVERTERS,
        ends_inputs=end_inputs,
        continued=not end_inputs,
        plan=plan,
    )


def marked_text_to_text() -> Pairs:
    """Tokenize {"inputs": string, "targets": string} to <s> text </s> on both sides.

    For BART, which also reads and generates the special token at the beginning of a text. Both
    sides are truncated to fit; the strings are kept as in `text_to_text`.

    Raises (when the dataset is built, before anything is read):
        ValueError: the vocabulary lacks [CLS] or [SEP], or lengths leave no room for text.
    """

    def plan(spec: ExampleSpec) -> OfPair:
        spec.check("marked_text_to_text", *PAIR)
        rooms = {side: spec.lengths[side] - 2 for side in PAIR}
        special = SpecialTokens(spec.features["inputs"].vocabulary)

        def close(tokens: np.ndarray, room: int) -> np.ndarray:
            return np.array([special.cls, *tokens[:room], special.sep], np.int32)

        return lambda inputs, targets, generator: {
            "inputs": close(inputs, rooms["inputs"]),
            "targets": close(targets, rooms["targets"]),
        }

    return Pairs(
        name="marked_text_to_text",
        features=PAIR,
        converters=("encoder_decoder",),
        special_tokens=True,
        plan=plan,
    )


def translation() -> Pairs:
    """Tokenize {"inputs": string, "targets": string}, each side ended by EOS.

    Sentences and their translations (Vaswani et al. 2017, section 5.1). A pair is dropped if a side
    has more tokens than its length allows, including EOS: if it were truncated, as in
    `text_to_text`, the sides would no longer be translations of each other.

    Raises (when a run plans it, before anything is read):
        ValueError: a length is missing or below 2.
    """

    def plan(spec: ExampleSpec) -> OfPair:
        spec.check("translation", *PAIR)
        tails = {side: spec.features[side].end for side in PAIR}
        rooms = {side: spec.lengths[side] - len(tails[side]) for side in PAIR}

        def example(
            inputs: np.ndarray, targets: np.ndarray, generator: np.random.Generator
        ) -> Example | None:
            del generator
            sides = {"inputs": inputs, "targets": targets}
            if any(len(tokens) > rooms[side] for side, tokens in sides.items()):
                return None
            return {side: np.concatenate([sides[side], tails[side]]) for side in PAIR}

        return example

    return Pairs(name="translation", features=PAIR, converters=_CONVERTERS, plan=plan)


def masked_targets(
    *,
    rate: float = 0.7,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    target_length: int = 64,
) -> Pairs:
    """Tokenize {"inputs": string, "targets": string} to one row, with masks only in the target.

        inputs:       [CLS] how do you do ? [SEP] [MASK] [MASK] thanks [MASK]
        targets:      [CLS] how do you do ? [SEP] fine , thanks [SEP]
        loss_weights: 1 on masked tokens; the last [SEP] may be masked, so the model learns to end
        token_types:  4, and 5 from "fine" on: UniLM's sequence-to-sequence segments

    Args:
        rate: share of the target that is masked, including [SEP], rounded for each row.
        random_rate, kept_rate: shares of the masked tokens that become random tokens, and that are
            kept; the rest becomes [MASK].
        target_length: the most tokens of the target, including [SEP]; the rest of the row is for
            the source. Both are truncated at their ends.

    Raises:
        ValueError: shares are out of range; when the dataset is built, before it is read, the
            vocabulary lacks [CLS], [SEP] or [MASK], rows have no room for a source, or the task
            has no pairs.
    """
    check_rate("masked_targets", rate=rate)
    check_shares("masked_targets", random_rate=random_rate, kept_rate=kept_rate)

    def plan(spec: ExampleSpec) -> OfPair:
        length = spec.lengths.get("inputs") or 0
        if not 1 < target_length <= length - 3:
            raise ValueError(
                f"masked_targets: target_length={target_length} must be 2 or more and leave room "
                f"for a source and its special tokens in a row of lengths.inputs={length}"
            )
        return _Row(
            special=SpecialTokens(spec.features["inputs"].vocabulary),
            length=length,
            target_length=target_length,
            rate=rate,
            write=Writing(random_rate=random_rate, kept_rate=kept_rate),
        )

    return Pairs(name="masked_targets", plan=plan, **of_masked("token_types"))


@dataclasses.dataclass(frozen=True)
class _Row:
    """Makes a row from a pair of token sequences."""

    special: SpecialTokens
    length: int
    target_length: int
    rate: float
    write: Writing

    def __call__(
        self,
        source: Int[np.ndarray, " S"],
        target: Int[np.ndarray, " T"],
        generator: np.random.Generator,
    ) -> Example:
        sep = [self.special.sep]
        target = np.concatenate([target[: self.target_length - 1], sep])
        source = source[: self.length - 2 - len(target)]
        tokens = np.concatenate([[self.special.cls], source, sep, target])
        second = np.arange(len(tokens)) >= len(tokens) - len(target)
        budget = masking.budgets(second[None], rate=self.rate)
        noise = masking.single_tokens(generator, second[None], budget=budget)
        inputs = self.write(generator, tokens[None], noise, self.special)
        types = np.where(second, *reversed(SEGMENTS["sequence_to_sequence"]))
        row = {
            "inputs": inputs[0],
            "targets": tokens,
            "loss_weights": noise[0] > 0,
            "token_types": types,
        }
        return {name: values.astype(np.int32) for name, values in row.items()}
