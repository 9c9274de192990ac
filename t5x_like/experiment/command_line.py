"""Command lines with a config: `--config=FILE:SIZE --config.key=value`.

Instead of a config file, `--gin=FILE --gin.NAME=VALUE` reads the gin files of a T5X run.

A command calls `start` before its other imports, which take seconds, so that help and errors are
quick; only a run with several processes imports JAX earlier, to connect them.
"""

import argparse
import ast
import contextlib
import inspect
import json
import math
import os
import pathlib
import platform
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import ml_collections
from absl import flags, logging

from t5x_like import paths, processes
from t5x_like.config import SETTINGS, RunSettings, check_renamed, editable, one_line_errors
from t5x_like.config import parse as typed
from t5x_like.experiment import gin_files, startup
from t5x_like.names import choose, hint, import_file, trust_all_code, trust_clone, trust_code

_CONFIG = "config"
_MOST_COMPILED = 10 << 30  # bytes; JAX deletes the least recently used programs
_HELP = {"--help", "-help", "-h", "--helpshort", "--helpfull"}
_SOURCES = {
    "--config": ("", "FILE or FILE:SIZE"),
    "--gin": ("", "gin file of a run of T5X, instead of --config; --gin.NAME=VALUE binds a name"),
}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_LESS_MEMORY = (
    "Less memory is needed with a smaller data.batch_size or data.lengths, more devices in "
    "mesh.fsdp or mesh.model, and in training more train.microbatches or another model.remat "
    "(python -m t5x_like.plan has the memory of a training step)"
)
TRUST = "trust_code"
_TRUST_HELP = "run Python files that the folder of a run or checkpoint names (system, data.module)"


def start(
    description: str | None,
    *,
    computes: bool = True,
    several_processes: bool = False,
    **options: tuple[Any, str],
) -> RunSettings:
    """Start a command: read its config and flags, and prepare this process for what it does.

    Args:
        description, options: see `read`.
        computes: whether the command runs a network, so that memory is allocated by tcmalloc and
            compiled programs are cached.
        several_processes: whether it may run in several processes (JAX_NUM_PROCESSES).
    """
    if computes:
        startup.use_tcmalloc()
    if several_processes:
        connect_processes()
    settings = read(description, **options)
    if computes:
        keep_compiled_programs(settings)
    return settings


def wants_help() -> bool:
    """Return whether the command was asked for its help."""
    return bool(_HELP & set(sys.argv[1:]))


@processes.ending_together()
def read(description: str | None, **options: tuple[Any, str]) -> RunSettings:
    """Read the config and the other flags of the command, or print its help and exit.

    A wrong flag, file, size or setting prints one line on standard error and exits with status 2.

    Args:
        description: the docstring of the command, printed as its help.
        options: {flag besides the config: (default, help)}; a default of None makes a string flag.
            The values are in `flags.FLAGS` afterwards.
    """
    if wants_help():
        sys.stdout.write(f"{description}\n{_help({**options, TRUST: (False, _TRUST_HELP)})}")
        sys.exit(0)
    end_quietly_on_interrupt()
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    startup.silence_tensorflow()
    options[TRUST] = False, _TRUST_HELP
    for name, (default, text) in options.items():
        if isinstance(default, bool):
            flags.DEFINE_bool(name, default, text)
        elif isinstance(default, int):
            flags.DEFINE_integer(name, default, text)
        else:
            flags.DEFINE_string(name, default, text)
    with one_line_errors(ValueError, OSError, flags.Error):
        config, rest = parse(sys.argv[1:])
        _parse_flags(rest, [_CONFIG, *options])
        return typed(config)
    raise AssertionError("an error ends the command")


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn the error of a device without enough memory into one line and exit status 2."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if not re.search("RESOURCE_EXHAUSTED|Out of memory", reason):
            raise
        sys.stderr.write(f"error: {reason}. {_LESS_MEMORY}\n")
        sys.exit(2)


def connect_processes() -> None:
    """Connect the processes of a run, if there are several; call it before `read`.

    A config may open the run that it starts from (configs/instructgpt.py). With several processes
    that uses their devices, after which the processes can no longer be connected.
    """
    if "JAX_NUM_PROCESSES" in os.environ and not wants_help():
        startup.silence_tensorflow()  # before JAX reads its C++ log level on import
        from t5x_like import partitioning

        partitioning.connect_processes()


def keep_compiled_programs(settings: RunSettings) -> None:
    """Let JAX cache compiled programs in the folder `compilation_cache`.

    JAX_COMPILATION_CACHE_DIR takes precedence. If the folder cannot be made, nothing is cached.
    """
    import jax  # takes a second: not before the flags are read

    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    if settings.compilation_cache == "auto":
        folder = paths.cache("compiled") / _instructions()
    elif settings.compilation_cache:
        folder = pathlib.Path(settings.compilation_cache).expanduser()
    else:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", _MOST_COMPILED)
        # The default is programs that compile for a second; a small network has none. Each new
        # program takes the time to look at all others, so that the smallest are not worth it.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _instructions() -> str:
    """Return a name for this CPU's instruction set, which compiled programs depend on."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{zlib.crc32(features.encode()):08x}"


def _parse_flags(arguments: Sequence[str], known: Sequence[str]) -> None:
    for word in arguments:
        if problem := _problem_of_empty(word):
            raise ValueError(problem)
    try:
        positional = flags.FLAGS([sys.argv[0], *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        name = error.flagname
        allowed = (f"--{flag}" for flag in known)
        raise ValueError(f"--{name} does not exist.{hint(f'--{name}', allowed)}") from error
    if positional:
        raise ValueError(
            f"{positional[0]!r} is not a flag: settings are written --config.key=value"
        )


def parse(arguments: Sequence[str]) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Return the config of a command line with all `--config.key=value` applied, and the rest.

    Raises:
        ValueError: there is neither `--config` nor `--gin`, or a file, size, setting or value is
            wrong.
    """
    gin, arguments = gin_files.split(arguments)
    file, changes, rest = "", [], []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name.split(".")[0] != _CONFIG:
            rest.append(word)
            continue
        if not equals:  # `--config FILE`, or a bool flag without a value
            value = "true" if name in _bare(arguments) else next(words)
        if name == _CONFIG:
            file = value
        else:
            changes.append((name.removeprefix(_CONFIG + "."), value))
    # Before the config file is run: it may read the folder of a run.
    trust_code([{key.rpartition(".")[2]: _literal(value)} for key, value in changes])
    if f"--{TRUST}" in rest or f"--{TRUST}=true" in rest:
        trust_all_code()
    if file and gin.files:
        raise ValueError(f"--config={file!r} and --gin={gin.files[0]!r}: give one of them")
    if gin.files or gin.bindings:
        from t5x_like.experiment import t5x_runs  # imports JAX

        config = editable(t5x_runs.load(gin))
    else:
        config = load_file(file)
    for key, value in changes:
        set_value(config, key, value)
    return config.lock(), rest


def _bare(arguments: Sequence[str]) -> set[str]:
    """Return the names of the flags that no value follows."""
    following = [*arguments[1:], "--"]
    pairs = zip(arguments, following, strict=True)
    return {word.lstrip("-") for word, after in pairs if after.startswith("--")}


def load_file(text: str) -> ml_collections.ConfigDict:
    """Return the config that `get_config` of a file returns, given `FILE` or `FILE:SIZE`.

    Raises:
        ValueError: the file, size or function does not exist, or the file cannot be imported.
    """
    file, _, size = text.partition(":")
    path = pathlib.Path(file)
    if not path.is_file():
        folder = path.parent if file and path.parent.is_dir() else pathlib.Path("configs")
        files = [str(sibling) for sibling in folder.glob("*.py")]
        wrong = f"--config={text!r}: {file!r} does not exist" if file else "--config is not set"
        raise ValueError(f"{wrong}; give a FILE or FILE:SIZE.{hint(file, files)}")
    trust_clone(path.absolute())
    module = import_file("--config", path, name=f"{_CONFIG}_{path.stem}")
    get_config = getattr(module, "get_config", None)
    if get_config is None:
        raise ValueError(f"--config={text!r}: {file} has no function get_config")
    arguments = [size] if size else []
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"--config={text!r}: get_config of {file}: {error}") from error
    config = get_config(*arguments)
    trust_code(config.to_dict())
    return config


def set_value(config: ml_collections.ConfigDict, key: str, text: str) -> None:
    """Set `key`, such as train.steps, to a value written as text, keeping the setting's type.

    Sections that take any setting (dicts in SETTINGS) may get new settings, which are checked by
    the functions that read them.

    Raises:
        ValueError: the config has no such setting, or the text is not of its type.
    """
    check_renamed(key)
    node, (*parents, last) = config, key.split(".")
    open_parts = [part for part, (default, _) in SETTINGS.items() if isinstance(default, dict)]
    for number, name in enumerate((*parents, last)):
        before = ".".join(parents[:number])
        if not isinstance(node, ml_collections.ConfigDict):
            raise ValueError(f"--config.{key}: {before} is a value and has no settings")
        if name not in node and not any(f"{before}.".startswith(f"{p}.") for p in open_parts):
            raise ValueError(f"--config.{key}: {name!r} does not exist.{hint(name, node)}")
        if number < len(parents):
            if name not in node:
                node[name] = ml_collections.ConfigDict()
            node = node[name]
    node[last] = _value(key, text, node) if last in node else _literal(text)


def _value(key: str, text: str, node: ml_collections.ConfigDict) -> Any:
    """Parse a text as the type that the setting has in `node`."""
    last = key.rpartition(".")[2]
    kind = node.get_type(last)
    value = _literal(text)
    if kind is str:
        return text
    if kind is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if kind is int and type(value) is int:
        return value
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (tuple, list):
        return kind(value) if isinstance(value, tuple | list) else kind([value])
    if kind is ml_collections.ConfigDict and isinstance(value, dict):
        return ml_collections.ConfigDict(value)
    if kind is type(None):
        return value
    words = {bool: "True or False", int: "a whole number", float: "a number"}
    raise ValueError(f"{key}={text!r} must be {words.get(kind, 'a dict')}; it was {node[last]!r}")


def _literal(text: str) -> Any:
    """Return the value of a Python literal, or the text itself if it is not one."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end this process without a traceback, with status 130."""
    hook = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            hook(kind, error, trace)

    sys.excepthook = quiet


class ArgumentParser(argparse.ArgumentParser):
    """Parser of a command without a config; a wrong argument prints one line, with status 2."""

    def __init__(self, description: str | None, *, prog: str):
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(f"--{TRUST}", action="store_true", help=_TRUST_HELP)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, by default `sys.argv`."""
        end_quietly_on_interrupt()
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in sys.argv[1:] if args is None else args:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                self.error(f"the flag {flag!r} does not exist.{hint(flag, known)}")
            if problem := _problem_of_empty(word):
                self.error(problem)
        parsed = super().parse_args(args, namespace)
        if getattr(parsed, TRUST, False):
            trust_all_code()
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        sys.stderr.write(f"error: {message} (see --help)\n")
        sys.exit(2)


def _problem_of_empty(word: str) -> str:
    """Return the error message for a flag with an empty value (`--seeds=`) or an empty word."""
    flag, equals, value = word.partition("=")
    if word and (value or not equals or not word.startswith("-")):
        return ""
    return f"{flag or 'an argument'} is empty: give it a value, or leave it out"


def count(text: str) -> int:
    """Parse a positive integer, as the `type` of a flag of `ArgumentParser`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer, 1 or more")
    return int(text)


def check_file(setting: str, path: str | os.PathLike[str]) -> None:
    """Check that a file can be written, before the work whose result goes there.

    Raises:
        ValueError: the path is a folder, or cannot be written.
    """
    file = paths.path(path)
    if file.is_dir():
        raise ValueError(f"{setting}={str(path)!r} is a folder: give a file")
    if not paths.in_bucket(file) and file.exists() and not os.access(file, os.W_OK):
        raise ValueError(f"{setting}={str(path)!r} may not be written: change its permissions")
    check_folder(setting, file.parent)


def check_folder(setting: str, path: str | os.PathLike[str]) -> None:
    """Check that a folder can be written, or made if it does not exist.

    Raises:
        ValueError: part of the path is a file, or is not writable.
    """
    if "://" in os.fspath(path):
        paths.check_bucket(setting, path)
        return
    folder = pathlib.Path(path).expanduser().absolute()
    nearest = next(ancestor for ancestor in (folder, *folder.parents) if ancestor.exists())
    problem = "may not be written: change its permissions, or"
    if not nearest.is_dir():
        problem = "is a file:"
    elif os.access(nearest, os.W_OK | os.X_OK):
        return
    raise ValueError(f"{setting}={str(path)!r}: {nearest} {problem} give another folder")


class WriteError(OSError):
    """A file could not be written: no space, no permission, storage gone."""


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of writing a file into a `WriteError` that names it (a full disk's does not).

    Args:
        path: the file, or its folder.
        kinds: error classes to catch besides OSError.

    Raises:
        WriteError: the file cannot be written.
    """
    failures: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except WriteError:
        raise
    except failures as error:
        # TensorFlow's messages look like "FILE; No space left on device".
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0].rpartition("; ")[2]
        raise WriteError(
            f"cannot write {os.fspath(path)}: {reason}: make room there or choose another place, "
            "and start the same command again"
        ) from error


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as JSON, after making the folder of the file.

    Raises:
        WriteError: the file cannot be written.
    """
    file = paths.path(path)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(as_json(value, indent=2))


def as_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return a value as JSON in UTF-8, and a line end; letters of all scripts are not escaped.

    Half a surrogate pair, which UTF-8 cannot encode, is escaped.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace")


def as_standard_json(value: Any) -> bytes:
    """Return what `as_json` does, with null for NaN and infinity, which the standard lacks."""
    return as_json(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return [*map(_finite, value)] if isinstance(value, list | tuple) else value


def _help(options: dict[str, tuple[Any, str]]) -> str:
    command_flags = {f"--{name}": value for name, value in options.items()}
    settings = {f"--config.{key}": value for key, value in SETTINGS.items()}
    lines = [
        f"  {flag}={default!r}\n      {text}"
        for flag, (default, text) in (_SOURCES | command_flags).items()
    ]
    lines.append("Settings and their defaults (a config file has its own):")
    lines += [f"  {key}={default!r}\n      {text}" for key, (default, text) in settings.items()]
    return "Flags:\n" + "\n".join(lines) + "\n"


def run_action(
    arguments: Sequence[str],
    actions: Mapping[str, Callable[[Sequence[str]], None]],
    *,
    help_text: str,
) -> None:
    """Run the action that the first argument names with the other arguments.

    Without arguments, or for --help, print `help_text`; a bad argument prints one line and exits
    with status 2.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(help_text)
        return
    with one_line_errors():
        choose("action", arguments[0], actions)(arguments[1:])
