"""From parallel files to BLEU by the commands: trained, averaged, decoded; and a grammar learnt."""

import json

import jax
import pytest

from configs import transformer
from t5x_like import evaluate, infer, partitioning, train
from t5x_like.config import parse
from t5x_like.experiment import data_side, reporting
from t5x_like.experiment.run import of_config
from t5x_like.inference import text_model
from tests.programs import command_flags

pytestmark = pytest.mark.usefixtures("one_device")

WORDS = ("one", "two", "three", "four", "five", "six")
TINY = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2, "d_k": 8, "d_v": 8, "vocab_size": 259}


def settings(folder, **changes):
    """The demo's config on a corpus of sentences and the same backwards, in bytes."""
    sides = {"source": [], "target": []}
    for number in range(120):
        words = [WORDS[(number * k + k * k) % 6] for k in range(1, 2 + number % 3)]
        sides["source"].append(f"{number} {' '.join(words)}")
        sides["target"].append(f"{' '.join(reversed(words))} {number}")
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    tiny = transformer.get_config("demo")
    tiny.workdir = str(folder / "run")
    tiny.model.update(TINY)
    files = {name: str(folder / name) for name in sides}
    tiny.data.update(
        {
            "module": "data/parallel_text.py",
            "settings": {**files, "held_out": 0.1},
            "task": "parallel_text",
            "vocabulary": "bytes:0",
            "lengths": {"inputs": 48, "targets": 48},
            "batch_size": 8,
            "shards": 1,  # of 120 rows; each more would need epochs of its own to fill its rows
        }
    )
    tiny.train.steps = 3
    tiny.checkpoint.every = 1
    tiny.evaluate.update({"every": 0, "batches": 2})
    tiny.decode.update({"num_beams": 2, "max_extra_tokens": 2})
    tiny.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    of_config(tiny)
    return tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train.main(parse(settings(folder)))
    return folder


def test_a_batch_of_the_config_is_packed_and_full(tmp_path):
    mesh = partitioning.make_mesh({"data": 1, "fsdp": 8}, devices=jax.devices())
    data = data_side.build(of_config(settings(tmp_path)).parts[0], mesh)
    batch = next(data.train_batches)
    assert batch["encoder_input_tokens"].shape == batch["decoder_target_tokens"].shape == (8, 48)
    assert batch["encoder_segment_ids"].max() > 1
    # Sentences of up to 21 bytes: at most so much of a row may be left over.
    assert (batch["encoder_segment_ids"] > 0).mean() > 27 / 48


@pytest.mark.slow
def test_evaluate_has_bleu_of_the_mean_of_checkpoints(trained, monkeypatch, capsys):
    command_flags.give(monkeypatch, average=3)
    evaluate.main(parse(settings(trained)))
    measured = json.loads((trained / "run/evaluation.json").read_text())["tasks"]["parallel_text"]
    assert {"cross_entropy", "translation/bleu", "translation/length_ratio"} <= set(measured)
    assert 0 <= measured["translation/bleu"] <= 100
    [newest] = reporting.read_log(trained / "run")["parallel_text/cross_entropy"].values()
    assert measured["cross_entropy"] != newest


def test_infer_translates_with_the_mean_of_checkpoints(trained, monkeypatch, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("7 one two\n")
    command_flags.give(monkeypatch, input=str(source), output=str(out), average=2)
    infer.main(parse(settings(trained)))
    [row] = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["inputs"] == "7 one two"
    # Nine bytes and an end, in a row of 16, and at most two more.
    assert len(row["prediction"].encode()) <= 18


def test_an_example_of_a_packed_row_is_its_first_text(trained, monkeypatch, capsys):
    asked = []

    def generate_tokens(model, prompts):
        asked.extend(prompts)
        return [[] for _ in prompts]

    monkeypatch.setattr(text_model.TextModel, "generate_tokens", generate_tokens)
    command_flags.give(monkeypatch, examples=3)
    infer.main(parse(settings(trained)))
    shown = [
        line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if "inputs: " in line
    ]
    assert [bytes(token - 3 for token in row[:-1]).decode() for row in asked] == shown
    assert all(row[-1] == 1 and 1 not in row[:-1] for row in asked)


def test_too_few_checkpoints_are_an_error(trained, monkeypatch, capsys):
    command_flags.give(monkeypatch, average=9)
    with pytest.raises(SystemExit):
        evaluate.main(parse(settings(trained)))
    assert "average=9: there are 3 intact checkpoints" in capsys.readouterr().err
