"""Gin files as data: bindings, macros, references, scopes and includes, without running anything.

The package gin-config parses them; modules that they import only complete abbreviated names.
"""

import contextlib
import dataclasses
import pathlib
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_like.names import hint

_REQUIRED = "gin.REQUIRED"
# T5X's scripts bind names under `__main__`; here all have the name of its training script.
_SCRIPT = {"__main__": "t5x.train"}


@dataclasses.dataclass(frozen=True)
class Reference:
    """A function or class named as a value: `@train/utils.DatasetConfig()`.

    Attributes:
        name: full name, such as "t5x.utils.DatasetConfig".
        scope: scope such as "train", or "".
    """

    name: str
    scope: str = ""


@dataclasses.dataclass(frozen=True)
class _Macro:
    name: str


@dataclasses.dataclass
class Binding:
    """The value bound to an argument or a macro.

    Attributes:
        written: the name as in the file: "train/utils.DatasetConfig.batch_size".
        place: the file and the line.
        used: whether the value has been read.
    """

    written: str
    value: Any
    place: str
    used: bool = False


@dataclasses.dataclass(frozen=True)
class GinFlags:
    """The flags of a command that concern gin files.

    Attributes:
        files: the files, in order.
        bindings: further bindings, (name, value) as texts: ("train/DatasetConfig.seed", "3").
        folders: where files and includes are searched before the working directory.
    """

    files: tuple[str, ...] = ()
    bindings: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()


def split(arguments: Sequence[str]) -> tuple[GinFlags, list[str]]:
    """Split arguments into the flags of gin files and the rest.

    The flags are `--gin=FILE` and `--gin.NAME=VALUE`, or as T5X spells them `--gin_file=FILE`,
    `--gin_bindings='NAME = VALUE'` and `--gin_search_paths=FOLDER,FOLDER`.

    Raises:
        ValueError: a gin flag has no value.
    """
    files, bindings, folders, rest = [], [], [], []
    for word in arguments:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not (name in _FLAGS or name.startswith("gin.")):
            rest.append(word)
        elif not equals or not value:
            raise ValueError(f"{word!r} must be written --gin=FILE or --gin.NAME=VALUE")
        elif name in ("gin", "gin_file"):
            files.append(value)
        elif name == "gin_search_paths":
            folders += value.split(",")
        elif name == "gin_bindings":
            name, _, value = value.partition("=")
            bindings.append((name.strip(), value.strip()))
        else:
            bindings.append((name.removeprefix("gin."), value))
    return GinFlags(tuple(files), tuple(bindings), tuple(folders)), rest


_FLAGS = ("gin", "gin_file", "gin_bindings", "gin_search_paths")


class Bindings:
    """The bindings of gin files; a later binding of a name replaces an earlier one.

    Attributes:
        arguments: {(scope, function, argument): binding}.
        macros: {name: binding}.
        modules: the modules that the files import, in order.

    Raises:
        ValueError: gin-config is not installed, a file or an include is missing or malformed, or
            a macro is not defined.
    """

    def __init__(self, flags: GinFlags):
        self.arguments: dict[tuple[str, str, str], Binding] = {}
        self.macros: dict[str, Binding] = {}
        self.modules: list[str] = []
        self._aliases: dict[str, str] = {}
        self._parser = _parser()
        self._folders = [pathlib.Path(folder).expanduser() for folder in (*flags.folders, ".")]
        for file in flags.files:
            candidates = [folder / pathlib.Path(file).expanduser() for folder in self._folders]
            path = next((candidate for candidate in candidates if candidate.is_file()), None)
            if path is None:
                raise ValueError(f"--gin={file!r}: there is no such file")
            self._read(path, above=())
        for name, value in flags.bindings:
            self._read_text(f"{name} = {value}\n", f"--gin.{name}", self._aliases, above=())
        self._check_macros()

    def get(self, name: str, argument: str, default: Any = None, *, scope: str = "") -> Any:
        """Return the value of an argument, with macros resolved; `default` if it is not bound.

        Args:
            name: full name of the function or class.
            argument: name of the argument.
            default: returned if the argument is not bound.
            scope: the scope of the call; its bindings take precedence over unscoped bindings.

        Raises:
            ValueError: the value is required and not set.
        """
        for where in dict.fromkeys((scope, "")):
            if binding := self.arguments.get((where, name, argument)):
                return self._value(binding)
        return default

    def macro(self, name: str, default: Any = None) -> Any:
        """Return the value of a macro; `default` if it is not defined.

        Raises:
            ValueError: see `get`.
        """
        return self._value(self.macros[name]) if name in self.macros else default

    def is_required(self, name: str, argument: str) -> bool:
        """Return whether an unscoped argument is bound to `gin.REQUIRED` and was never set."""
        try:
            self.get(name, argument)
        except ValueError:
            return True
        return False

    def unused(self) -> list[Binding]:
        """Return the bindings whose values have not been read."""
        both = (*self.arguments.values(), *self.macros.values())
        return [binding for binding in both if not binding.used]

    def _value(self, binding: Binding) -> Any:
        binding.used = True
        return self._resolved(binding.value, binding, [binding.written])

    def _resolved(self, value: Any, binding: Binding, chain: list[str]) -> Any:
        if isinstance(value, _Macro):
            if value.name == _REQUIRED:
                raise ValueError(
                    f"{binding.place}: {chain[-1]} has to be set: --gin.{chain[-1]}=VALUE"
                )
            if value.name in chain:
                raise ValueError(f"{binding.place}: the macro {value.name} is its own value")
            macro = self.macros[value.name]
            macro.used = True
            return self._resolved(macro.value, macro, [*chain, value.name])
        if isinstance(value, list | tuple):
            return type(value)(self._resolved(element, binding, chain) for element in value)
        if isinstance(value, dict):
            return {key: self._resolved(element, binding, chain) for key, element in value.items()}
        return value

    def _read(self, path: pathlib.Path, *, above: tuple[pathlib.Path, ...]) -> None:
        if path.resolve() in above:
            raise ValueError(f"{path} includes itself")
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text in UTF-8: {error}") from error
        self._read_text(text, str(path), {}, above=(*above, path.resolve()))

    def _read_text(
        self, text: str, where: str, aliases: dict[str, str], *, above: tuple[pathlib.Path, ...]
    ) -> None:
        """Add the bindings of a text.

        Args:
            where: the file, or the flag.
            aliases: {alias: module} of the imports so far, to which this text's are added.
            above: the file and the files that include it.
        """

        def full(name: str) -> str:
            return self._full_name(name, aliases)

        delegate = _Delegate(full)
        with _located(where):
            for statement in self._parser.ConfigParser(text, delegate):
                kind = type(statement).__name__
                position = f"{where}:{statement.location.line_num}" if above else where
                if kind == "ImportStatement":
                    bound = statement.bound_name()
                    by_alias = statement.alias or statement.is_from
                    aliases[bound] = self._aliases[bound] = statement.module if by_alias else bound
                    self.modules.append(statement.module)
                elif kind == "IncludeStatement":
                    self._read(self._included(statement.filename, position, above), above=above)
                elif kind == "BindingStatement":
                    self._bind(statement, full, position)

    def _included(self, name: str, position: str, above: tuple[pathlib.Path, ...]) -> pathlib.Path:
        """Find an included file in the search folders, or in a folder above the including file.

        T5X's files include each other by their path in its repository.
        """
        for folder in (*self._folders, *(above[-1].parents if above else ())):
            if (folder / name).is_file():
                return folder / name
        raise ValueError(
            f"{position}: include {name!r}: there is no such file in the working directory, nor in "
            "--gin_search_paths, nor in a folder above the including file"
        )

    def _bind(self, statement: Any, full: Any, position: str) -> None:
        scope = f"{statement.scope}/" if statement.scope else ""
        written = f"{scope}{statement.selector}"
        if not statement.arg_name:
            self.macros[written] = Binding(written, statement.value, position)
            return
        key = statement.scope, full(statement.selector), statement.arg_name
        # Remove first, so that the dict keeps the order of the files.
        self.arguments.pop(key, None)
        written = f"{written}.{statement.arg_name}"
        self.arguments[key] = Binding(written, statement.value, position)

    def _full_name(self, selector: str, aliases: Mapping[str, str]) -> str:
        """Return the full name of a selector, from the imports or from an earlier binding."""
        first, dot, rest = selector.partition(".")
        module = (dict(self._aliases) | dict(aliases)).get(first) if dot else None
        if module:
            return f"{_SCRIPT.get(module, module)}.{rest}"
        known = {name for _, name, _ in self.arguments}
        matches = {name for name in known if f".{name}".endswith(f".{selector}")}
        if len(matches) > 1:
            raise ValueError(
                f"{selector} may be {' or '.join(sorted(matches))}: write a longer name"
            )
        return matches.pop() if matches else selector

    def _check_macros(self) -> None:
        for binding in (*self.arguments.values(), *self.macros.values()):
            for name in _macros_in(binding.value):
                if name not in self.macros and name != _REQUIRED:
                    raise ValueError(
                        f"{binding.place}: the macro %{name} is not defined: give the file that "
                        f"defines it, too, or --gin.{name}=VALUE.{hint(name, self.macros)}"
                    )


class _Delegate:
    """Delegate of gin's parser, which builds the values of macros and references."""

    def __init__(self, full: Any):
        self._full = full

    def configurable_reference(self, name: str, evaluate: bool) -> Reference:
        del evaluate
        scope, _, selector = name.rpartition("/")
        return Reference(self._full(selector), scope)

    def macro(self, name: str) -> _Macro:
        return _Macro(name)


def _parser() -> Any:
    try:
        from gin import config_parser
    except ImportError as error:
        raise ValueError(
            "--gin needs the package gin-config: pip install 't5x_like[gin]' (in a clone: pip "
            "install -e '.[gin]')"
        ) from error
    return config_parser


@contextlib.contextmanager
def _located(where: str) -> Iterator[None]:
    """Turn the parser's errors into a ValueError with file and line."""
    try:
        yield
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno and not where.startswith("--") else ""
        quotes = " (texts need quotes)" if where.startswith("--") else ""
        raise ValueError(f"{where}{line}: {' '.join(error.msg.split())}{quotes}") from error
    except tokenize.TokenError as error:
        raise ValueError(f"{where}: {error.args[0]}") from error


def _macros_in(value: Any) -> Iterator[str]:
    if isinstance(value, _Macro):
        yield value.name
    elif isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _macros_in(element)
