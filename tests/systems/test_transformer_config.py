"""The configs of the Transformer: the paper's numbers, and rates that follow the width."""

import pytest

from configs import transformer as configs
from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.experiment.run import of_config
from t5x_like.systems import transformer
from t5x_like.training import schedules

ROWS_OF_THE_LOSS = {"d_smoothing_0.0": 0.0, "d_smoothing_0.2": 0.2}


@pytest.mark.parametrize("size", ["demo", *transformer.SIZES, *ROWS_OF_THE_LOSS])
def test_every_size_is_a_config(size):
    made = configs.get_config(size)
    of_config(made)
    systems.build("transformer", made.model.to_dict())
    if size != "demo":
        expected = transformer.SIZES.get(size, transformer.SIZES["base"])
        assert made.model.to_dict() == expected
    assert made.loss.label_smoothing == ROWS_OF_THE_LOSS.get(size, 0.1)
    wanted = GenerationSettings().override(made.decode.to_dict())
    assert wanted.new_tokens(prompt=1, read=30) == (0, 30 + (20 if size == "demo" else 50))


@pytest.mark.parametrize(
    ("size", "peak", "every", "keep"), [("base", 7.0e-4, 1500, 5), ("big", 4.9e-4, 600, 20)]
)
def test_rates_and_checkpoints(size, peak, every, keep):
    made = configs.get_config(size)
    settings = made.optimizer.to_dict()
    keys = ("learning_rate", "warmup_steps")
    schedule = schedules.build(settings["schedule"], **{key: settings[key] for key in keys})
    assert float(schedule(3999)) == pytest.approx(peak, rel=0.01)
    assert (made.checkpoint.every, made.checkpoint.keep) == (every, keep)
    made.model.d_model = 256
    assert made.optimizer.learning_rate == 1 / 16


def test_the_error_of_an_unknown_size_lists_all():
    with pytest.raises(ValueError, match=r"no size 'bas': choose demo, base, big"):
        configs.get_config("bas")
