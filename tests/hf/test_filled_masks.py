"""Masks of a text, filled in from the shell with any encoder's folder as transformers fills them.

`golden/make_filled_masks.py` froze what the fill-mask pipeline of transformers 5.24 answers.
"""

import importlib.util
import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from t5x_like import infer
from t5x_like.config import parse
from t5x_like.pretrained import from_pretrained
from tests.golden import drawn_weights
from tests.preprocessing.test_tokenizer_folders import write
from tests.programs import command_flags, in_process

ROOT = Path(__file__).parents[2]
FROZEN = json.loads((ROOT / "tests/golden/filled_masks.json").read_text("utf-8"))
# Float32 sums of two frameworks differ in their order.
TOLERANCE = 1e-5


def make(name, folder):
    """Write a frozen folder, with weights that are drawn from their names."""
    frozen = FROZEN[name]
    write(frozen["tokenizer"], folder)
    (folder / "config.json").write_text(json.dumps(frozen["config"]))
    tensors = {key: drawn_weights.draw(key, tuple(own)) for key, own in frozen["tensors"].items()}
    save_file(tensors, folder / "model.safetensors")
    return frozen["rows"]


def config_of(folder, tmp_path):
    path = ROOT / "configs/pretrained.py"
    spec = importlib.util.spec_from_file_location("config_pretrained", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.get_config()
    made.initialize, made.data.batch_size = str(folder), 3
    return made


@pytest.mark.parametrize("name", FROZEN)
def test_masks_are_filled_in_as_by_transformers(name, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = make(name, folder)
    lines = "".join(row["text"] + "\n" for row in rows)
    monkeypatch.setattr("sys.stdin", in_process.standard_input(lines))
    command_flags.give(monkeypatch, input="-", output=str(tmp_path / "filled.jsonl"))
    infer.main(parse(config_of(folder, tmp_path)))
    answers = map(json.loads, (tmp_path / "filled.jsonl").read_text("utf-8").splitlines())
    for row, answer in zip(rows, answers, strict=True):
        assert answer["inputs"] == row["text"]
        for found, expected in zip(answer["masks"], row["masks"], strict=True):
            tokens = [one["token_str"].strip() for one in expected]
            assert [one["token"] for one in found] == tokens
            scores = pytest.approx([one["score"] for one in expected], abs=TOLERANCE)
            assert [one["probability"] for one in found] == scores


def test_weights_that_the_head_does_not_use_are_named_once(tmp_path, caplog):
    make("bert_pretraining", tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    changed = {**stored, "architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    for _ in range(2):
        from_pretrained(tmp_path)
    [line] = [record.getMessage() for record in caplog.records]
    # Those that transformers' BertForMaskedLM reports as unexpected.
    assert line == (
        f"{tmp_path} has weights that the model does not use and does not save again: "
        "bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias, "
        "... (4 in all)"
    )


@pytest.mark.parametrize("name", ["bert", "bert_pretraining", "roberta"])
def test_a_folder_that_is_used_whole_has_no_such_line(name, tmp_path, caplog):
    make(name, tmp_path)
    from_pretrained(tmp_path)
    assert not caplog.records


def test_the_pooler_beside_the_head_of_bigbird_is_named(tmp_path, caplog):
    make("bigbird", tmp_path)
    from_pretrained(tmp_path)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("does not save again: bert.pooler.bias, bert.pooler.weight")
