"""Notebooks: one form, imports that resolve, outputs of one run; the slow test runs them anew."""

import ast
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/)"
)
ADDRESS = re.compile(r'REPOSITORY = "[^"]*"')
# Folders of a machine at the start of a path; addresses on the web have a host before theirs.
MACHINE_PATH = re.compile(r"(?<![\w.:/<>{}-])/(?:home|root|Users|tmp|work|content|mnt|opt|usr)/")

every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


@functools.cache
def read(name):
    return nbformat.read(NOTEBOOKS[name], as_version=nbformat.NO_CONVERT)


def code_cells(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def trees(name):
    """The syntax trees of the code cells; IPython's own commands become calls."""
    to_python = TransformerManager().transform_cell
    return [ast.parse(to_python(cell.source)) for cell in code_cells(name)]


def texts_of(cell):
    """The source of a cell and its outputs as text."""
    yield cell.source
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield from (text for kind, text in output.get("data", {}).items() if "text" in kind)


def test_there_is_a_notebook_for_each_wing_and_the_page_lists_all():
    wings = {"encoders", "decoders", "encoder_decoders", "own_corpus", "plan_a_pod_run", "subwords"}
    assert NOTEBOOKS.keys() == wings
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert set(re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", page)) == wings


@every_notebook
def test_it_is_valid_and_begins_with_its_title_and_the_install_cell(name):
    nbformat.validate(read(name))
    title, install, use = read(name).cells[:3]
    assert title.cell_type == "markdown"
    assert title.source.startswith("# ")
    assert title.source.splitlines()[2] == BADGE
    assert install.source == code_cells("decoders")[0].source
    assert use.source.startswith("install(")


@every_notebook
def test_it_was_run_once_from_top_to_bottom_without_an_error(name):
    cells = code_cells(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [out for cell in cells for out in cell.outputs if out.output_type == "error"] == []
    figures = [out for cell in cells for out in cell.outputs if "image/png" in out.get("data", {})]
    assert figures
    assert "Traceback" not in "".join(text for cell in cells for text in texts_of(cell))


@every_notebook
def test_it_has_no_path_of_a_machine(name):
    found = [text for cell in read(name).cells for text in texts_of(cell)]
    assert [text for text in found if MACHINE_PATH.search(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("folder = '/content/drive'", True),
        ("file /tmp/x: line 3", True),
        ("https://cloud.google.com/tmp/x", False),
        ("runs/tmp/x", False),
        ("../tmp/x and {folder}/tmp/x", False),
    ],
)
def test_a_path_of_a_machine_is_seen(text, found):
    assert bool(MACHINE_PATH.search(text)) is found


@functools.cache
def names_in(module):
    """The names that a module of this repository defines or imports at its top; None elsewhere."""
    if module.partition(".")[0] not in ("t5x_like", "configs", "data"):
        return None
    found = importlib.util.find_spec(module)
    if found.origin is None:  # a folder of modules
        return set()
    defined = set()
    for node in ast.parse(Path(found.origin).read_text("utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        else:
            inside = list(ast.walk(node))
            defined |= {one.id for one in inside if isinstance(one, ast.Name)}
            if "__all__" in defined:  # a package that imports on first use
                defined |= {one.value for one in inside if isinstance(one, ast.Constant)}
    return defined


def exists(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def missing(tree):
    """The modules, and the names in modules of this repository, that do not exist."""
    modules = {}  # what a module is called in the notebook, and the module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names}
            yield from (one.name for one in node.names if not exists(one.name))
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                name = f"{node.module}.{one.name}"
                own = names_in(node.module) if exists(node.module) else set()
                if own is None or one.name in own:
                    continue
                if exists(name):
                    modules[one.asname or one.name] = name
                else:
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            own = module and names_in(module)
            if own and node.attr not in own and not exists(f"{module}.{node.attr}"):
                yield f"{module}.{node.attr}"


@every_notebook
def test_its_imports_and_what_it_uses_of_them_exist(name):
    whole = ast.Module([node for tree in trees(name) for node in tree.body], [])
    assert list(missing(whole)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import nowhere.at_all", ["nowhere.at_all"]),
        ("from t5x_like import vocabularys", ["t5x_like.vocabularys"]),
        ("from t5x_like.names import chose", ["t5x_like.names.chose"]),
        ("from configs import t5\nt5.get_confg", ["configs.t5.get_confg"]),
        ("from configs import t5\nt5.get_config", []),
        ("import t5x_like\nt5x_like.from_pretrained\nt5x_like.train", []),
        ("import numpy as np\nnp.anything", []),
    ],
)
def test_what_does_not_exist_is_found(source, found):
    assert list(missing(ast.parse(source))) == found


def addresses(folder):
    """The lines with the address of the repository in setup.py and in each notebook."""
    cells = [
        nbformat.read(path, as_version=4).cells[1].source
        for path in sorted((folder / "notebooks").glob("*.ipynb"))
    ]
    return [ADDRESS.findall(text) for text in ((folder / "setup.py").read_text(), *cells)]


def test_setup_and_the_notebooks_have_one_address():
    (first, *others) = addresses(ROOT)
    assert len(first) == 1
    assert others == [first] * len(NOTEBOOKS)


def test_one_command_sets_the_address_everywhere(tmp_path):
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    make = ["make", "-C", str(tmp_path), "repository"]
    for address in ("https://host/one/t5x_like", "https://host/two/own.git"):  # a fork of a fork
        subprocess.run([*make, f"URL={address}"], check=True, capture_output=True)
        assert addresses(tmp_path) == [[f'REPOSITORY = "{address}"']] * (1 + len(NOTEBOOKS))
    done = subprocess.run([*make, "URL=two"], capture_output=True, text=True)
    assert "make repository URL=https://github.com/OWNER/t5x_like" in done.stdout
    assert done.returncode == 2


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Runs the install cell on a machine without the package, with other packages and tools."""

    def run(*, repository="https://host/owner/t5x_like", packages=(), tools=(), **extras):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        commands, clone = [], tmp_path / "t5x_like_clone"

        def call(command, *, check):
            assert check
            commands.append([str(part) for part in command])
            clone.mkdir(exist_ok=True)
            shutil.copy(ROOT / "requirements.lock", clone)

        def find(module):
            cloned = clone.exists() and module == "t5x_like"
            return SimpleNamespace(origin=str(clone / module / "__init__.py")) if cloned else None

        pairs = (package.partition("==") for package in packages)
        installed = [SimpleNamespace(name=name, version=number) for name, _, number in pairs]
        monkeypatch.setattr(subprocess, "run", call)
        monkeypatch.setattr(importlib.util, "find_spec", find)
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: installed)
        monkeypatch.setattr(shutil, "which", lambda tool: tool if tool in tools else None)
        source = ADDRESS.sub(f"REPOSITORY = {repository!r}", code_cells("decoders")[0].source)
        cell = {}
        exec(source, cell)
        cell["install"](**extras)
        assert Path.cwd() == clone
        assert sys.path[0] == str(clone)
        return commands

    return run


# Colab's releases are from its published list (googlecolab/backend-info on GitHub: pip-freeze.txt).
@pytest.mark.parametrize(
    ("packages", "tools", "jax"),
    [
        ((), (), "jax=="),
        (("jax==0.7.2", "flax==0.11.2"), (), "jax=="),  # Colab in August 2026
        (("jax==0.7.2", "jax-cuda12-plugin==0.7.2"), ("nvidia-smi",), "jax[cuda12]=="),
        (("jax==0.7.2", "libtpu==0.0.21.1"), (), "jax[tpu]=="),
        (("jax==0.10.0",), (), "jax"),
        (("jax==0.12.0.1", "jax-cuda12-plugin==0.12"), (), "jax"),  # for GPUs, without a GPU
        (("jax==0.10.2", "jax-cuda12-plugin==0.10.2"), ("nvidia-smi",), "jax[cuda12]"),
        (("jax==0.10.2", "jax-cuda13-plugin==0.10.2"), ("nvidia-smi",), "jax[cuda13]"),
        (("torch==2.11.0",), ("nvidia-smi",), "jax[cuda12]=="),
        (("jax==0.10.2", "libtpu==0.0.40"), (), "jax[tpu]"),
    ],
)
def test_the_install_cell_clones_and_installs_with_the_jax_of_the_machine(
    machine, packages, tools, jax, tmp_path
):
    clone = str(tmp_path / "t5x_like_clone")
    git, pip = machine(packages=packages, tools=tools, seqio="seqio")
    assert git == ["git", "clone", "--depth=1", "https://host/owner/t5x_like", clone]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--editable"]
    lock = (ROOT / "requirements.lock").read_text()
    of_jax, of_flax = (re.search(rf"^{name}==(\S+)", lock, re.M)[1] for name in ("jax", "flax"))
    renewed = [f"{jax}{of_jax}", f"flax=={of_flax}"] if jax.endswith("==") else [jax]
    assert pip == [*install, f"{clone}[seqio]", *renewed]


def test_the_install_cell_asks_for_the_address_and_installs_no_extra_without_need(machine):
    with pytest.raises(ValueError, match="set REPOSITORY above"):
        machine(repository="")
    _, pip = machine(packages=("jax==0.10.2",))
    assert pip[-2].endswith("t5x_like_clone")


def test_the_install_cell_asks_for_a_restart_where_an_imported_package_was_renewed(
    machine, monkeypatch
):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "of the new release")
    with pytest.raises(RuntimeError, match="was renewed: restart the session"):
        machine()


def test_the_install_cell_changes_nothing_where_all_is_installed(monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    before = list(sys.path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    cell = {}
    exec(code_cells("decoders")[0].source, cell)
    cell["install"](seqio="seqio", plan="libtpu")
    assert Path.cwd() == ROOT
    assert sys.path == before


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a notebook of several trainings: beside other tests, half an hour
@every_notebook
def test_it_runs_from_top_to_bottom(name, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # as a user has it: one CPU device, optimized programs
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    nbclient.NotebookClient(notebook, timeout=3600, resources=resources).execute()
