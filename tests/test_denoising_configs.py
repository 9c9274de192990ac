"""The configs of BART and MASS: every size is valid, and its data is what its network reads."""

import pytest

from configs import bart, mass
from t5x_like import objectives, systems
from t5x_like.batches import converters
from t5x_like.experiment import completion
from t5x_like.experiment.run import of_config
from t5x_like.systems import bart as network

SIZES = [
    *((bart, size) for size in ("demo", "base", "large", "pairs", "translation")),
    (bart, "translation_base"),
    (bart, "translation_all"),
    *((mass, size) for size in ("demo", "big")),
]


@pytest.mark.parametrize(("module", "size"), SIZES)
def test_every_size_is_valid(module, size):
    made = module.get_config(size)
    of_config(made)
    objective = objectives.build(made.data.objective, **made.data.objective_settings.to_dict())
    assert made.data.converter in objective.converters
    converter = converters.build(made.data.converter)
    converters.check(
        converter, features=objective.features, lengths=made.data.lengths, pack=made.data.pack
    )
    if made.system:
        systems.build(made.system, made.model.to_dict())
        assert max(made.data.lengths.values()) <= made.model.positions


@pytest.mark.parametrize(("module", "name"), [(bart, "bart"), (mass, "mass")])
def test_the_error_of_an_unknown_size_lists_all(module, name):
    with pytest.raises(ValueError, match=rf"configs/{name}.py has no size 'larg': choose .*demo"):
        module.get_config("larg")


def test_a_translation_freezes_what_a_folder_of_its_size_has():
    for size, name in (("large", "translation"), ("base", "translation_base")):
        made = bart.get_config(name)
        last = network.SIZES[size]["encoder_layers"] - 1
        assert f"encoder/layers/layer_{last}" in made.optimizer.frozen
        assert f"encoder/layers/layer_{last + 1}" not in made.optimizer.frozen
        assert made.model.loop == "unroll"
    assert bart.get_config("translation_all").optimizer.frozen == ()


def test_tuning_takes_the_rest_of_its_settings_from_a_folder():
    made = bart.get_config("pairs")
    assert made.system == ""
    with pytest.raises(ValueError, match="initialize is not set"):
        completion.complete(of_config(made))
