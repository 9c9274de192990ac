"""Research before a reply: the model asks tools, reads their answers, then writes to the user.

Thoppilan et al. 2022, section 6.2. After a base reply the model writes "TS, <query>", whose results
are appended to its prompt, or "User, <text>", which is the reply.
"""

import dataclasses
from collections.abc import Callable, Sequence

from t5x_like.batches import dialog_rows
from t5x_like.batches.dialog_rows import Call

# Prompts -> what the model writes after each.
Write = Callable[[Sequence[str]], Sequence[str]]


@dataclasses.dataclass
class Research:
    """The research for one reply.

    Attributes:
        context: the dialog so far.
        base: the reply before research.
        calls: of the toolset.
        reply: to the user; None until the model writes one.
        done: whether there is nothing more to write.
    """

    context: Sequence[str]
    base: str
    calls: list[Call] = dataclasses.field(default_factory=list)
    reply: str | None = None
    done: bool = False

    @property
    def text(self) -> str:
        """The reply, or without one the base reply."""
        return self.base if self.reply is None else self.reply

    def read(self, written: str, tools: Callable[[str], list[str]], *, most: int) -> None:
        """Go one step on: call the toolset, or end.

        Args:
            written: by the model.
            tools: the toolset.
            most: calls; a query beyond them ends research without a reply.
        """
        found = dialog_rows.read_research(written)
        if found.query and len(self.calls) < most:
            self.calls.append(Call(found.query, tools(found.query)))
            return
        self.reply = found.reply or None
        self.done = True


def research(
    contexts: Sequence[Sequence[str]],
    bases: Sequence[str],
    *,
    write: Write,
    tools: Callable[[str], list[str]],
    calls: int,
) -> list[Research]:
    """Do the research for the replies of some dialogs, step by step for all of them together.

    Args:
        contexts: the dialogs so far.
        bases: the reply of each before research.
        write: the model; it is called at most `calls` + 1 times.
        tools: a query -> texts.
        calls: of the toolset at most, for each dialog.
    """
    found = [Research(*pair) for pair in zip(contexts, bases, strict=True)]
    while running := [one for one in found if not one.done]:
        prompts = [dialog_rows.research_prompt(one.context, one.base, one.calls) for one in running]
        for one, written in zip(running, write(prompts), strict=True):
            one.read(written, tools, most=calls)
    return found
