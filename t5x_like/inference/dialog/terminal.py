"""Talk with a dialog model in the terminal, showing how it chose each reply."""

from collections.abc import Iterable
from typing import TextIO

from t5x_like.inference.dialog.dialog_model import DialogModel, Reply

_GREETING = "Your turn; an empty line begins a new dialog; Ctrl-C or Ctrl-D ends."
_PROMPT = "> "


def talk(model: DialogModel, *, lines: Iterable[str], out: TextIO) -> None:
    """Reply to each line as the next turn of a dialog, until the lines end."""
    turns: list[str] = []
    out.write(f"{_GREETING}\n{_PROMPT}")
    out.flush()
    try:
        for number, line in enumerate(lines):
            if turn := line.strip():
                [reply] = model.reply([[*turns, turn]], seed=number)
                turns += [turn, reply.text]
                out.write(_shown(reply))
            else:
                turns = []
            out.write(_PROMPT)
            out.flush()
    except KeyboardInterrupt:
        pass
    out.write("\n")


def _shown(reply: Reply) -> str:
    lines = [reply.text]
    for query, results in reply.calls:
        lines.append(f"    TS, {query} -> {' | '.join(results) or 'nothing'}")
    number = len(reply.candidates)
    if reply.base is None:
        lines.append(f"    all of {number} candidates are unsafe")
    else:
        rated = "   ".join(f"{name} {100 * p:.0f}%" for name, p in reply.base.ratings.items())
        lines.append(f"    best of {number}: {rated}")
    return "\n".join(lines) + "\n"
