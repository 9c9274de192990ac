"""Chat templates: write the turns of a conversation as one text, up to the next answer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_like.names import choose

Turn = Mapping[str, str]  # {"role": "system", "user" or "assistant", "content": ...}
ROLES = ("system", "user", "assistant")


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The texts in which each role's turn is written; {} stands for its content.

    The assistant's text before {} begins an answer. An answer ends with the vocabulary's end token;
    the text after {} separates earlier answers from the next turn.
    """

    system: str
    user: str
    assistant: str

    def __post_init__(self) -> None:
        for role in ROLES:
            text = getattr(self, role)
            if not isinstance(text, str) or text.count("{}") != 1:
                raise ValueError(
                    f"template.{role}={text!r} must be a text with one {{}}, where the content of "
                    "a turn goes, such as 'User: {}\\n\\n'"
                )

    def prompt(self, turns: Sequence[Turn]) -> str:
        """Return the text of some turns, up to the next answer of the assistant.

        It does not end with blanks: they belong to the answer, since most vocabularies have blanks
        at the beginning of words.
        """
        written = (getattr(self, turn["role"]).replace("{}", turn["content"]) for turn in turns)
        return "".join(written) + self._begin.rstrip(" ")

    def answer(self, content: str) -> str:
        """Return the text of an answer after `prompt`, without the end token."""
        return self._begin[len(self._begin.rstrip(" ")) :] + content

    def fitting(self, turns: Sequence[Turn], fits: Callable[[str], bool]) -> list[Turn]:
        """Return as many of the last turns as fit, after a leading system turn.

        Args:
            fits: returns whether a prompt is short enough; the last turn is always kept.
        """
        system = [turn for turn in turns[:1] if turn["role"] == "system"]
        rest = list(turns[len(system) :])
        while len(rest) > 1 and not fits(self.prompt([*system, *rest])):
            del rest[0]
            while len(rest) > 1 and rest[0]["role"] == "assistant":  # its question is gone
                del rest[0]
        return [*system, *rest]

    @property
    def _begin(self) -> str:
        return self.assistant.partition("{}")[0]


TEMPLATES = {
    "plain": ChatTemplate(system="{}\n\n", user="User: {}\n\n", assistant="Assistant: {}\n\n"),
    # A vocabulary reads <|im_start|> and <|im_end|> as single tokens if its file has them.
    "chatml": ChatTemplate(
        **{role: f"<|im_start|>{role}\n{{}}<|im_end|>\n" for role in ROLES}  # OpenAI, 2023
    ),
}


def find_template(template: str | Mapping[str, str]) -> ChatTemplate:
    """Return the template with a name, or make one from {role: text} for all roles.

    Raises:
        ValueError: the name is unknown, a role is missing or unknown, or a text lacks its {}.
    """
    if isinstance(template, str):
        return choose("template", template, TEMPLATES)
    if set(template) != set(ROLES):
        raise ValueError(
            f"template has texts for {', '.join(template)}; it needs one for each of "
            f"{', '.join(ROLES)}, or is one of {', '.join(TEMPLATES)}"
        )
    return ChatTemplate(**template)


def check_turns(turns: Any) -> Sequence[Turn]:
    """Check a conversation that was read from a file.

    Raises:
        ValueError: it is not a list of {"role", "content"}, it is empty, or a role does not exist.
    """
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{turns!r:.80} is not a list of messages with a role and a content")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or not isinstance(turn.get("content"), str):
            raise ValueError(f"message {number} is not an object with a role and a content (text)")
        if turn.get("role") not in ROLES:
            raise ValueError(
                f"message {number} has the role {turn.get('role')!r}; allowed: {', '.join(ROLES)}"
            )
    return turns
