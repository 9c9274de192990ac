"""A text model for tests: its tokens are characters, their log p a plain function."""

import numpy as np
import pytest

from t5x_like.inference.likelihood import PromptFormat, Score, TokenPair


class Characters:
    """Each character's log p is `think(before, character)`; it generates `written`."""

    answers = has_memory = False

    def __init__(self, think, *, length=1000, written="", new_tokens=5):
        self.think, self.length, self.written, self.new_tokens = think, length, written, new_tokens
        self.requests = []
        self.prompt_format = PromptFormat(length, start=0)

    def without_start(self):
        return self  # its prompts have no start token of their own

    def tokens(self, text, *, end):
        return [*map(ord, text), *([0] if end else [])]

    def excess(self, prompt, continuation):
        after = self.new_tokens if continuation is None else len(continuation)
        return PromptFormat(self.length).excess(TokenPair(prompt, range(after)))

    def score(self, pairs):
        return self.score_tokens(
            [TokenPair(self.tokens(a, end=False), [*map(ord, b)]) for a, b in pairs]
        )

    def score_tokens(self, pairs):
        return [self._score(pair) for pair in pairs]

    def _score(self, pair):
        before, log_probs = "".join(map(chr, pair.prompt)), []
        self.requests.append((before, "".join(map(chr, pair.continuation))))
        for token in pair.continuation:
            log_probs.append(self.think(before, chr(token)))
            before += chr(token)
        return Score(np.array(log_probs), all(one > np.log(0.5) for one in log_probs))

    def generate(self, prompts):
        self.requests += prompts
        return [self.written] * len(prompts)


@pytest.fixture
def characters():
    return Characters
