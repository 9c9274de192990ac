"""The vocabulary command: made once, reused, and one clear line for a wrong argument."""

import json
from pathlib import Path

import pytest

from t5x_like import vocabularies, vocabulary

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def flags(tmp_path):
    text = "\n".join(f"This is line {n} of a text about nothing in particular." for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    return {
        "data": DATA / "text_files.py",
        "set": f"files={tmp_path}/text.txt",
        "size": 60,
        "output": tmp_path / "made" / "text.model",
    }


def run(flags: dict, *more: str) -> None:
    vocabulary.main([*(f"--{name}={value}" for name, value in flags.items()), *more])


def error(capsys, flags: dict, *more: str) -> str:
    """The one line that the command ends with."""
    with pytest.raises(SystemExit, match="2"):
        run(flags, *more)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_it_trains_on_a_data_module_and_reuses_what_it_made(flags, capsys):
    run(flags)
    assert vocabularies.load(flags["output"]).vocab_size == 160
    first = flags["output"].stat().st_mtime_ns
    assert "text.model: 60 pieces" in capsys.readouterr().out
    run(flags)
    assert "was made with the same settings: nothing to do" in capsys.readouterr().out
    assert flags["output"].stat().st_mtime_ns == first


def test_a_model_made_otherwise_is_not_replaced_unasked(flags, capsys):
    run(flags)
    message = error(capsys, flags | {"size": 55})
    assert "size was 60 and is now 55" in message
    run(flags | {"size": 55}, "--overwrite")
    assert vocabularies.load(flags["output"]).vocab_size == 155
    record = Path(f"{flags['output']}.json")
    for other in ("[1]", "null", "{"):
        record.write_text(other)
        assert "its settings are not recorded" in error(capsys, flags | {"size": 55})
    record.unlink()
    assert "its settings are not recorded" in error(capsys, flags | {"size": 55})


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        ("wordpiece", 64, "vocab.txt"),
        ("byte_bpe", 270, "folder/"),
        ("albert", 40, "some.model"),
    ],
)
def test_every_kind_is_made_once_and_has_special_tokens(kind, size, name, flags, capsys):
    path = flags["output"].parent / name
    # As a string, for the slash at its end.
    flags |= {"kind": kind, "size": size, "output": f"{flags['output'].parent}/{name}"}
    run(flags)
    assert f"{path}: {size} pieces;" in capsys.readouterr().out
    vocabulary = vocabularies.load(flags["output"])
    assert vocabulary.vocab_size == size
    vocabularies.check_special_tokens(vocabulary)
    run(flags)
    assert "nothing to do" in capsys.readouterr().out


def test_a_record_that_is_older_than_a_flag_is_still_good(flags, capsys):
    run(flags)
    record = Path(f"{flags['output']}.json")
    made = json.loads(record.read_text())
    record.write_text(json.dumps({k: v for k, v in made.items() if k not in ("kind", "keep_case")}))
    run(flags)
    assert "nothing to do" in capsys.readouterr().out


def test_it_reads_no_more_than_its_limit(flags, capsys):
    run(flags | {"size": 40}, "--limit_chars=3000")
    read = capsys.readouterr().out
    assert "training on 56 documents, 3,014 characters" in read


def test_wrong_arguments_end_in_one_line_with_the_nearest_name(flags, capsys, tmp_path):
    assert "'--sise'" in (line := error(capsys, flags, "--sise=3"))
    assert "Did you mean '--size'" in line
    assert "Did you mean" in error(capsys, flags | {"data": DATA / "pydoc.py"})
    assert "Did you mean 'files'" in error(capsys, flags | {"set": "file=x.txt"})
    assert "tex.txt' matches no file. Did you mean 'text.txt'" in error(
        capsys, flags | {"set": f"files={tmp_path}/tex.txt"}
    )
    assert "required: --output" in error(capsys, {"data": "x", "size": 3})
    assert "size=3 must be 4 or more" in error(capsys, flags | {"size": 3})
    assert "Did you mean 'wordpiece'" in error(capsys, flags | {"kind": "wordpieces"})
    assert "must end in .txt" in error(capsys, flags | {"kind": "wordpiece"})
    assert "must not end in .json" in error(capsys, flags | {"output": tmp_path / "a.json"})
    wrong = error(capsys, flags | {"kind": "byte_bpe"}, "--keep_case")
    assert "kind='byte_bpe' has no setting 'keep_case'" in wrong
    assert "must be NAME=VALUE" in error(capsys, flags | {"set": "files"})
    assert "--size=9999" in error(capsys, flags | {"size": 9999})


def test_help_shows_a_command_that_works(capsys):
    with pytest.raises(SystemExit, match="0"):
        vocabulary.main(["--help"])
    shown = capsys.readouterr().out
    assert "--data=data/pydocs.py --size=8192" in shown
    assert "default: 0.9995" in shown
