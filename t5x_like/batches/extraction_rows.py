"""Write labelled text as rows of a decoder with an extract token (Radford et al. 2018, 3.3).

A row of tokens begins with a start token and ends with an extract token, at which the head
predicts; a delimiter (the paper's $) separates two texts. The three ids follow the vocabulary's
last id: fine-tuning adds them to the model's embedding table (`model.added_tokens`).
"""

from collections.abc import Callable, Sequence

from t5x_like.vocabularies import Vocabulary

Rows = list[list[int]]  # the rows of one example
WriteRow = Callable[..., list[int]]  # (one text or two) -> tokens
# (a function that writes a row, the fields of a raw row) -> the rows of its example.
Arrange = Callable[..., Rows]


def write_row(*texts: str, vocabulary: Vocabulary, length: int) -> list[int]:
    """Return the row of one text or a pair; a pair too long loses tokens of its longer text.

    Raises:
        ValueError: rows of this length have no room for text between the three tokens.
    """
    if length < 8:
        raise ValueError(f"lengths.inputs={length}: rows of labelled text need 8 tokens or more")
    start, delimiter, extract = range(vocabulary.vocab_size, vocabulary.vocab_size + 3)
    first, *others = (vocabulary.encode(text) for text in texts)
    if not others:
        return [start, *first[: length - 2], extract]
    [second], room = others, length - 3
    size = min(len(first), max(room - len(second), (room + 1) // 2))
    return [start, *first[:size], delimiter, *second[: room - size], extract]


def _one_row(write: WriteRow, *texts: str) -> Rows:
    return [write(*texts)]


def _both_orders(write: WriteRow, first: str, second: str) -> Rows:
    return [write(first, second), write(second, first)]


def _answers(write: WriteRow, answers: Sequence[str], *context: str) -> Rows:
    return [write(" ".join(context), answer) for answer in answers]


# By objective; arguments are the fields of a raw row except its label, in the objective's order.
ARRANGE: dict[str, Arrange] = {
    "gpt_classification": _one_row,
    "gpt_similarity": _both_orders,
    "gpt_regression": _both_orders,
    "gpt_multiple_choice": _answers,
}
