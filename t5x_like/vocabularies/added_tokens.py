"""Added tokens of Hugging Face's Python tokenizers, found in a text before it is tokenized."""

import json
import re
from collections.abc import Iterator, Mapping

from tokenizers import AddedToken


class AddedTokens:
    """Tokens that are found by their texts; if several match, the longest is read.

    Attributes:
        ids: {text: id}.
        texts: {id: text}.

    Args:
        tokens: {id: token}.
    """

    def __init__(self, tokens: Mapping[int, AddedToken]):
        self.ids = {token.content: number for number, token in tokens.items() if token.content}
        self.texts = {number: text for text, number in self.ids.items()}
        self._tokens = {token.content: token for token in tokens.values()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @property
    def contents(self) -> bytes:
        """Everything that decides how a text is split, for equality."""
        flags = ("content", "lstrip", "rstrip", "single_word")
        rows = [
            [number, *(getattr(self._tokens[text], name) for name in flags)]
            for number, text in sorted(self.texts.items())
        ]
        return json.dumps(rows).encode()

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the parts of a text, each with its id if it is an added token, otherwise None."""
        parts = self._pattern.split(text) if self.ids else [text]
        is_token = [index % 2 == 1 for index in range(len(parts))]
        for index in range(1, len(parts), 2):
            token = self._tokens[parts[index]]
            if token.rstrip:
                parts[index + 1] = parts[index + 1].lstrip()
            if token.lstrip:
                parts[index - 1] = parts[index - 1].rstrip()
            if token.single_word:
                self._join(parts, is_token, index)
        for part, is_added in zip(parts, is_token, strict=True):
            if part:
                yield part, self.ids[part] if is_added else None

    @staticmethod
    def _join(parts: list[str], is_token: list[bool], index: int) -> None:
        """Join a token that is within a word to the word again."""
        before, after = parts[index - 1], parts[index + 1]
        if before and before[-1] != " ":
            parts[index - 1] += parts[index]
        elif after and after[0] != " ":
            parts[index + 1] = parts[index] + after
        else:
            return
        parts[index], is_token[index] = "", False
