"""The model card of a run that is converted: README.md, with the header that the hub reads.

The header is YAML between lines of ---, with library_name, tags and base_model, as
huggingface.co/docs/hub/model-cards describes it.
"""

import json

import pytest
import yaml

from t5x_like import config
from t5x_like.experiment import reporting
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.model_card import ModelCard
from tests.programs import tiny_writer

FILES = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}


@pytest.fixture
def run(tmp_path):
    """The folder of a run at step 20, and what its checkpoint stores."""
    made = tiny_writer.settings("gpt2")
    made.initialize = "openai-community/gpt2@main"
    made.data.vocabulary = str(tmp_path / "secret" / "words.model")
    rows = [
        {"step": 10, "books/loss": 3.0},
        {"step": 20, "train/loss": 1.0},
        {"step": 20, "books/loss": 2.5, "books/perplexity": None},
    ]
    (tmp_path / reporting.LOG).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"st')
    stored = {
        "step": 20,
        "data_shards": 1,
        "config": config.to_dict(config.parse(made)),
        "fingerprints": {"hub": {made.initialize: "1" * 40}},
    }
    return tmp_path, stored


def test_a_card_has_the_run_its_numbers_and_how_to_load_it(run):
    folder, stored = run
    evaluated = {"step": 20, "tasks": {"": {"documents/perplexity": 12.25}}}
    (folder / "evaluation.json").write_text(json.dumps(evaluated))
    text = ModelCard(stored, folder / "checkpoints" / "20").text(FILES)
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header) == {
        "library_name": "transformers",
        "tags": ["t5x_like", "gpt2"],
        "base_model": "openai-community/gpt2",
    }
    assert "trained up to step 20 from `openai-community/gpt2@main`." in body
    assert "| `books/loss` | 2.5 |\n| `documents/perplexity` | 12.25 |\n\n" in body
    assert "train/loss" not in body
    assert 'GPT2LMHeadModel.from_pretrained("FOLDER")' in body
    shown = json.loads(body.split("```json\n")[1].partition("```")[0])
    assert shown["model"] == stored["config"]["model"]
    assert shown["data"]["vocabulary"] == ".../words.model"
    assert str(folder) not in text


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/20"])
def test_numbers_are_of_the_same_step_and_of_no_average(run, inside):
    folder, stored = run
    (folder / "evaluation.json").write_text(json.dumps({"step": 10, "tasks": {"": {"x": 1.0}}}))
    (folder / "checkpoints").mkdir()
    assert ModelCard(stored, folder / inside).numbers() == {"books/loss": 2.5}
    averaged = ModelCard(stored, folder / inside, average=2)
    assert averaged.numbers() == {}
    assert "has none at this step" in averaged.text(FILES)


def test_transformers_generates_with_the_settings_of_the_run(tmp_path):
    """`generation_config.json` has what `infer` generates with, besides the ids."""
    made = tiny_writer.settings("gpt2")
    made.decode = {"num_beams": 4, "no_repeat_ngram_size": 3, "max_new_tokens": 8}
    model = from_pretrained(tiny_writer.write(tmp_path / "run", made))
    model.save_pretrained(tmp_path / "hf")
    written = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert made.decode.to_dict().items() <= written.items()
    assert from_pretrained(tmp_path / "hf").generation == model.generation.override(made.decode)
