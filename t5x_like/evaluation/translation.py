"""BLEU of generated translations, by sacreBLEU (Post 2018, arXiv:1804.08771)."""

import dataclasses
from collections.abc import Mapping, Sequence

from t5x_like.evaluation.generated_text import by_length
from t5x_like.evaluation.measure import Measured, Row, RowMeasure, text_of
from t5x_like.evaluation.metrics import texts
from t5x_like.inference.text_model import TextModel
from t5x_like.names import choose

TOKENIZERS = ("13a", "intl", "char", "zh", "none")


@dataclasses.dataclass(frozen=True)
class Translation(RowMeasure):
    """Case-sensitive corpus BLEU of the texts generated from `inputs`, against `targets`.

    Attributes:
        tokenizer: sacreBLEU's name of a tokenizer: 13a as in mteval-v13a, for most languages; zh
            for Chinese; char; intl; none for texts that are tokenized already.

    Raises:
        ValueError: the tokenizer is not in TOKENIZERS.
    """

    tokenizer: str = "13a"

    def __post_init__(self) -> None:
        choose("translation.tokenizer", self.tokenizer, dict.fromkeys(TOKENIZERS))

    @property
    def generates(self) -> bool:
        """Always True."""
        return True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return {"bleu": False}

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `bleu`, from 0 to 100, its `brevity_penalty`, and `length_ratio` in words.

        Raises:
            ValueError: there are no rows, or a row lacks a field.
        """
        if not rows:
            raise ValueError("there is no row to translate")
        sources = [text_of(row, "inputs") for row in rows]
        references = [text_of(row, "targets") for row in rows]
        predictions = by_length(model, sources)
        numbers = texts.bleu(references, predictions, tokenizer=self.tokenizer).estimates()
        listed = [
            {"inputs": source, "prediction": predicted, "targets": target}
            for source, predicted, target in zip(sources, predictions, references, strict=True)
        ]
        return numbers, listed
