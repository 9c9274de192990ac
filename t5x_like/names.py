"""Look up values, settings and the user's Python files by name; errors suggest the nearest name.

Importing a Python file that a setting names runs it. So a file that only the folder of a run or
checkpoint names is refused, unless the user trusts the folder's code or names the file, too.
"""

import collections.abc
import difflib
import functools
import importlib.util
import inspect
import numbers
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Collection)
# The data modules of this repository, which its configs name; `trust_clone` adds the modules of a
# clone that is used with an installed package.
_own_files = [pathlib.Path(__file__).resolve().parents[1] / "data"]

_MODULES = "modules"  # a setting that names modules to import (data/seqio_tasks.py)

_from_folders: dict[pathlib.Path, str] = {}  # Python file -> the folder whose settings name it
_trusted: set[pathlib.Path] = set()  # Python files that the user names or trusts
_trusts_all = False


def hint(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, and all allowed names."""
    allowed = sorted(str(name) for name in allowed)
    if not allowed:
        return ""
    near = nearest(name, allowed, cutoff=0.5)
    guess = f" Did you mean {near!r}?" if near else ""
    return f"{guess} Allowed: {', '.join(allowed)}"


def nearest(name: str, allowed: Iterable[str], *, cutoff: float) -> str:
    """Return the allowed name most similar to a name, or "" below the similarity `cutoff` (0-1)."""
    near = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=cutoff)
    return near[0] if near else ""


def choose(setting: str, name: str, table: Mapping[str, T]) -> T:
    """Return `table[name]`.

    Raises:
        ValueError: the table has no such name; the message contains the setting, the nearest name
            and all allowed names.
    """
    if isinstance(name, collections.abc.Hashable) and name in table:
        return table[name]
    raise ValueError(f"{setting}={name!r} does not exist.{hint(name, table)}")


def check_settings(
    where: str,
    function: Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    given: Iterable[str] = (),
) -> None:
    """Check settings of a config against the arguments of the function or class that gets them.

    If the function takes any keyword, names that it does not declare are left to the function that
    it passes them to.

    Args:
        where: the section of the config with the settings, such as "data.settings".
        given: names of arguments that do not come from the config.

    Raises:
        ValueError: the function has no such argument, the value has another type than its
            annotation, or an argument without a default is not set.
    """
    arguments = inspect.signature(function).parameters.values()
    parameters = {
        parameter.name: parameter for parameter in arguments if parameter.name not in given
    }
    any_keyword = [
        name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD
    ]
    for name in any_keyword:
        del parameters[name]
    kinds = type_hints(function)
    for name, value in settings.items():
        if name not in parameters and not any_keyword:
            raise ValueError(f"{where}.{name} does not exist.{hint(name, parameters)}")
        if name in parameters:
            check_type(f"{where}.{name}", value, kinds.get(name, Any))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in settings:
            raise ValueError(f"{where}.{name} is not set")


def check_type(setting: str, value: Any, kind: Any) -> None:
    """Check the value of a setting against a type hint.

    Raises:
        ValueError: the value has another type.
    """
    if not _fits(value, kind):
        raise ValueError(f"{setting}={value!r} must be {_describe(kind)}")


def note_code(settings: Any, *, folder: object) -> None:
    """Note the Python files that a folder's settings name: they run only if the user agrees."""
    for file in _python_files(settings):
        if file not in _trusted and not _is_own(file):
            _from_folders.setdefault(file, str(folder))


def trust_code(settings: Any) -> None:
    """Trust the Python files that the user's own settings name.

    A file that a folder has named before stays refused, because settings that are read from a
    folder, as configs/run.py does, cannot be distinguished from the user's.
    """
    _trusted.update(file for file in _python_files(settings) if file not in _from_folders)


def trust_clone(config: pathlib.Path) -> None:
    """Trust the data modules of the clone of this repository that has `config` in its configs/."""
    if config.parent.name == "configs":
        _own_files.append(config.resolve().parents[1] / "data")


def _is_own(file: pathlib.Path) -> bool:
    return any(file.is_relative_to(folder) for folder in _own_files)


def trust_folder(settings: Any) -> None:
    """Trust the Python files that a folder's settings name, because the user asked for it."""
    _trusted.update(_python_files(settings))


def trust_all_code() -> None:
    """Trust all Python files that folders name, for the whole process: `--trust_code`."""
    global _trusts_all
    _trusts_all = True


def trusts_code(settings: Any) -> bool:
    """Return whether settings name Python files outside this repository, and all are trusted."""
    files = [file for file in _python_files(settings) if not _is_own(file)]
    return bool(files) and (_trusts_all or _trusted.issuperset(files))


def _python_files(settings: Any) -> Iterable[pathlib.Path]:
    """Return the files of all strings `FILE.py` and `FILE.py:NAME` in nested settings.

    A module that `modules` names is the file that it would be in the working directory.
    """
    if isinstance(settings, Mapping):
        named = settings.get(_MODULES, ())
        modules = [named] if isinstance(named, str) else named
        files = [_file_of(name) for name in modules if isinstance(name, str)]
        settings = [*settings.values(), *files]
    if isinstance(settings, str):
        path = settings.partition(":")[0]
        return [pathlib.Path(path).expanduser().resolve()] if path.endswith(".py") else []
    parts = settings if isinstance(settings, list | tuple) else []
    return [file for part in parts for file in _python_files(part)]


def _file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def check_trusted_module(setting: str, module: str) -> None:
    """Check that a module that `modules` names may be imported.

    Raises:
        ValueError: a folder names it, and the user has not agreed.
    """
    _check_trusted(setting, _file_of(module))


def _check_trusted(setting: str, path: pathlib.Path | str) -> None:
    file = pathlib.Path(path).expanduser().resolve()
    if _trusts_all or file in _trusted or file not in _from_folders:
        return
    raise ValueError(
        f"{setting}={str(path)!r} is a Python file that {_from_folders[file]} names, and loading a "
        "folder does not run code: read the file, and if you trust it add --trust_code (of a "
        "function trust_code=True), or name the file in your own config"
    )


def import_file(setting: str, path: pathlib.Path | str, *, name: str) -> types.ModuleType:
    """Import a Python file that a setting names, as the module `name`.

    Raises:
        ValueError: it is not a Python file, only an untrusted folder names it, or running it raised
            an error.
    """
    _check_trusted(setting, path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{setting}={str(path)!r} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.setdefault(name, module)  # dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is module:
            del sys.modules[name]
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"{setting}={str(path)!r} cannot be read: {problem}") from error
    return module


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a function's arguments or of a class's fields."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function)
    except NameError:  # a name that is imported only for type checkers
        return {}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type; True for types that settings in a config cannot have."""
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin in _LISTS:
        item_kinds = [part for part in parts if part is not ...] or [Any]
        return isinstance(value, list | tuple) and all(
            any(_fits(item, part) for part in item_kinds) for item in value
        )
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, Mapping)
    if origin in (int, float):
        numeric = numbers.Integral if origin is int else numbers.Real
        # NaN is not equal to itself.
        return isinstance(value, numeric) and not isinstance(value, bool) and value == value
    return origin not in (bool, str, types.NoneType) or isinstance(value, origin)


def _describe(kind: Any) -> str:
    """Describe a type for the error message about a value that does not have it."""
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(part) for part in parts)
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin in _LISTS:
        words = dict.fromkeys(_describe(part) for part in parts if part is not ...)
        return f"a list of {' or '.join(words)}" if words else "a list"
    if origin in (dict, collections.abc.Mapping):
        return "a dict"
    return _WORDS.get(origin, "None" if origin is types.NoneType else str(origin))
