"""Marian's tokenizer: a model for each language, read and written as Hugging Face does."""

import base64
import json
import types
from pathlib import Path

import flax.linen as nn
import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.inference.likelihood import PromptFormat
from t5x_like.inference.text_model import TextModel
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.sources import ColumnSource, columns

GOLDEN = json.loads(
    (Path(__file__).resolve().parents[1] / "golden/marian_tokenizer.json").read_text()
)
MODELS = ("source.spm", "target.spm")
END, UNKNOWN = 0, 1
TEXT = "The quick dog"


@pytest.fixture
def folder(tmp_path):
    for name in MODELS:
        (tmp_path / name).write_bytes(base64.b64decode(GOLDEN[name]))
    (tmp_path / "vocab.json").write_text(json.dumps(GOLDEN["vocab.json"]))
    return tmp_path


def test_texts_of_both_languages_have_the_ids_of_hugging_face(folder):
    vocabulary = vocabularies.load(folder)
    size = len(GOLDEN["vocab.json"])
    assert (vocabulary.vocab_size, vocabulary.eos_id, vocabulary.unk_id) == (size, END, UNKNOWN)
    assert vocabulary.pad_id == vocabulary.start_id == size - 1
    for text, source, target in zip(*map(GOLDEN.get, ("texts", "source", "target")), strict=True):
        assert vocabulary.encode(text) == source, text
        assert vocabulary.targets.encode(text) == target, text
    assert vocabulary.encode(TEXT) != vocabulary.targets.encode(TEXT)
    assert vocabulary.targets.targets == vocabulary.targets != vocabulary


def test_ids_are_decoded_as_hugging_face_does_up_to_the_end(folder):
    vocabulary = vocabularies.load(folder)
    for ids, text in zip(GOLDEN["target"], GOLDEN["decoded"], strict=True):
        assert vocabulary.decode([one for one in ids if one not in vocabulary.special_ids]) == text
    ids = vocabulary.encode(TEXT)
    assert vocabulary.decode([*ids, END, *ids]) == TEXT
    assert vocabulary.decode([*ids, 9_999]) == f"{TEXT}<unk>"
    assert vocabulary.piece(END) == "</s>"


def test_pairs_for_training_are_of_two_languages(folder):
    vocabulary = vocabularies.load(folder)
    objective = seqio_objectives.build("text_to_text")
    rows = [{"inputs": TEXT, "targets": TEXT}]
    sources.add_task(
        "translated",
        source=ColumnSource(lambda split: columns(rows), splits=("train",)),
        vocabulary=vocabulary,
        preprocessors=objective.preprocessors,
        features=objective.features,
    )
    converter = converters.build("encoder_decoder", start=vocabulary.start_id)
    lengths = {"inputs": 40, "targets": 40}
    read = {"split": "train", "batch_size": 1, "lengths": lengths, "converter": converter}
    batch = next(SeqioBatches("translated", shuffle=False, **read))
    for name, own in (("encoder_input", vocabulary), ("decoder_target", vocabulary.targets)):
        expected = [*own.encode(TEXT), END]
        np.testing.assert_array_equal(batch[f"{name}_tokens"][0][: len(expected)], expected)
    assert batch["decoder_input_tokens"][0, 0] == vocabulary.pad_id


class _SidesOnly(nn.Module):
    """Stands for an encoder-decoder that is not called."""

    sides = ("encoder", "decoder")


def test_what_is_scored_after_a_prompt_is_of_the_target_language(folder):
    vocabulary = vocabularies.load(folder)
    prompt_format = PromptFormat(length=40, inputs=40, start=vocabulary.pad_id, ends=(True, True))
    network = {"module": _SidesOnly(), "put": None}
    pretrained = types.SimpleNamespace(generation=GenerationSettings(), **network)
    model = TextModel(pretrained, vocabulary, prompt_format, batch_size=1, decode={})
    pair = model.pair(TEXT, TEXT)
    assert pair.prompt == [*vocabulary.encode(TEXT), END]
    assert pair.continuation == [*vocabulary.targets.encode(TEXT), END]


@pytest.mark.parametrize("name", MODELS)
def test_a_missing_or_damaged_model_is_one_line(folder, name):
    (folder / name).write_bytes(b"no model")
    with pytest.raises(ValueError, match=rf"{name} beside it is not a SentencePiece model"):
        vocabularies.load(folder)
    (folder / name).unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    with pytest.raises(ValueError, match=rf"is of a Marian and needs the file .*{name}'"):
        vocabularies.load(folder)


def test_other_vocabularies_of_marian_are_refused(folder):
    (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    with pytest.raises(ValueError, match="has a vocabulary for each language"):
        vocabularies.load(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(ValueError, match="has no <pad>, which Marian needs"):
        vocabularies.load(folder)
