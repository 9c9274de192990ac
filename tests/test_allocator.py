"""Commands start again with tcmalloc where it is installed, and once."""

import os
import sys

import pytest

from t5x_like.experiment import startup


@pytest.fixture
def started(monkeypatch):
    """What processes are started, in a process without JAX."""
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    return calls


def test_a_command_starts_again_as_it_was_called(started, tmp_path):
    library = tmp_path / "libtcmalloc_minimal.so.4"
    library.touch()
    startup.use_tcmalloc(["/absent", str(tmp_path)])
    [(program, arguments, environment)] = started
    assert (program, arguments) == (sys.executable, sys.orig_argv)
    assert environment == os.environ | {"LD_PRELOAD": str(library)}


def test_without_the_library_nothing_happens(started, tmp_path):
    startup.use_tcmalloc([str(tmp_path)])
    assert not started


@pytest.mark.parametrize("preloaded", ["", "/usr/lib/libtcmalloc_minimal.so.4"])
def test_what_is_preloaded_stays(started, monkeypatch, tmp_path, preloaded):
    (tmp_path / "libtcmalloc_minimal.so.4").touch()
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    startup.use_tcmalloc([str(tmp_path)])
    assert not started
    assert startup.tcmalloc_in_use() == ("libtcmalloc_minimal.so.4" if preloaded else None)


def test_a_process_with_jax_goes_on(started, monkeypatch, tmp_path):
    (tmp_path / "libtcmalloc_minimal.so.4").touch()
    monkeypatch.setitem(sys.modules, "jax", sys)
    startup.use_tcmalloc([str(tmp_path)])
    assert not started
