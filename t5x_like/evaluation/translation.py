"""BLEU of what is written for a source, as sacreBLEU measures it (Post 2018, arXiv:1804.08771)."""

import dataclasses
from collections.abc import Sequence

import sacrebleu

from t5x_like.evaluation.interface import Measured, Row, TextModel, text_of
from t5x_like.names import choose

TOKENIZERS = ("13a", "intl", "char", "zh", "none")


@dataclasses.dataclass(frozen=True)
class Translation:
    """What a model writes for `inputs`, beside `targets`: over all rows, case and all.

    Attributes:
        tokenizer: sacreBLEU's name of how words and marks are told apart: 13a as in mteval-v13a,
            for most languages; zh for Chinese; char; intl; none for texts in words already.

    Raises:
        ValueError: another tokenizer.
    """

    tokenizer: str = "13a"

    def __post_init__(self) -> None:
        choose("score.tokenizer", self.tokenizer, dict.fromkeys(TOKENIZERS))

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """`bleu`, from 0 to 100, its `brevity_penalty`, and `length_ratio` in words.

        Raises:
            ValueError: no rows, or one without these fields.
        """
        if not rows:
            raise ValueError("there is nothing to translate")
        sources = [text_of(row, "inputs") for row in rows]
        references = [text_of(row, "targets") for row in rows]
        # Long ones together: a batch is as wide as its longest row, and takes as many steps.
        order = sorted(range(len(rows)), key=lambda n: len(model.tokens(sources[n], end=True)))
        written = model.generate([sources[number] for number in order])
        predictions = dict(zip(order, written, strict=True))
        found = sacrebleu.corpus_bleu(
            [predictions[number] for number in range(len(rows))],
            [references],
            tokenize=self.tokenizer,
            force=True,  # no advice on the terminal about marks that stand apart
        )
        numbers = {
            "bleu": found.score,
            "brevity_penalty": found.bp,
            "length_ratio": found.sys_len / found.ref_len,
        }
        said = [
            {"inputs": source, "prediction": predictions[number], "targets": references[number]}
            for number, source in enumerate(sources)
        ]
        return numbers, said
