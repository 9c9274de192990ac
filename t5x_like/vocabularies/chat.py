"""Chat templates: write the turns of a conversation as one text, up to the next answer."""

import abc
import dataclasses
import datetime
import functools
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from t5x_like import hub, paths
from t5x_like.names import choose
from t5x_like.vocabularies import files
from t5x_like.vocabularies.hugging_face.tokenizer_files import TokenizerFiles

Turn = Mapping[str, str]  # {"role": "system", "user" or "assistant", "content": ...}
ROLES = ("system", "user", "assistant")
FILE = "chat_template.jinja"
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class ChatTemplate(abc.ABC):
    """Writes conversations as text."""

    @abc.abstractmethod
    def prompt(self, turns: Sequence[Turn]) -> str:
        """Return the text of some turns, up to the next answer of the assistant.

        Raises:
            ValueError: the template refuses these turns.
        """

    @abc.abstractmethod
    def answer(self, turns: Sequence[Turn]) -> str:
        """Return the text of the last turn, an answer, after the `prompt` of the turns before it.

        It ends where the end token follows: with the template's own text that ends a turn, if this
        is not the end token.

        Raises:
            ValueError: the template refuses these turns.
        """

    def content(self, answer: str) -> str:
        """Return the content of an answer that a model wrote, without the end of the turn."""
        return answer

    @property
    @abc.abstractmethod
    def jinja(self) -> str:
        """The template in the language of Jinja, as Hugging Face's folders have it."""

    def fitting(self, turns: Sequence[Turn], fits: Callable[[str], bool]) -> list[Turn]:
        """Return as many of the last turns as fit, after a leading system turn.

        Args:
            turns: the turns.
            fits: returns whether a prompt is short enough; the last turn is always kept.
        """
        system = [turn for turn in turns[:1] if turn["role"] == "system"]
        rest = list(turns[len(system) :])
        while len(rest) > 1 and not fits(self.prompt([*system, *rest])):
            del rest[0]
            while len(rest) > 1 and rest[0]["role"] == "assistant":  # its question is gone
                del rest[0]
        return [*system, *rest]


@dataclasses.dataclass(frozen=True)
class RoleTemplate(ChatTemplate):
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

    def answer(self, turns: Sequence[Turn]) -> str:
        """See the base class."""
        return self._begin[len(self._begin.rstrip(" ")) :] + turns[-1]["content"]

    @property
    def jinja(self) -> str:
        """See the base class."""
        parts = ["{% for message in messages %}"]
        for role in ROLES:
            before, _, after = getattr(self, role).partition("{}")
            text = f"{_literal(before)} + message['content'] + {_literal(after)}"
            parts += ["{% if message['role'] == '", role, "' %}{{ ", text, " }}{% endif %}"]
        begin = _literal(self._begin.rstrip(" "))
        parts += ["{% endfor %}{% if add_generation_prompt %}{{ ", begin, " }}{% endif %}"]
        return "".join(parts)

    @property
    def _begin(self) -> str:
        return self.assistant.partition("{}")[0]


def _literal(text: str) -> str:
    """Return a text as a string of Jinja's language, whose escapes are Python's."""
    return json.dumps(text, ensure_ascii=False)


class JinjaTemplate(ChatTemplate):
    """A template of a folder, rendered as transformers renders it.

    The code of a template is run in Jinja's sandbox: it cannot reach or change Python's objects.
    The text of the token that begins a text is left out, since every prompt begins with this token.

    Args:
        source: the template.
        tokens: the texts of special tokens by their names, such as {"eos_token": "</s>"}.

    Raises:
        ValueError: jinja2 is not installed, or the template has an error.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]):
        self._source, self._tokens = source, dict(tokens)
        self._template = _compiled(source)

    @property
    def jinja(self) -> str:
        """The template."""
        return self._source

    def prompt(self, turns: Sequence[Turn]) -> str:
        """See the base class."""
        return self._render(turns, add_generation_prompt=True)

    def answer(self, turns: Sequence[Turn]) -> str:
        """See the base class.

        The template may change an answer, for example remove white space around it.
        """
        content, before = turns[-1]["content"], self.prompt(turns[:-1])
        conversation = self._render(turns, add_generation_prompt=False)
        if not conversation.startswith(before):  # it writes earlier turns in another way
            return content
        text = conversation[len(before) :]
        ended = text.rstrip()
        if (end := self._tokens.get("eos_token")) and ended.endswith(end):
            return ended.removesuffix(end)
        first = text.rfind(content) + len(content)
        # White space after an answer separates it from the next turn.
        return ended if text[first:].strip() or content not in text else text[:first]

    def content(self, answer: str) -> str:
        """See the base class."""
        return answer.rstrip().removesuffix(self._ending)

    @functools.cached_property
    def _ending(self) -> str:
        question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
        return self.answer([question, answer]).rpartition("!")[2].strip()

    def _render(self, turns: Sequence[Turn], *, add_generation_prompt: bool) -> str:
        import jinja2

        try:
            text = self._template.render(
                messages=[dict(turn) for turn in turns],
                add_generation_prompt=add_generation_prompt,
                tools=None,  # templates also ask `is not none`, which holds for what is undefined
                documents=None,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"the chat template does not write these turns: {reason}") from error
        return text.removeprefix(self._tokens.get("bos_token", ""))


def _compiled(source: str) -> Any:
    """Compile a template with the settings, functions and blocks of transformers."""
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError(
            "a chat template needs jinja2: pip install 't5x_like[hub]' (in a clone: pip install "
            "-e '.[hub]')"
        )
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block that marks an answer, whose text is written like any other."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's interface

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"the chat template has an error in line {error.lineno}: {error}"
        ) from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; unlike Jinja's filter, without escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise ValueError(message)


def of_folder(name: str) -> JinjaTemplate:
    """Read the chat template of a folder or of a model of the hub.

    Raises:
        ValueError: there is no such folder, or it has no chat template or no tokenizer.
    """
    folder = files.find(name)
    source: Any = TokenizerFiles(folder).settings.get("chat_template")
    if isinstance(source, list):  # several templates with names
        source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
    if (folder / FILE).is_file():
        source = (folder / FILE).read_text(encoding="utf-8")
    if not isinstance(source, str):
        raise ValueError(f"template={name!r}: this folder has no chat template ({FILE})")
    vocabulary = files.load(name)
    ids = {role: getattr(vocabulary, f"{role}_id") for role in _NAMED}
    tokens = {
        f"{role}_token": vocabulary.piece(number)
        for role, number in ids.items()
        if number is not None
    }
    return JinjaTemplate(source, tokens)


TEMPLATES = {
    "plain": RoleTemplate(system="{}\n\n", user="User: {}\n\n", assistant="Assistant: {}\n\n"),
    # A vocabulary reads <|im_start|> and <|im_end|> as single tokens if its file has them.
    "chatml": RoleTemplate(
        **{role: f"<|im_start|>{role}\n{{}}<|im_end|>\n" for role in ROLES}  # OpenAI, 2023
    ),
}


def find_template(template: str | Mapping[str, str]) -> ChatTemplate:
    """Return the template with a name or of a folder, or make one from {role: text} for all roles.

    Raises:
        ValueError: the name is unknown, a role is missing or unknown, or a text lacks its {}; see
            also `of_folder`.
    """
    if isinstance(template, str):
        is_folder = paths.path(template).is_dir() or hub.names(template)
        if is_folder and template not in TEMPLATES:
            return of_folder(template)
        return choose("template", template, TEMPLATES)
    if set(template) != set(ROLES):
        raise ValueError(
            f"template has texts for {', '.join(template)}; it needs one for each of "
            f"{', '.join(ROLES)}, or is one of {', '.join(TEMPLATES)}"
        )
    return RoleTemplate(**template)


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
