"""Write dialogs as text: contexts, responses, ratings and tools, for training and for serving.

Thoppilan et al. 2022, section 6. A context is a list of turns, by the user and the model in turn.

    generation      <context> RESPONSE            -> <response>
    discrimination  <context> RESPONSE <response> SENSIBLE  -> 1
    research        <context> BASE <base reply> RESEARCH    -> TS, <query>
                    ... RESEARCH TS, <query> RESULT <snippets> RESEARCH -> User, <text>

Inputs and targets are tokenized separately: each begins with a word, so that the tokens of a row
are the concatenated tokens of its parts, in training as in serving.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from t5x_like.vocabularies import Vocabulary

# Each is a question about a response, answered with 0 or 1.
ATTRIBUTES = ("sensible", "specific", "interesting", "unsafe")
RATINGS = (0, 1)

_TURN, _RESPONSE, _BASE, _RESEARCH, _RESULT = "TURN", "RESPONSE", "BASE", "RESEARCH", "RESULT"
_TO_TOOLS, _TO_USER = "TS,", "User,"
_BETWEEN_RESULTS = " | "


class Call(NamedTuple):
    """A call of the toolset: the query, and the texts that came back."""

    query: str
    results: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Written:
    """The model's output during research: a query, or the text for the user.

    Attributes:
        query: for the toolset; "" if the output has no query.
        reply: for the user; "" if the output has no reply.
    """

    query: str = ""
    reply: str = ""


def response_prompt(context: Sequence[str]) -> str:
    """Return the prompt for a response."""
    return f"{f' {_TURN} '.join(context)} {_RESPONSE}"


def target(text: str) -> str:
    """Return a text as a target: with a blank before it, for vocabularies that keep blanks."""
    return f" {text}"


def attribute(name: str) -> str:
    """Return the text after a response that asks for one of its ratings."""
    return f" {name.upper()}"


def rating_prompt(context: Sequence[str], response: str, name: str) -> str:
    """Return the prompt for a rating."""
    return f"{response_prompt(context)} {response}{attribute(name)}"


def research_prompt(context: Sequence[str], base: str, calls: Sequence[Call]) -> str:
    """Return the prompt for a query, or for the reply to the user.

    Args:
        context: the dialog so far.
        base: the reply without research.
        calls: the calls of the toolset so far.
    """
    text = f"{f' {_TURN} '.join(context)} {_BASE} {base}"
    for call in calls:
        results = _BETWEEN_RESULTS.join(call.results)
        text += f" {_RESEARCH} {_TO_TOOLS} {call.query} {_RESULT} {results}".rstrip()
    return f"{text} {_RESEARCH}"


def query_text(query: str) -> str:
    """Return a query as the model writes it: "TS, <query>"."""
    return f"{_TO_TOOLS} {query}"


def reply_text(reply: str) -> str:
    """Return a reply to the user as the model writes it: "User, <text>"."""
    return f"{_TO_USER} {reply}"


def read_research(text: str) -> Written:
    """Parse the model's output; text of any other form is neither a query nor a reply."""
    text = text.strip()
    if text.startswith(_TO_TOOLS):
        return Written(query=text.removeprefix(_TO_TOOLS).strip())
    if text.startswith(_TO_USER):
        return Written(reply=text.removeprefix(_TO_USER).strip())
    return Written()


def rating_ids(vocabulary: Vocabulary) -> tuple[int, int]:
    """Return the tokens of the ratings 0 and 1.

    Raises:
        ValueError: a rating is not a single known token, or both have the same token.
    """
    tokens = [vocabulary.encode(target(str(rating))) for rating in RATINGS]
    for rating, rating_tokens in zip(RATINGS, tokens, strict=True):
        if len(rating_tokens) != 1 or rating_tokens[0] == vocabulary.unk_id:
            raise ValueError(
                f"vocabulary={vocabulary}: the rating {rating} becomes the tokens {rating_tokens}, "
                "but it must be one known token; train a vocabulary with --whole_words 0 1"
            )
    if tokens[0] == tokens[1]:
        raise ValueError(
            f"vocabulary={vocabulary}: the ratings 0 and 1 are both the token {tokens[0][0]}; "
            "train the vocabulary on text that has the words 0 and 1"
        )
    return tokens[0][0], tokens[1][0]
