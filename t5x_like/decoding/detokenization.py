"""Detokenize a stream of tokens, in which a token may be only a part of a character."""

from collections.abc import Callable, Iterable, Sequence

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# Context only decides whether a space precedes a word, and four tokens spell any character.
_CONTEXT = 8


class Detokenizer:
    """Turns tokens into text piece by piece; the joined pieces are the whole text.

    Args:
        decode: a function from tokens to text; invalid UTF-8 becomes U+FFFD, or is left out.
        prompt: the preceding tokens. Their text is not repeated, but a space between it and the
            next word is part of the output.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int] = ()):
        self._decode = decode
        self._tokens = [int(token) for token in prompt[-_CONTEXT:]]
        self._emitted = len(decode(self._tokens)) if self._tokens else 0

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that `tokens` add; an incomplete character is held back."""
        self._tokens += [int(token) for token in tokens]
        return self._new(self._decode(self._tokens).rstrip(_INCOMPLETE))

    def close(self) -> str:
        """Return the text that was held back as an incomplete character."""
        return self._new(self._decode(self._tokens)) if self._tokens else ""

    def _new(self, text: str) -> str:
        new = text[self._emitted :]
        self._emitted = max(self._emitted, len(text))
        return new


def continued(
    decode: Callable[[list[int]], str], tokens: Sequence[int], *, prompt: Sequence[int] = ()
) -> str:
    """Return the text of tokens that follow a prompt, without the prompt's text."""
    text = Detokenizer(decode, prompt)
    return text.push(tokens) + text.close()
