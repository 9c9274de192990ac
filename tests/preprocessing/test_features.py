"""Converters and packing: the right fields, the same content packed and unpacked, as seqio's."""

import dataclasses

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.batches import conversion, converters
from t5x_like.batches.packing import Packer, to_batch

LENGTHS = {"inputs": 10, "targets": 10}
GROUPED = {"decoder_rows", "encoder_rows", "decoder_comparisons", "encoder_decoder_comparisons"}
PACKED = [name for name, one in converters.CONVERTERS.items() if one.packs and name not in GROUPED]
ONE = {"inputs": [7, 8, 5, 9], "targets": [3, 9, 1]}
TWO = {"inputs": [8, 4, 9, 3, 2], "targets": [4, 1]}


def arrays(example):
    return {name: np.array(tokens, np.int32) for name, tokens in example.items()}


def batch_of(rows, *, converter, lengths=LENGTHS, pack=True):
    """The batch of rows of examples."""
    sequences = [[converter.sequences(arrays(one)) for one in row] for row in rows]
    return to_batch(sequences, converter=converter, lengths=lengths, pack=pack)


def random_examples(count, *, aligned=False, seed=0):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 6, size=[count, 2])
    if aligned:
        sizes[:, 1] = sizes[:, 0]
    return [
        {
            "inputs": generator.integers(3, 99, size=inputs).astype(np.int32),
            "targets": generator.integers(3, 99, size=targets).astype(np.int32),
            "positions": generator.integers(1, 99, size=targets).astype(np.int32),
        }
        for inputs, targets in sizes
    ]


def packed_rows(examples, *, converter, lengths=LENGTHS, open_rows=16):
    packer = Packer(converter.row_lengths(lengths), open_rows=open_rows)
    rows = [row for one in examples for row in packer.add(converter.sequences(one))]
    return rows + packer.close()


def assert_rows(batch, **expected):
    """Each field has one row, with these values and zeros after them."""
    for name, values in expected.items():
        [row] = batch[name]
        np.testing.assert_array_equal(row, np.pad(values, [0, len(row) - len(values)]), name)


def test_encoder_decoder_of_two_examples_in_a_row():
    batch = batch_of([[ONE, TWO]], converter=converters.build("encoder_decoder"))
    assert_rows(
        batch,
        encoder_input_tokens=[7, 8, 5, 9, 8, 4, 9, 3, 2],
        encoder_segment_ids=[1, 1, 1, 1, 2, 2, 2, 2, 2],
        encoder_positions=[0, 1, 2, 3, 0, 1, 2, 3, 4],
        decoder_input_tokens=[0, 3, 9, 0, 4],
        decoder_target_tokens=[3, 9, 1, 4, 1],
        decoder_loss_weights=[1, 1, 1, 1, 1],
        decoder_segment_ids=[1, 1, 1, 2, 2],
        decoder_positions=[0, 1, 2, 0, 1],
    )
    assert len(batch) == 8


def test_without_packing_only_the_encoders_padding_has_segment_ids():
    batch = batch_of([[ONE]], converter=converters.build("encoder_decoder"), pack=False)
    assert_rows(
        batch,
        encoder_input_tokens=[7, 8, 5, 9],
        encoder_segment_ids=[1, 1, 1, 1],
        decoder_input_tokens=[0, 3, 9],
        decoder_target_tokens=[3, 9, 1],
        decoder_loss_weights=[1, 1, 1],
    )
    assert len(batch) == 5


def test_a_fragment_keeps_its_places_in_the_text_packed_or_not():
    first, second = ONE | {"positions": [1, 2, 3]}, TWO | {"positions": [4, 5]}
    converter = converters.build("fragment", start=2)
    expected = {"decoder_input_tokens": [2, 3, 9, 2, 4], "decoder_positions": [1, 2, 3, 4, 5]}
    batch = batch_of([[first, second]], converter=converter)
    assert_rows(batch, **expected, encoder_positions=[0, 1, 2, 3, 0, 1, 2, 3, 4])
    batch = batch_of([[first]], converter=converter, pack=False)
    assert_rows(batch, **{name: values[:3] for name, values in expected.items()})
    assert "decoder_segment_ids" not in batch


def test_prefix_lm_marks_what_sees_the_inputs():
    batch = batch_of([[ONE, TWO]], converter=converters.build("prefix_lm"))
    assert_rows(
        batch,
        decoder_target_tokens=[7, 8, 5, 9, 3, 9, 1, 8, 4, 9, 3, 2, 4, 1],
        decoder_input_tokens=[0, 7, 8, 5, 9, 3, 9, 0, 8, 4, 9, 3, 2, 4],
        decoder_loss_weights=[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1],
        decoder_causal_attention=[1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0],
        decoder_segment_ids=[1] * 7 + [2] * 7,
        decoder_positions=[*range(7), *range(7)],
    )


def test_prefix_lm_with_loss_on_all_tokens_and_shorter_rows():
    converter = converters.build("prefix_lm", loss_on="all", length=6)
    batch = batch_of([[ONE]], converter=converter, pack=False)
    assert_rows(batch, decoder_target_tokens=[7, 8, 5, 9, 3, 9], decoder_loss_weights=[1] * 6)


@pytest.mark.parametrize(
    ("loss_on", "weights"),
    [("changed", [0, 1, 0, 0]), ("weights", [0, 1, 1, 0]), ("all", [1, 1, 1, 1])],
)
def test_encoder_loss(loss_on, weights):
    names = ("inputs", "targets", "loss_weights")
    converter = converters.build("encoder", features=names, loss_on=loss_on)
    example = {"inputs": [5, 9, 7, 0], "targets": [5, 6, 7, 0], "loss_weights": [0, 1, 1, 0]}
    batch = batch_of([[example]], converter=converter, pack=False)
    assert_rows(
        batch,
        encoder_input_tokens=[5, 9, 7, 0],
        encoder_target_tokens=[5, 6, 7, 0],
        encoder_loss_weights=weights,
        # A token may be 0: only these distinguish it from padding.
        encoder_segment_ids=[1, 1, 1, 1],
    )
    assert len(batch) == 4


def test_encoder_fields_of_tokens_and_of_whole_examples():
    names = ("label", "inputs", "token_types", "value", "answer")
    converter = converters.build("encoder", features=list(names))
    example = arrays({"inputs": [5, 9, 7], "token_types": [0, 0, 1], "label": [2]})
    example |= {"answer": np.array([1, 2], np.int32), "value": np.array([-0.3], np.float32)}
    rows = [[converter.sequences(example)], []]
    lengths = {"inputs": 5, "targets": 3}  # of targets, which are none of the features
    batch = to_batch(
        rows, converter=converter, lengths=converter.feature_lengths(lengths), pack=False
    )
    expected = {
        "encoder_input_tokens": [[5, 9, 7, 0, 0], [0] * 5],
        "encoder_token_types": [[0, 0, 1, 0, 0], [0] * 5],
        "encoder_segment_ids": [[1, 1, 1, 0, 0], [0] * 5],
        "label": [2, 0],
        "value": np.array([-0.3, 0], np.float32),
        "answer": [[1, 2], [0, 0]],
    }
    assert batch.keys() == expected.keys()
    for field, values in expected.items():
        np.testing.assert_array_equal(batch[field], values, field)
        assert batch[field].dtype == (np.float32 if field == "value" else np.int32)


def test_all_that_is_aligned_with_the_inputs_of_an_encoder_has_their_length():
    lengths = converters.build("encoder").feature_lengths({"inputs": 9, "targets": 114})
    assert (lengths["inputs"], lengths["targets"], lengths["answer"]) == (9, 9, 2)


def test_encoder_refuses_what_is_not_aligned():
    with pytest.raises(ValueError, match=r"aligned.*'inputs': 4, 'targets': 3"):
        converters.build("encoder").sequences(arrays(ONE))


@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_have_the_content_of_unpacked_ones(name):
    converter = converters.build(name)
    examples = random_examples(40, aligned=name == "encoder")
    lone = to_batch(
        [[converter.sequences(one)] for one in examples],
        converter=converter,
        lengths=LENGTHS,
        pack=True,
    )
    packed = to_batch(
        packed_rows(examples, converter=converter), converter=converter, lengths=LENGTHS, pack=True
    )
    side = next(iter(converter.row_lengths(LENGTHS)))
    assert len(packed[f"{side}_positions"]) < len(examples) / 2
    assert sorted(_segments(packed)) == sorted(_segments(lone))


def _segments(batch):
    """Every segment of a batch, as the values of all its fields."""
    sides = [name.removesuffix("_segment_ids") for name in batch if name.endswith("_segment_ids")]
    ids = {side: batch[f"{side}_segment_ids"] for side in sides}
    found = []
    for row, last in enumerate(ids[sides[0]].max(axis=1)):
        for segment in range(1, last + 1):
            values = {
                name: field[row, ids[name.split("_")[0]][row] == segment].tolist()
                for name, field in batch.items()
                if not name.endswith("_segment_ids")
            }
            found.append(str(sorted(values.items())))
    return found


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("encoder_decoder", seqio.EncDecFeatureConverter),
        ("decoder", seqio.LMFeatureConverter),
        ("prefix_lm", seqio.PrefixLMFeatureConverter),
    ],
)
def test_equal_to_seqio(name, theirs):
    converter = converters.build(name)
    # seqio closes a row after as many examples as it has tokens; with fewer, both are next fit.
    examples = [{one: ex[one] for one in converter.features} for ex in random_examples(10)]
    lengths = {name: LENGTHS[name] for name in converter.features}
    rows = packed_rows(examples, converter=converter, lengths=lengths, open_rows=1)
    ours = to_batch(rows, converter=converter, lengths=lengths, pack=True)
    dataset = tf.data.Dataset.from_generator(
        lambda: examples,
        output_signature={name: tf.TensorSpec([None], tf.int32) for name in converter.features},
    )
    [expected] = theirs(pack=True)(dataset, lengths).batch(99).as_numpy_iterator()
    assert ours.keys() == expected.keys()
    for field, values in expected.items():
        np.testing.assert_array_equal(ours[field], values, field)


def test_packer_loses_and_splits_nothing():
    examples = random_examples(300)
    converter = converters.build("encoder_decoder")
    rows = packed_rows(examples, converter=converter)
    for row in rows:
        assert sum(one["encoder"].shape[1] for one in row) <= 10
        assert sum(one["decoder"].shape[1] for one in row) <= 10
    key = lambda one: (one["encoder"].tobytes(), one["decoder"].tobytes())  # noqa: E731
    packed = sorted(key(one) for row in rows for one in row)
    assert packed == sorted(key(converter.sequences(one)) for one in examples)


def test_packer_with_one_open_row_keeps_the_order_and_more_rows_fill_better():
    examples = random_examples(300)
    converter = converters.build("encoder_decoder")
    in_order = packed_rows(examples, converter=converter, open_rows=1)
    kept = [one["encoder"][0].tolist() for row in in_order for one in row]
    assert kept == [one["inputs"].tolist() for one in examples]
    assert len(packed_rows(examples, converter=converter)) < 0.95 * len(in_order)


def test_packer_goes_on_from_its_open_rows():
    examples = random_examples(60)
    converter = converters.build("encoder_decoder")
    sequences = [converter.sequences(one) for one in examples]
    whole = Packer({"encoder": 10, "decoder": 10})
    for one in sequences[:30]:
        whole.add(one)
    resumed = Packer({"encoder": 10, "decoder": 10}, rows=[list(row) for row in whole.rows])
    for one in sequences[30:]:
        assert len(whole.add(one)) == len(resumed.add(one))
    assert [len(row) for row in whole.rows] == [len(row) for row in resumed.rows]
    # With fewer open rows than before, those that are too many are closed together.
    fewer = Packer({"encoder": 10, "decoder": 10}, open_rows=2, rows=[list(r) for r in whole.rows])
    full = {side: np.zeros((1, 10), np.int32) for side in ("encoder", "decoder")}
    assert len(fewer.add(full)) == len(whole.rows) - 1
    assert len(fewer.rows) == 2


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("pack", [False, True])
def test_empty_rows_have_every_field_and_no_loss(name, pack):
    converter = converters.build(name)
    example = {"inputs": [5, 6], "targets": [7, 8], "positions": [3, 4]}
    blank = batch_of([[], []], converter=converter, pack=pack)
    full = batch_of([[example], [example]], converter=converter, pack=pack)
    for field, values in full.items():
        assert blank[field].shape == values.shape
        assert blank[field].dtype == values.dtype
        assert not blank[field].any()
        assert values.any() or field.endswith("_positions") or field.endswith("input_tokens")


def test_a_converter_of_another_kind():
    @dataclasses.dataclass(frozen=True)
    class Pairs(conversion.Converter):
        """BERT's pairs, with the number of the sentence as a second channel."""

        features = ("first", "second")

        def row_lengths(self, lengths):
            return {"encoder": lengths["first"] + lengths["second"]}

        def sequences(self, example):
            tokens = np.concatenate([example["first"], example["second"]])
            return {"encoder": np.stack([tokens, np.arange(len(tokens)) >= len(example["first"])])}

        def fields(self, rows):
            tokens, types = rows["encoder"].channels
            return {"encoder_input_tokens": tokens, "encoder_token_types": types}

    lengths = {"first": 3, "second": 4}
    converters.check(Pairs(), features=["second", "first"], lengths=lengths)
    example = {"first": [5, 6], "second": [7, 8, 9]}
    batch = batch_of([[example]], converter=Pairs(), lengths=lengths)
    assert_rows(batch, encoder_input_tokens=[5, 6, 7, 8, 9], encoder_token_types=[0, 0, 1, 1, 1])
    assert_rows(batch, encoder_segment_ids=[1] * 5, encoder_positions=range(5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: converters.build("encoder_decodr"), "mean 'encoder_decoder'"),
        (lambda: converters.build("prefix_lm", los_on="all"), "mean 'loss_on'"),
        (lambda: converters.build("prefix_lm", loss_on="inputs"), "loss_on='inputs'.*all, targets"),
        (lambda: converters.build("prefix_lm", length=-1), "length=-1"),
        (lambda: check("decoder", ["inputs", "targets"]), "read these: encoder_decoder, prefix_lm"),
        (lambda: check("encoder_decoder", ["targets"]), "but the examples have targets.*: decoder"),
        (lambda: check("decoder", ["targets"], inputs=5), "lengths.targets=None"),
        (lambda: check("decoder", ["targets"], targets=0), "lengths.targets=0"),
        (lambda: check("encoder", ["inputs", "targets"], targets=6), "lengths.inputs=None"),
        (lambda: converters.build("encoder", features=["targets"]), "lack 'inputs'"),
        (lambda: converters.build("encoder", loss_on="weights"), "lack 'loss_weights'"),
        (
            lambda: converters.check(
                converters.EncoderConverter(("inputs", "label")),
                features=["inputs", "label"],
                lengths={"inputs": 5},
                pack=True,
            ),
            "data.pack=True.*'label'",
        ),
    ],
)
def test_errors_name_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def check(converter, names, **lengths):
    converters.check(converters.build(converter), features=names, lengths=lengths)
