"""A value of a wrong type in any setting is an error of one line, and never a traceback."""

import importlib

import ml_collections
import pytest

from t5x_like import config, train
from t5x_like.config import editable, parse

WRONG = ("x", -1, 0.5, (), None, ("x",), {"x": 1}, {"x": {"y": 1}}, {"x": "y"}, float("nan"))
TEXT = {"module": "data/languages/homonyms.py", "task": "homonyms", "vocabulary": "bytes"}


class Begun(Exception):  # noqa: N818
    """Training would begin."""


def leaves(settings, prefix=""):
    """Each setting and each part of a setting that is a dict: its path."""
    for name, value in settings.items():
        yield f"{prefix}{name}"
        if isinstance(value, ml_collections.ConfigDict):
            yield from leaves(value, f"{prefix}{name}.")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_wrong_value_never_ends_in_a_traceback(name, tmp_path, monkeypatch, capsys):
    def begin(*_):
        raise Begun

    monkeypatch.setattr(train, "_fingerprints", begin)
    base = importlib.import_module(f"configs.{name}").get_config("demo")
    base.update({"workdir": str(tmp_path / "run"), "train": {"steps": 1, "phases": ()}})
    base.phases = {}
    base.data.update({**TEXT, "batch_size": 8})
    base.data.settings = {}
    base.data.lengths = dict.fromkeys(base.data.lengths, 32)
    base.model.vocab_size = 384
    settings, begun, refused, failed = parse(base), 0, 0, []
    for path in leaves(editable(settings)):
        for wrong in WRONG:
            changed = editable(settings)
            *parents, last = path.split(".")
            node = changed
            for parent in parents:
                node = node[parent]
            with node.unlocked(), node.ignore_type():
                node[last] = wrong
            try:
                with config.one_line_errors():
                    read = parse(changed)
                train.main(read)
            except Begun:
                begun += 1
            except SystemExit as end:
                message = capsys.readouterr().err
                if end.code != 2 or message.count("\n") != 1:
                    failed.append((path, wrong, message))
                refused += 1
    assert failed == []
    assert refused > 500
    assert begun > 10  # so not everything was refused for another reason
