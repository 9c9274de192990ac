"""Text out of tokens as they come, of which some are only a part of a character."""

from collections.abc import Callable, Iterable, Sequence

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# What comes before decides at most whether there is a blank, and four tokens hold any character.
_CONTEXT = 8


class Detokenizer:
    """The text of tokens, piece by piece: all pieces one after the other are the whole text.

    Args:
        decode: from tokens to text; bytes that are no UTF-8 become U+FFFD, or nothing.
        prompt: tokens before, whose text is not told again. A blank between it and the next word
            is.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int] = ()):
        self._decode = decode
        self._tokens = [int(one) for one in prompt[-_CONTEXT:]]
        self._told = len(decode(self._tokens)) if self._tokens else 0

    def push(self, tokens: Iterable[int]) -> str:
        """The text that more tokens add; what may be half a character waits for the next ones."""
        self._tokens += [int(one) for one in tokens]
        return self._new(self._decode(self._tokens).rstrip(_INCOMPLETE))

    def close(self) -> str:
        """What was waiting."""
        return self._new(self._decode(self._tokens)) if self._tokens else ""

    def _new(self, text: str) -> str:
        new = text[self._told :]
        self._told = max(self._told, len(text))
        return new


def continued(
    decode: Callable[[list[int]], str], tokens: Sequence[int], *, prompt: Sequence[int] = ()
) -> str:
    """The text that tokens add to that of a prompt."""
    text = Detokenizer(decode, prompt)
    return text.push(tokens) + text.close()
