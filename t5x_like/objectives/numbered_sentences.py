"""ETC's objective: rows of numbered sentences with masked tokens, some sentences hidden."""

import dataclasses
import random

import numpy as np
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens, TextRows, lay_out
from t5x_like.objectives import formats, masking
from t5x_like.objectives.formats import DocumentGroup
from t5x_like.objectives.grouping import apart, objective_of_rows
from t5x_like.objectives.noise import check_rate, check_shares
from t5x_like.objectives.objective import Example, Groups, OfGroup, of_masked

_WORD = np.ones(1)  # probabilities of span lengths: always one word


def etc(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    hidden_rate: float = 0.1,
    group: int = 64,
) -> Groups:
    """Mask words, and hide some sentences entirely (Ainslie et al. 2020).

        inputs:       [CLS] the man went . [MASK] [MASK] [MASK] [MASK] we [MASK] . [SEP]
        targets:      [CLS] the man went . he     bought milk   .      we sang   . [SEP]
        loss_weights: 0     0   0   0    0 0      0      0      0      0  1      0 0
        sentences:    0     1   1   1    1 2      2      2      2      3  3      3 0
        hidden:       0     0   0   0    0 1      1      1      1      0  0      0 0

    A row has sentences of one document. A hidden sentence is [MASK] throughout; its tokens are not
    predicted, but its global token must identify the sentence. Noise is in the other sentences.

    Args:
        rate: share of the text outside hidden sentences that is masked, in whole words.
        random_rate, kept_rate: shares of the noise that become random tokens, and that are kept.
        hidden_rate: share of the sentences of a row that are hidden, rounded; at least one of two
            or more sentences, and never all.
        group: the number of documents read together.

    Raises:
        ValueError: a share is out of range.
    """
    check_rate("etc", rate=rate)
    check_shares("etc", random_rate=random_rate, kept_rate=kept_rate)
    if not 0 < hidden_rate < 1:
        raise ValueError(f"etc: hidden_rate={hidden_rate} must lie between 0 and 1")

    def rows_for(special: SpecialTokens, length: int) -> OfGroup:
        write = masking.Writing(random_rate=random_rate, kept_rate=kept_rate)
        return NumberedRows(special, length, rate=rate, hidden_rate=hidden_rate, write=write)

    of = of_masked("sentences", "hidden")
    return objective_of_rows("etc", rows_for, group=group, of=of)


@dataclasses.dataclass(frozen=True)
class NumberedRows:
    """Makes the rows of a group of documents: an `OfGroup`.

    Attributes:
        special: the special tokens of the vocabulary.
        length: tokens per row.
        rate, hidden_rate: see `etc`.
        write: replaces the noise.
    """

    special: SpecialTokens
    length: int
    rate: float = dataclasses.field(kw_only=True)
    hidden_rate: float = dataclasses.field(kw_only=True)
    write: masking.Writing = dataclasses.field(kw_only=True)

    def __call__(
        self,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        generator: np.random.Generator,
    ) -> list[Example]:
        """Return the rows of a group."""
        room = self.length - 2
        documents = DocumentGroup.of(tokens, lengths, counts, longest=room)
        planned = formats.doc_sentences(documents, room, [random.Random(0)] * len(documents))
        if not planned:
            return []
        rows = lay_out(
            documents.tokens, planned, length=self.length, separators=0, special=self.special
        )
        sentences = _numbers(rows, documents)
        hidden = _hidden(generator, sentences, rate=self.hidden_rate)
        open_text = rows.text & ~hidden
        starts = self.special.word_starts[rows.tokens]
        noise = masking.spans(
            generator,
            masking.units(starts, text=open_text),
            budget=masking.budgets(open_text, rate=self.rate),
            chances=_WORD,
        )
        inputs = self.write(generator, rows.tokens, noise, self.special)
        fields = {
            "inputs": np.where(hidden, self.special.mask, inputs),
            "targets": rows.tokens,
            "loss_weights": noise > 0,
            "sentences": sentences,
            "hidden": hidden,
        }
        return apart(fields, rows.sizes)


def _numbers(rows: TextRows, documents: DocumentGroup) -> Int[np.ndarray, "B L"]:
    """Return the number of each token's sentence in its row, from 1; 0 on special tokens."""
    offsets = np.arange(rows.tokens.shape[1]) - 1  # the row begins with [CLS]
    positions = rows.firsts[:, None] + np.maximum(offsets, 0)
    of_group = np.searchsorted(np.array(documents.ends), positions, side="right")
    inside = (offsets >= 0) & (offsets < rows.sizes[:, None] - 2)
    return np.where(inside, of_group - of_group[:, :1] + 1, 0)


def _hidden(
    generator: np.random.Generator, sentences: Int[np.ndarray, "B L"], *, rate: float
) -> np.ndarray:
    """Return True on the tokens of hidden sentences, bool [B, L]."""
    counts = sentences.max(axis=1)
    budget = np.minimum(np.maximum(np.rint(counts * rate).astype(np.int64), 1), counts - 1)
    real = np.arange(max(int(counts.max()), 1)) < counts[:, None]
    chosen = masking.single_tokens(generator, real, budget=budget) > 0
    of_token = np.take_along_axis(chosen, np.maximum(sentences - 1, 0), axis=1)
    return of_token & (sentences > 0)
