"""Comparisons: from a prompt and ranked responses to the rows of a batch, decoder or both sides."""

import numpy as np
import pytest
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.sources import ColumnSource, columns

BYTES = vocabularies.load("bytes:0")
END = BYTES.eos_id
ROWS = [
    {"prompt": "hello", "responses": ["ab", "c"], "ranks": [2, 1]},
    {"prompt": "q", "responses": ["longest", "", "xy"], "ranks": [1, 2, 2]},
]


def first_batch(objective, *, lengths, converter):
    """The batch of ROWS, in order."""
    source = ColumnSource(lambda split: columns(ROWS), splits=("train",))
    sources.add_task(
        "compared",
        source=source,
        vocabulary=BYTES,
        preprocessors=objective.preprocessors,
        features=objective.features,
    )
    made = converters.build(converter, **objective.converter_settings, start=0)
    return next(
        SeqioBatches(
            "compared",
            split="train",
            batch_size=2,
            lengths=lengths,
            converter=made,
            shuffle=False,
        )
    )


def ids(text):
    return BYTES.encode(text)


def padded(tokens, length):
    return tokens + [0] * (length - len(tokens))


def test_rows_of_a_decoder_are_prompt_and_response_by_eye():
    objective = seqio_objectives.build("comparisons", responses=3, end_inputs=False)
    lengths = {"inputs": 4, "targets": 4}
    batch = first_batch(objective, lengths=lengths, converter="decoder_comparisons")
    assert batch["decoder_input_tokens"].shape == (2, 3, 9)
    # A prompt loses its beginning, a response its end.
    rows = [
        [[0, *ids("ello"), *ids("ab"), END], [0, *ids("ello"), *ids("c"), END], []],
        [[0, *ids("q"), *ids("lon"), END], [0, *ids("q"), END], [0, *ids("q"), *ids("xy"), END]],
    ]
    expected = [[padded(row, 9) for row in example] for example in rows]
    np.testing.assert_array_equal(batch["decoder_input_tokens"], expected)
    sizes = np.array([[len(row) for row in example] for example in rows])[..., None]
    places = np.arange(9)
    np.testing.assert_array_equal(batch["decoder_segment_ids"], places < sizes)
    np.testing.assert_array_equal(batch["ranks"], [[2, 1, 0], [1, 2, 2]])
    np.testing.assert_array_equal(
        batch["decoder_target_tokens"], np.roll(expected, -1, axis=2) * (places < 8)
    )
    # The start token and the prompt are 5 or 2 tokens; the last of them predicts the response.
    before = np.array([5, 2])[:, None, None]
    weights = (places >= before - 1) & (places < sizes - 1)
    np.testing.assert_array_equal(batch["decoder_loss_weights"], weights)
    np.testing.assert_array_equal(
        batch["decoder_causal_attention"], (places < before) & (sizes > 0)
    )


def test_an_encoder_reads_the_prompt_and_the_decoder_the_responses():
    objective = seqio_objectives.build("comparisons", responses=3)
    lengths = {"inputs": 4, "targets": 4}
    batch = first_batch(objective, lengths=lengths, converter="encoder_decoder_comparisons")
    prompts = [[*ids("llo"), END], padded([*ids("q"), END], 4)]
    np.testing.assert_array_equal(batch["encoder_input_tokens"], prompts)
    np.testing.assert_array_equal(batch["encoder_segment_ids"], np.array(prompts) > 0)
    first = [padded([0, *ids("ab"), END], 5), padded([0, *ids("c"), END], 5), [0] * 5]
    np.testing.assert_array_equal(batch["decoder_input_tokens"][0], first)
    np.testing.assert_array_equal(
        batch["decoder_loss_weights"][0], [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    )
    assert "decoder_causal_attention" not in batch


def test_the_rows_of_a_prompt_do_not_share_a_row_with_others():
    made = converters.build("decoder_comparisons")
    lengths = {"inputs": 4, "targets": 4}
    with pytest.raises(ValueError, match=r"data\.pack=True: .*'ranks'"):
        converters.check(made, features=made.features, lengths=lengths, pack=True)


def test_text_to_text_without_an_end_of_the_prompt():
    objective = seqio_objectives.build("text_to_text", end_inputs=False)
    rows = [{"inputs": "hello", "targets": "abcd"}, {"inputs": "q", "targets": "a"}]
    sources.add_task(
        "pairs",
        source=ColumnSource(lambda split: columns(rows), splits=("train",)),
        vocabulary=BYTES,
        preprocessors=objective.preprocessors,
        features=objective.features,
    )
    found = next(
        SeqioBatches(
            "pairs",
            split="train",
            batch_size=2,
            lengths={"inputs": 4, "targets": 4},
            converter=converters.build("prefix_lm", start=0),
            shuffle=False,
        )
    )
    expected = [[*ids("ello"), *ids("abc"), END], padded([*ids("q"), *ids("a"), END], 8)]
    np.testing.assert_array_equal(found["decoder_target_tokens"], expected)
    np.testing.assert_array_equal(
        found["decoder_loss_weights"], [[0] * 4 + [1] * 4, [0, 1, 1, 0, 0, 0, 0, 0]]
    )


@pytest.mark.parametrize(
    ("settings", "fields", "lengths", "message"),
    [
        ({"responses": 0}, ROWS[0], {}, r"responses=0 of comparisons must be 1 or more"),
        ({}, {"inputs": "a", "targets": "b"}, {}, r"rows lack prompt, responses, ranks: data/pref"),
        ({}, ROWS[0], {"targets": 2}, r"lengths\.targets=1: a response needs 2 tokens"),
    ],
)
def test_bad_settings_and_rows_are_named(settings, fields, lengths, message):
    features = {
        name: sources.seqio.Feature(sources.TaskVocabulary(BYTES)) for name in ("inputs", "targets")
    }
    dataset = tf.data.Dataset.from_tensors(fields)

    def examples():
        objective = seqio_objectives.build("comparisons", **settings)
        sizes = {"inputs": 4, "targets": 8} | lengths
        objective.preprocessors[0](dataset, sequence_length=sizes, output_features=features)

    with pytest.raises(ValueError, match=message):
        examples()
