"""Use a model in the terminal: let it continue texts, or hold a conversation."""

from collections.abc import Iterable
from typing import TextIO

import numpy as np

from t5x_like.decoding.detokenization import Detokenizer
from t5x_like.decoding.generation import StreamStep
from t5x_like.inference.text_model import TextModel
from t5x_like.vocabularies.chat import ChatTemplate, Turn

LIKELIEST = 5
_PROMPT = "> "
_INTRODUCTION = "A text to continue; an empty line continues it; Ctrl-C stops it, Ctrl-D ends."
_GREETING = (
    "Your turn; an empty line begins a new conversation; Ctrl-C stops an answer, Ctrl-D ends."
)


def type_out(model: TextModel, text: str, *, out: TextIO) -> None:
    """Print an answer token by token; a language model's answer follows its prompt."""
    if not model.answers:
        out.write(text)
    writing = _Writing(model, model.prompt(text), out=out, held_back=0)
    model.stream(writing.prompt, writing.step)
    writing.end()


def converse(model: TextModel, *, lines: Iterable[str], out: TextIO) -> None:
    """Answer each line, and show the most likely next tokens under each answer.

    At most `decode.max_new_tokens` - 1 tokens are printed, since the last token is only predicted.
    An empty line continues the text; a model that answers does so again, differently if it samples.
    Ctrl-C ends an answer, or between answers the conversation, as does the end of the lines.
    """
    out.write(f"{_INTRODUCTION}\n{_PROMPT}")
    out.flush()
    prompt: list[int] = []
    try:
        for turn, line in enumerate(lines):
            line = line.rstrip("\n")
            if line:
                prompt = model.prompt(line)
            writing = _Writing(model, prompt, out=out, held_back=1)
            try:
                if line and not model.answers:
                    out.write(line)
                model.stream(prompt, writing.step, seed=turn)
            except KeyboardInterrupt:
                out.write(" ...")
            writing.end()
            _show(model, writing.last, out=out)
            out.write(_PROMPT)
            out.flush()
            if not model.answers:
                prompt = [*prompt, *writing.tokens]
    except KeyboardInterrupt:
        pass
    out.write("\n")


def chat(model: TextModel, template: ChatTemplate, *, lines: Iterable[str], out: TextIO) -> None:
    """Answer each line as the next turn of a conversation, given the turns before it.

    If the turns are too long for the model, the oldest are left out, a question with its answer.
    Ctrl-C ends an answer, whose printed part the conversation keeps; between answers it ends the
    conversation, as does the end of the lines.
    """
    room = model.length - (0 if model.encodes else model.new_tokens)
    turns: list[Turn] = []
    out.write(f"{_GREETING}\n{_PROMPT}")
    out.flush()
    try:
        for number, line in enumerate(lines):
            question = line.strip()
            if question:
                turns.append({"role": "user", "content": question})
                turns = template.fitting(turns, lambda text: len(model.prompt(text)) <= room)
                prompt = model.prompt(template.prompt(turns))
                writing = _Writing(model, prompt, out=out, held_back=0)
                try:
                    model.stream(prompt, writing.step, seed=number)
                except KeyboardInterrupt:
                    out.write(" ...")
                writing.end()
                answer = template.content(model.text(writing.tokens, prompt=prompt)).strip()
                turns.append({"role": "assistant", "content": answer})
            else:
                turns = []
            out.write(_PROMPT)
            out.flush()
    except KeyboardInterrupt:
        pass
    out.write("\n")


class _Writing:
    """An answer that is printed token by token.

    Attributes:
        prompt, tokens: the tokens of the prompt, and of the answer so far.
        last: the log probabilities [V] from which the last token was chosen.
    """

    def __init__(self, model: TextModel, prompt: list[int], *, out: TextIO, held_back: int):
        self.prompt, self.tokens = prompt, list[int]()
        self.last: np.ndarray | None = None
        self._model, self._out = model, out
        self._most = model.new_tokens - held_back
        before = () if model.prompt_format.ends[0] else prompt
        self._text = Detokenizer(model.vocabulary.decode, before)

    def step(self, step: StreamStep) -> bool:
        """Print a token; return True at an end token or when enough tokens have been printed."""
        self.last = np.asarray(step.log_probs[0])
        token = int(step.tokens[0])
        if self._model.is_end(token) or len(self.tokens) >= self._most:
            return True
        self.tokens.append(token)
        if token not in self._model.marks:
            self._out.write(self._text.push([token]))
        self._out.flush()
        return False

    def end(self) -> None:
        """Print an unfinished character, and end the line."""
        self._out.write(self._text.close() + "\n")
        self._out.flush()


def _show(model: TextModel, log_probs: np.ndarray | None, *, out: TextIO) -> None:
    if log_probs is None:
        return
    log_probs = log_probs[: model.vocabulary.vocab_size]  # a model may have more logits than pieces
    best = np.argsort(-log_probs, kind="stable")[:LIKELIEST]
    shown = (f"{model.shown(int(token))} {100 * np.exp(log_probs[token]):.1f}%" for token in best)
    out.write("    " + "   ".join(shown) + "\n")
