"""A dialog model: candidates, ratings, ranking, research, roles (Thoppilan et al. 2022, section 6).

from t5x_like.inference.dialog.dialog_model import DialogModel
model = DialogModel(text_model.build(from_pretrained(folder), settings, text), DialogSettings())
model.reply([["Hi, who are you?"]])[0].text
"""

import dataclasses
from collections.abc import Sequence

from t5x_like.batches import dialog_rows
from t5x_like.batches.dialog_rows import Call
from t5x_like.inference.dialog import toolset
from t5x_like.inference.dialog.candidates import Candidate, CandidateSampler
from t5x_like.inference.dialog.dialog_settings import DialogSettings
from t5x_like.inference.dialog.research import research
from t5x_like.inference.text_model import TextModel


@dataclasses.dataclass(frozen=True)
class Reply:
    """The next turn of a dialog.

    Attributes:
        text: the text of the turn.
        base: the best candidate, which research may have changed; None if all were dropped.
        candidates: all sampled responses, including dropped ones.
        calls: the calls of the toolset.
    """

    text: str
    base: Candidate | None
    candidates: Sequence[Candidate]
    calls: Sequence[Call] = ()


class DialogModel:
    """Replies to dialogs with the best of several candidates.

    With several processes call it on all of them, with the same dialogs.

    Args:
        model: a decoder-only model fine-tuned on dialogs (configs/lamda.py).
        settings: the settings of the dialog.

    Raises:
        ValueError: the model has an encoder, a rating is not a single token of its vocabulary, or a
            tool's file is invalid.
    """

    def __init__(self, model: TextModel, settings: DialogSettings):
        self._model, self.settings = model, settings
        self._tools = toolset.build(
            calculator=settings.calculator,
            translator=settings.translator,
            retrieval=settings.retrieval,
        )
        self._sample = CandidateSampler(model, settings)

    def reply(self, contexts: Sequence[Sequence[str]], *, seed: int = 0) -> list[Reply]:
        """Return the next turn of each dialog.

        Args:
            contexts: the turns so far, by the user and the model in turn; the last is the user's.
            seed: added to the seed of the settings.

        Raises:
            ValueError: there is no dialog, or a dialog has no turn.
        """
        if not contexts or not all(contexts):
            raise ValueError("a reply needs a dialog with at least one turn")
        contexts = [[*self.settings.role, *context] for context in contexts]
        prompts = [dialog_rows.response_prompt(context) for context in contexts]
        found = [self._choose(own) for own in self._sample(prompts, seed=seed)]
        return self._researched(contexts, found) if self._tools else found

    def _choose(self, candidates: Sequence[Candidate]) -> Reply:
        """Reply with the best safe candidate, the first of equally good ones."""
        safe = [one for one in candidates if not self.settings.drops(one.ratings)]
        if not safe:
            return Reply(self.settings.refusal, None, candidates)
        best = max(safe, key=lambda one: self.settings.score(one.ratings))
        return Reply(best.text, best, candidates)

    def _researched(
        self, contexts: Sequence[Sequence[str]], replies: Sequence[Reply]
    ) -> list[Reply]:
        """Return the replies after research; refusals stay as they are."""
        assert self._tools is not None
        open_ones = [n for n, one in enumerate(replies) if one.base is not None]
        done = research(
            [contexts[n] for n in open_ones],
            [replies[n].text for n in open_ones],
            write=self._model.generate,
            tools=self._tools,
            calls=self.settings.calls,
        )
        found = list(replies)
        for number, one in zip(open_ones, done, strict=True):
            found[number] = dataclasses.replace(replies[number], text=one.text, calls=one.calls)
        return found
