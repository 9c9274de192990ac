"""ByT5's tokenizer: a folder without a vocabulary file, read and written as Hugging Face does."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.objectives.noise import spans_to_sentinels
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary

GOLDEN = json.loads(
    (Path(__file__).resolve().parents[1] / "golden/byt5_tokenizer.json").read_text()
)
SETTINGS = GOLDEN["tokenizer_config.json"]


def load(folder, **changed):
    settings = {k: v for k, v in {**SETTINGS, **changed}.items() if v is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return vocabularies.load(folder)


def test_texts_have_the_ids_of_hugging_face(tmp_path):
    vocabulary = load(tmp_path)
    assert vocabulary.vocab_size == 384
    assert vocabulary.encode("<extra_id_0><extra_id_124>") == [259, 383]
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"], strict=True):
        assert vocabulary.encode(text) == ids, text
    in_a_graph = tf.function(TaskVocabulary(vocabulary).encode_tf)
    found = in_a_graph(tf.constant(GOLDEN["texts"][-2]))
    assert found.numpy().tolist() == GOLDEN["ids"][-2]


def test_ids_are_decoded_as_hugging_face_does_up_to_the_end(tmp_path):
    vocabulary = load(tmp_path)
    compared = 0
    for ids, text in zip(GOLDEN["ids"], GOLDEN["decoded"], strict=True):
        if not {0, 1, 2} & set(ids):  # which it writes by their names
            assert vocabulary.decode(ids) == text
            compared += 1
    assert compared > 15
    broken = [one for row in GOLDEN["ids"] for one in row[1::3] if one > 2]
    assert vocabulary.decode(broken) == GOLDEN["broken"]
    assert vocabulary.decode([0, 2, 100, 260, 101, 1, 102]) == "a<extra_id_1>b"
    assert vocabulary.decode([500, 100]) == "a"


def test_the_last_bytes_stand_for_spans_as_in_pretraining(tmp_path):
    vocabulary = load(tmp_path)
    published = vocabularies.load("bytes:0")
    assert vocabulary.first_sentinel == published.first_sentinel == 258
    assert vocabulary.sentinels == published.sentinels
    tokens, mask = np.array([[10, 11, 12, 13]]), np.array([[False, True, False, True]])
    [found] = spans_to_sentinels(tokens, mask, first=vocabulary.first_sentinel)
    np.testing.assert_array_equal(found, [10, 258, 12, 257])


@pytest.mark.parametrize("changed", [{"extra_ids": 125}, {"extra_ids": None}])
def test_an_old_folder_has_the_same_tokens(changed, tmp_path):
    names = [token["content"] for token in SETTINGS["added_tokens_decoder"].values()][3:]
    expected = load(tmp_path)
    old = {"added_tokens_decoder": None, "extra_special_tokens": None, **changed}
    assert load(tmp_path, **old) == expected
    assert load(tmp_path, **old, additional_special_tokens=names) == expected
    assert load(tmp_path, **old, additional_special_tokens=names[:9]).vocab_size == 268


def test_other_settings_are_refused_in_a_line(tmp_path):
    with pytest.raises(ValueError, match="tokenizer_class='T5Tokenizer', whose vocabulary is in a"):
        load(tmp_path, tokenizer_class="T5Tokenizer")
    tokens = {"0": {"content": "<pad>"}, "261": {"content": "<extra_id_2>"}}
    with pytest.raises(ValueError, match=r"ids \[261\]; allowed: 259 and those after"):
        load(tmp_path, added_tokens_decoder=tokens)
