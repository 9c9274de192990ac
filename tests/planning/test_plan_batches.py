"""The shapes of a plan's batches: those of the objective and converter, whatever their settings."""

import jax
import pytest

from t5x_like import config, objectives
from t5x_like.batches import converters
from t5x_like.batches.packing import to_batch
from t5x_like.config import parse
from t5x_like.experiment.run import of_config
from t5x_like.objectives import OBJECTIVES
from t5x_like.research.planning import batches

LENGTHS = {"inputs": 12, "targets": 6}
CASES = [
    (name, converter) for name in OBJECTIVES for converter in objectives.build(name).converters
]


def settings(objective, converter, **data):
    made = config.defaults()
    made.data.update(
        {"objective": objective, "converter": converter, "batch_size": 4, "lengths": LENGTHS}
    )
    made.data.update(data)
    return made


def true_shapes(made):
    data = made.data
    objective = objectives.build(data.objective, **data.objective_settings.to_dict())
    converter = converters.build(
        data.converter, **objective.converter_settings | data.converter_settings.to_dict()
    )
    lengths = converter.feature_lengths(data.lengths.to_dict())
    rows = [[]] * data.batch_size
    batch = to_batch(rows, converter=converter, lengths=lengths, pack=data.pack)
    return {name: (x.shape, x.dtype) for name, x in batch.items()}


def planned_shapes(made):
    return {name: (x.shape, x.dtype) for name, x in batches.batch(parse(made).data).items()}


@pytest.mark.parametrize(("objective", "converter"), CASES)
def test_fields_are_those_of_the_converter(objective, converter):
    made = settings(objective, converter)
    assert planned_shapes(made) == true_shapes(made)


@pytest.mark.parametrize(
    ("objective", "converter", "data"),
    [
        ("span_corruption", "encoder_decoder", {"pack": True}),
        ("language_modeling", "decoder", {"pack": True}),
        ("mass", "fragment", {"pack": True}),
        ("prefix_lm", "prefix_lm", {"converter_settings": {"length": 9}}),
        ("bert", "encoder", {"objective_settings": {"next_sentence": False}}),
        ("roberta", "encoder", {"objective_settings": {"format": "segment_pair"}}),
        ("gpt_multiple_choice", "decoder_rows", {"objective_settings": {"choices": 3}}),
        ("multiple_choice", "encoder_rows", {"objective_settings": {"choices": 3}}),
    ],
)
def test_settings_change_the_fields_as_they_do_in_truth(objective, converter, data):
    made = settings(objective, converter, **data)
    assert planned_shapes(made) == true_shapes(made)


def test_tokens_are_counted_on_both_sides():
    assert (
        batches.tokens(batches.batch(parse(settings("span_corruption", "encoder_decoder")).data))
        == 4 * 18
    )


def test_the_phase_with_most_tokens_is_planned():
    made = settings("language_modeling", "decoder")
    made.phases = {"long": {"steps": 1, "lengths": {"targets": 24}}, "wide": {"steps": 1}}
    made.train.phases, made.train.steps = ("long", "wide"), 2
    assert batches.largest(of_config(made)).phase == "long"


def test_what_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"data\.converter='decoders'.*'decoder'"):
        batches.batch(parse(settings("language_modeling", "decoders")).data)
    with pytest.raises(ValueError, match=r"objective='barts' does not exist.*'bart'"):
        batches.batch(parse(settings("barts", "encoder")).data)
    with pytest.raises(ValueError, match=r"the converter encoder reads inputs, .*positions"):
        batches.batch(parse(settings("mass", "encoder")).data)
    made = settings("language_modeling", "decoder")
    made.data.lengths = {"inputs": 12}
    with pytest.raises(ValueError, match=r"data\.lengths\.targets=None must be 1 or more"):
        batches.batch(parse(made).data)


def test_shapes_need_no_memory():
    leaves = jax.tree.leaves(batches.batch(parse(settings("albert", "encoder")).data))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
