"""Predictions of fine-tuned decoders: rows as in training, labels by name, missing fields."""

import numpy as np
import pytest

from t5x_like.inference.decoder_predictions import Choices, DecoderClasses
from t5x_like.vocabularies import word_bpe

IDS = {piece: n for n, piece in enumerate(["<unk>", "a</w>", "b</w>", "c</w>", "\n</w>"])}
START, DELIMITER, EXTRACT = range(len(IDS), len(IDS) + 3)


def made(objective, *, rows=1):
    kind = Choices if objective == "gpt_multiple_choice" else DecoderClasses
    return kind(
        objective=objective,
        vocabulary=word_bpe.WordBpe(IDS, []),
        labels=("no", "yes"),
        length=8,
        max_rows=rows,
    )


def test_rows_are_those_of_training_and_padded_alike():
    head = made("gpt_similarity", rows=2)
    [example] = head.rows({"text_a": "a", "text_b": "b c"})
    assert example == [[START, 1, DELIMITER, 2, 3, EXTRACT], [START, 2, 3, DELIMITER, 1, EXTRACT]]
    batch = head.collate([example], batch_size=2)
    assert batch["decoder_input_tokens"].shape == (2, 2, 8)
    assert batch["decoder_segment_ids"].sum(axis=2).tolist() == [[6, 6], [0, 0]]
    assert made("gpt_classification").rows({"text_a": "a b"}) == [[[START, 1, 2, EXTRACT]]]


def test_a_class_is_predicted_by_its_name_and_a_choice_by_its_text():
    found = [{"probabilities": np.array([0.25, 0.75])}]
    assert made("gpt_classification").predict({"text_a": "a"}, [], found) == {
        "prediction": "yes",
        "probabilities": {"no": 0.25, "yes": 0.75},
    }
    item = {"text_a": "a", "choices": ["b", "c"]}
    found = [{"probabilities": np.array([0.75, 0.25, 0.0])}]
    assert made("gpt_multiple_choice", rows=3).predict(item, [], found) == {
        "prediction": "b",
        "answer": 0,
        "probabilities": [0.75, 0.25],
    }


@pytest.mark.parametrize(
    ("objective", "item", "message"),
    [
        ("gpt_classification", {"text": "a"}, "needs the string 'text_a', and has text"),
        ("gpt_similarity", {"text_a": "a"}, "needs the string 'text_b'"),
        ("gpt_multiple_choice", {"text_a": "a"}, "needs `choices`, up to 2 strings"),
        ("gpt_multiple_choice", {"text_a": "a", "choices": ["a"] * 3}, "up to 2 strings"),
    ],
)
def test_an_error_names_what_an_item_lacks(objective, item, message):
    with pytest.raises(ValueError, match=message):
        made(objective, rows=2).rows(item)
