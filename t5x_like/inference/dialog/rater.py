"""Rate responses given as texts, with the discriminators of a dialog model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t5x_like.batches import dialog_rows
from t5x_like.inference.likelihood import Pair
from t5x_like.inference.text_model import TextModel


class Dialog(NamedTuple):
    """A dialog whose last turn is rated.

    Attributes:
        context: the turns before the last.
        response: the last turn.
    """

    context: Sequence[str]
    response: str


class Rater:
    """The probabilities of the ratings of responses (Thoppilan et al. 2022, section 6.1).

    Args:
        model: a decoder-only model fine-tuned on ratings.

    Raises:
        ValueError: the model has an encoder, or a rating is not a single token.
    """

    def __init__(self, model: TextModel):
        if model.encodes:
            raise ValueError("ratings need a decoder-only model: this one has an encoder")
        self._model = model
        self._ratings = dialog_rows.rating_ids(model.vocabulary)

    def __call__(self, dialogs: Sequence[Dialog]) -> list[dict[str, float]]:
        """Return P(1) of each attribute of each dialog, normalized over the ratings 0 and 1.

        A dialog that is too long is truncated on the left.
        """
        names = dialog_rows.ATTRIBUTES
        room = self._model.length - 1
        pairs = []
        for dialog in dialogs:
            for name in names:
                text = dialog_rows.rating_prompt(dialog.context, dialog.response, name)
                prompt = self._model.prompt(text)
                pairs += [
                    Pair(prompt[max(0, len(prompt) - room) :], [one]) for one in self._ratings
                ]
        scores = [one.total for one in self._model.score_tokens(pairs)]
        both = np.reshape(scores, (len(dialogs), len(names), len(self._ratings)))
        ones = 1 / (1 + np.exp(both[..., 0] - both[..., 1]))
        return [dict(zip(names, map(float, own), strict=True)) for own in ones]
