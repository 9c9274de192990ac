"""Research before a reply: the model queries tools, reads the results, then writes its reply.

Thoppilan et al. 2022, section 6.2. After a base reply the model writes "TS, <query>", whose results
are appended to its prompt, or "User, <text>", which is the reply.
"""

import dataclasses
from collections.abc import Callable, Sequence

from t5x_like.batches import dialog_rows
from t5x_like.batches.dialog_rows import Call

# From prompts to the text that the model generates after each.
Write = Callable[[Sequence[str]], Sequence[str]]


@dataclasses.dataclass
class Research:
    """The state of the research for one reply.

    Attributes:
        context: the dialog so far.
        base: the reply before research.
        calls: the calls of the toolset so far.
        reply: the reply to the user; None until the model writes it.
        done: whether research has ended.
    """

    context: Sequence[str]
    base: str
    calls: list[Call] = dataclasses.field(default_factory=list)
    reply: str | None = None
    done: bool = False

    @property
    def text(self) -> str:
        """The reply, or the base reply if research produced none."""
        return self.base if self.reply is None else self.reply

    def read(self, written: str, tools: Callable[[str], list[str]], *, most: int) -> None:
        """Do the step that the model wrote: call the toolset, or end.

        Args:
            written: the text that the model generated.
            tools: the toolset.
            most: maximum number of calls; a query beyond it ends research without a reply.
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
    """Do the research for several dialogs' replies, batching each step over the dialogs.

    Args:
        contexts: the dialogs so far.
        bases: the reply of each before research.
        write: the model; it is called at most `calls` + 1 times.
        tools: the toolset, from a query to texts.
        calls: maximum calls of the toolset per dialog.
    """
    found = [Research(*pair) for pair in zip(contexts, bases, strict=True)]
    while running := [one for one in found if not one.done]:
        prompts = [dialog_rows.research_prompt(one.context, one.base, one.calls) for one in running]
        for one, written in zip(running, write(prompts), strict=True):
            one.read(written, tools, most=calls)
    return found
