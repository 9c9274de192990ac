"""Pairs of texts for an encoder that learns to generate the second (UniLM, section 2.5)."""

import dataclasses

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.objectives import masking
from t5x_like.objectives.formats import SEGMENTS
from t5x_like.objectives.masking import Writing
from t5x_like.objectives.noise import check_rate, check_shares
from t5x_like.objectives.objective import Example, ExampleSpec, OfPair, Pairs, of_masked


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
    settings = dict(locals())
    check_rate("masked_targets", rate=rate)
    check_shares("masked_targets", random_rate=random_rate, kept_rate=kept_rate)

    def plan(given: ExampleSpec) -> OfPair:
        length = given.lengths.get("inputs") or 0
        if not 1 < target_length <= length - 3:
            raise ValueError(
                f"masked_targets: target_length={target_length} must be 2 or more and leave room "
                f"for a source and its special tokens in a row of lengths.inputs={length}"
            )
        return _Row(
            special=SpecialTokens(given.features["inputs"].vocabulary),
            length=length,
            target_length=target_length,
            rate=rate,
            write=Writing(random_rate=random_rate, kept_rate=kept_rate),
        )

    return Pairs(name="masked_targets", settings=settings, plan=plan, **of_masked("token_types"))


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
