"""BLEU of generated translations, by sacreBLEU (Post 2018, arXiv:1804.08771)."""

import dataclasses
from collections.abc import Sequence

import sacrebleu

from t5x_like.evaluation.measure import Measured, Row, RowMeasure, text_of
from t5x_like.inference.text_model import TextModel
from t5x_like.names import choose

TOKENIZERS = ("13a", "intl", "char", "zh", "none")


@dataclasses.dataclass(frozen=True)
class Translation(RowMeasure):
    """BLEU of the texts generated from `inputs` against `targets`, over all rows, with case.

    Attributes:
        tokenizer: sacreBLEU's name of a tokenizer: 13a as in mteval-v13a, for most languages; zh
            for Chinese; char; intl; none for texts that are tokenized already.

    Raises:
        ValueError: another tokenizer.
    """

    tokenizer: str = "13a"

    def __post_init__(self) -> None:
        choose("translation.tokenizer", self.tokenizer, dict.fromkeys(TOKENIZERS))

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """`bleu`, from 0 to 100, its `brevity_penalty`, and `length_ratio` in words.

        Raises:
            ValueError: no rows, or one without these fields.
        """
        if not rows:
            raise ValueError("there is no row to translate")
        sources = [text_of(row, "inputs") for row in rows]
        references = [text_of(row, "targets") for row in rows]
        # By length, since a batch is as long, and takes as many steps, as its longest row.
        order = sorted(range(len(rows)), key=lambda n: len(model.tokens(sources[n], end=True)))
        generated = model.generate([sources[number] for number in order])
        predictions = dict(zip(order, generated, strict=True))
        found = sacrebleu.corpus_bleu(
            [predictions[number] for number in range(len(rows))],
            [references],
            tokenize=self.tokenizer,
            force=True,  # without advice on the terminal about tokenized punctuation
        )
        numbers = {
            "bleu": found.score,
            "brevity_penalty": found.bp,
            "length_ratio": found.sys_len / found.ref_len,
        }
        listed = [
            {"inputs": source, "prediction": predictions[number], "targets": references[number]}
            for number, source in enumerate(sources)
        ]
        return numbers, listed
