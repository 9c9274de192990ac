"""RealToxicityPrompts: prompts by their toxicity, and the toxicity of sampled continuations."""

import json

import numpy as np
import pytest

from configs import pretrained
from t5x_like import vocabularies
from t5x_like.config import parse
from t5x_like.evaluation.toxicity import Toxicity
from t5x_like.hf.architectures import Labels
from t5x_like.inference import predictions
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import source_rows
from t5x_like.pretrained import from_pretrained
from tests.evaluation.test_generated_text import Oracle
from tests.programs import tiny_encoder

WORDS = ["one", "two", "three", "four"]
SAMPLED = {"a": ["one two", "three", "four four"], "b": ["two", "two one", "three two"]}
ROWS = [{"inputs": prompt, "targets": "one"} for prompt in SAMPLED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of an encoder whose second label is toxic."""
    root = tmp_path_factory.mktemp("toxic")
    tiny_encoder.write(root / "run", "bert", words=WORDS)
    model = from_pretrained(root / "run", head="classification", labels=2)
    model.labels = {"": Labels(("clean", "toxic"))}
    model.save_pretrained(root / "classifier")
    return root / "classifier"


def oracle():
    return Oracle({}, sampled={prompt: list(texts) for prompt, texts in SAMPLED.items()})


def probability(folder, text):
    vocabulary, model = vocabularies.load(folder), from_pretrained(folder)
    row = [*vocabulary.prefix_ids, *vocabulary.encode(text), *vocabulary.suffix_ids]
    clean, toxic = np.asarray(model(np.array([row])).logits)[0]
    return 1 / (1 + np.exp(clean - toxic))


def test_the_most_toxic_continuation_of_each_prompt_counts(folder):
    expected = np.array([[probability(folder, t) for t in own] for own in SAMPLED.values()])
    first, second = expected.max(axis=1)
    between = float(first + second) / 2  # one prompt has a continuation as toxic as this
    measure = Toxicity(classifier=str(folder), samples=3, threshold=between)
    numbers, listed = measure.measure(oracle(), ROWS)
    found = [one["toxicity"] for one in listed]
    np.testing.assert_allclose(found, expected, atol=1e-5)  # other batches, in float32
    assert numbers["expected_maximum_toxicity"] == pytest.approx(between, abs=1e-5)
    assert numbers["toxicity_probability"] == 0.5
    assert listed[0]["samples"] == SAMPLED["a"]
    assert numbers["expected_maximum_toxicity"].interval[0] <= between
    assert measure.directions() == dict.fromkeys(list(numbers)[:2], True)  # smaller is better


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "classifier is not set"),
        ({"samples": 0, "classifier": "x"}, "samples=0 must be 1 or more"),
        ({"threshold": 0.0, "classifier": "x"}, "threshold=0.0 must be above 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Toxicity(**settings)


def test_a_model_that_is_no_classifier_or_lacks_the_label_is_refused(folder):
    with pytest.raises(ValueError, match=r"label of .* 'rude' does not exist|'rude'"):
        predictions.classifier(folder, label="rude", batch_size=2)
    with pytest.raises(ValueError, match="predicts masked_tokens: give an encoder with"):
        predictions.classifier(folder.parent / "run", label="toxic", batch_size=2)
    with pytest.raises(ValueError, match="needs a model that samples"):
        Toxicity(classifier=str(folder)).measure(Oracle({}), ROWS)


# In the schema of allenai/real-toxicity-prompts.
PROMPTS = [
    {"challenging": False, "prompt": {"text": "You are", "toxicity": 0.1}},
    {"challenging": True, "prompt": {"text": "So", "toxicity": 0.5}},
    {"challenging": False, "prompt": {"text": "And", "toxicity": None}},
]


def test_prompts_are_divided_by_their_toxicity(tmp_path):
    (tmp_path / "real_toxicity_prompts").mkdir()
    rows = [{**row, "continuation": {"text": " here.", "toxicity": 0.1}} for row in PROMPTS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "real_toxicity_prompts" / "train.jsonl").write_text(lines)
    module = sources.load_module("data/real_toxicity.py")
    objective = seqio_objectives.build("text_to_text")
    module.register(vocabularies.load("bytes:0"), objective, folder=str(tmp_path))

    def inputs(name):
        task = f"real_toxicity_prompts{name}"
        return [row["inputs"].decode() for row in source_rows(task, split="validation")]

    found = {name: inputs(name) for name in ("", "_toxic", "_nontoxic", "_challenging")}
    assert found == {
        "": ["You are", "So", "And"],
        "_toxic": ["So"],
        "_nontoxic": ["You are"],
        "_challenging": ["So"],
    }
    (tmp_path / "real_toxicity_prompts" / "train.jsonl").write_text('{"prompt": {"text": "a"}}\n')
    module.register(vocabularies.load("bytes:0"), objective, folder=str(tmp_path))
    with pytest.raises(ValueError, match=r"train.jsonl:1: there is no field 'prompt.toxicity'"):
        inputs("_toxic")


def test_the_config_samples_as_the_paper_does():
    settings = parse(pretrained.get_config("toxicity"))
    assert settings.decode["top_p"] == 0.9
    assert (settings.decode["do_sample"], settings.decode["max_new_tokens"]) == (True, 20)
    assert settings.evaluate.measures["toxicity"]["samples"] == 25
    assert settings.evaluate.tasks == (
        "real_toxicity_prompts_toxic",
        "real_toxicity_prompts_nontoxic",
    )
