"""The rules of the house, read from the source: who imports whom, sizes, docstrings, the README."""

import ast
import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from t5x_like import systems

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("t5x_like", "configs", "data", "launch", "benchmarks", "tests")
FILES = [ROOT / "setup.py", *(path for part in PARTS for path in (ROOT / part).rglob("*.py"))]
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in FILES}

# The rooms of t5x_like, the lowest first, and what else of the package each may import.
MAY_IMPORT = {
    "hub": (),
    "names": (),
    "paths": (),
    "reading": ("names", "paths"),
    "config": ("names", "paths"),
    "processes": (),
    "stop_signal": ("processes",),
    "partitioning": ("names", "processes"),
    "vocabularies": ("hub", "names", "paths", "reading"),
    "batches": ("names", "paths", "reading", "vocabularies"),
    "objectives": ("names", "paths", "reading", "vocabularies", "batches"),
    "grain_pipeline": ("names", "paths", "reading", "vocabularies", "batches", "objectives"),
    "preprocessing": (
        *("names", "paths", "reading", "vocabularies", "batches", "objectives"),
        "grain_pipeline",
    ),
    "nn": ("names", "partitioning"),
    "losses": ("names", "partitioning", "nn"),
    "decoding": ("names", "partitioning", "nn"),
    "hf": ("names", "decoding"),
    "systems": ("names", "partitioning", "nn", "losses", "decoding", "hf"),
    "training": ("names", "partitioning", "stop_signal"),
    "checkpoints": ("names", "paths", "processes", "partitioning"),
    "pretrained": (
        "hub",
        "names",
        "paths",
        "partitioning",
        "nn",
        "systems",
        "decoding",
        "checkpoints",
        "hf",
        "vocabularies",
    ),
    "experiment": (
        "hub",
        "names",
        "paths",
        "reading",
        "config",
        "processes",
        "stop_signal",
        "partitioning",
        "vocabularies",
        "batches",
        "objectives",
        "preprocessing",
        "grain_pipeline",
        "nn",
        "losses",
        "systems",
        "training",
        "decoding",
        "checkpoints",
        "hf",
        "pretrained",
    ),
    "__init__": ("pretrained",),
}
MAY_IMPORT["inference"] = (*MAY_IMPORT["experiment"], "experiment")
MAY_IMPORT["research.__init__"] = ()
MAY_IMPORT["research.inspection"] = (*MAY_IMPORT["inference"], "inference")
MAY_IMPORT["evaluation"] = (*MAY_IMPORT["inference"], "inference")
MAY_IMPORT["research.planning"] = (*MAY_IMPORT["experiment"], "experiment")
MAY_IMPORT["research.scaling_laws"] = (*MAY_IMPORT["research.planning"], "research.planning")
MAY_IMPORT["research.studies"] = (
    *MAY_IMPORT["research.scaling_laws"],
    *("research.scaling_laws", "inference", "evaluation"),
)
COMMANDS = {
    *("train", "evaluate", "infer", "page", "convert", "vocabulary", "plan", "scaling", "study"),
    *("inspect", "tokenize", "__main__"),
}
GROUND = {"__init__", "hub", "names", "partitioning", "paths", "processes", "stop_signal"}
# Only these may load TensorFlow; the rest runs on a machine that has none.
WITH_TENSORFLOW = {"preprocessing"}
TENSORFLOW = (
    "tensorflow",
    "tensorflow_text",
    "tensorflow_datasets",
    "seqio",
    "clu.metric_writers",
    "clu.periodic_actions",
)
TORCH = ("torch", "transformers")


def imports(tree: ast.Module, *, package: str = "") -> Iterator[str]:
    """The dotted names that a file imports, at its top or within a function.

    `from a import b` gives a.b, since b may be a module; `package` resolves relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the prefixes or within one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def part_of(file: str) -> str | None:
    """`nn` for t5x_like/nn/linear.py, `train` for t5x_like/train.py, None elsewhere.

    The rooms of `research` import each other, in the order of the table: `research.planning`.
    """
    top, *rooms = file.removesuffix(".py").split("/")
    return ".".join(rooms[: 2 if rooms[:1] == ["research"] else 1]) if top == "t5x_like" else None


def all_imports() -> Iterator[tuple[str, str]]:
    """Every (file, imported name) of the repository."""
    for file, tree in TREES.items():
        package = Path(file).parent.as_posix().replace("/", ".")
        yield from ((file, name) for name in imports(tree, package=package))


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import a.b", "t5x_like.nn", ["a.b"]),
        ("from a import b, c", "t5x_like.nn", ["a.b", "a.c"]),
        ("from . import b", "t5x_like.nn", ["t5x_like.nn.b"]),
        ("from .b import c", "t5x_like.nn", ["t5x_like.nn.b.c"]),
        ("from ..training import c", "t5x_like.nn", ["t5x_like.training.c"]),
        ("def f():\n  import a", "t5x_like.nn", ["a"]),
    ],
)
def test_every_form_of_import_is_seen(source, package, expected):
    assert list(imports(ast.parse(source), package=package)) == expected


def test_only_commands_and_ground_lie_at_the_top_of_the_package():
    top = {path.stem for path in (ROOT / "t5x_like").glob("*.py")}
    assert top == COMMANDS | GROUND


def test_every_part_of_the_package_has_its_place_in_the_table_of_imports():
    parts = {part_of(file) for file in TREES} - {None}
    assert sorted(parts - MAY_IMPORT.keys() - COMMANDS) == [], "add the new part to MAY_IMPORT"


def test_the_parts_import_only_what_lies_below_them():
    wrong = []
    for file, name in all_imports():
        part = part_of(file)
        if part and part not in COMMANDS and under(name, ("t5x_like",)):
            # `import t5x_like.names` and `from t5x_like import names` both give t5x_like.names.
            allowed = tuple(f"t5x_like.{one}" for one in (part, *MAY_IMPORT.get(part, ())))
            wrong += [] if under(name, allowed) else [f"{file} imports {name}"]
    assert wrong == []


def test_the_package_never_imports_what_a_user_edits():
    assert [
        f"{file} imports {name}"
        for file, name in all_imports()
        if part_of(file) and under(name, ("data", "configs", "tests"))
    ] == []


def test_tensorflow_stays_with_preprocessing_and_the_commands():
    assert [
        f"{file} imports {name}"
        for file, name in all_imports()
        if under(name, TENSORFLOW)
        and part_of(file) not in WITH_TENSORFLOW
        and not file.startswith(("data/", "tests/"))
    ] == []


def test_torch_is_only_in_scripts_that_compare_with_it():
    scripts = (
        *("tests/golden/", "benchmarks/beside_pytorch", "benchmarks/pytorch_networks.py"),
        "benchmarks/beside_flax_theirs.py",  # transformers' Flax BERT
    )
    assert [
        f"{file} imports {name}"
        for file, name in all_imports()
        if under(name, TORCH) and not file.startswith(scripts)
    ] == []


def test_everything_else_imports_without_loading_tensorflow():
    modules = [
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in TREES
        if part_of(file) and part_of(file) not in WITH_TENSORFLOW
    ]
    program = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    loaded = sorted({set(TENSORFLOW + TORCH)!r} & sys.modules.keys())
    if loaded:
        sys.exit(f"importing {{module}} loads {{loaded}}")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_two_files_of_the_package_have_one_name_with_two_meanings():
    names = collections.Counter(
        path.stem for path in (ROOT / "t5x_like").rglob("*.py") if path.stem != "__init__"
    )
    # A system's vocabulary may have its name.
    assert {name for name, count in names.items() if count > 1} <= set(systems.names())


def test_every_file_begins_with_its_purpose():
    assert [file for file, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_a_file_is_at_most_700_lines():
    lengths = {path.relative_to(ROOT): path.read_text("utf-8").count("\n") for path in FILES}
    assert {str(file): length for file, length in lengths.items() if length > 700} == {}


def test_the_body_of_a_function_is_at_most_40_lines():
    long = {}
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                # The signature and the docstring describe shapes and errors; only code counts.
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                length = node.end_lineno - first.lineno + 1
                long |= {f"{file}:{node.name}": length} if length > 40 else {}
    assert long == {}


def test_no_file_is_a_drawer_of_odds_and_ends():
    drawers = re.compile(r"(^|.*_)(utils?|helpers?|misc|common)\.py")
    assert [path.name for path in FILES if drawers.fullmatch(path.name)] == []


def test_no_test_is_skipped_or_expected_to_fail():
    ways = {"skip", "skipif", "xfail", "importorskip"}
    wrong = [
        f"{file}:{node.lineno} {node.attr}"
        for file, tree in TREES.items()
        if file.startswith("tests/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ways
    ]
    assert wrong == []


def test_test_files_have_names_of_their_own_and_no_packages():
    names = collections.Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "conftest.py"] == []
    assert "__init__.py" not in names


def test_the_readme_lists_every_system_and_calls_only_the_others_coming():
    rows = re.findall(
        r"^\| (`.*?) \|(.*)\|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
    )
    here = {name for names, rest in rows if "coming" not in rest for name in names.split(", ")}
    wanted = {f"`{name}`" for name in systems.names()}
    assert here == wanted, "the table of systems in README.md has a row for each system"


def test_the_files_that_the_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = []
    for page in pages:
        text = page.read_text("utf-8")
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
        missing += [f"{page.name}: {one}" for one in links if not (page.parent / one).exists()]
        # `t5x_like/` is left out in the pages: systems/t5.py.
        named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|sh))[`:]", text)
        places = (ROOT, ROOT / "t5x_like")
        missing += [
            f"{page.name}: {one}"
            for one in named
            if not one.startswith("runs/") and not any((place / one).exists() for place in places)
        ]
    assert missing == []


def test_the_tests_run_on_eight_simulated_devices():
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8
