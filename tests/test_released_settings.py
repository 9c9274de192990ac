"""Settings that the papers leave open and the released code fixes: optimizers, epsilons."""

import pytest

from t5x_like.experiment import command_line
from t5x_like.systems import llama

BERT = "google-research/bert, optimization.py"
XLNET = "zihangdai/xlnet, train.py"
BIGBIRD = "google-research/bigbird, core/flags.py"
KBERT = "autoliuweijie/K-BERT, uer/utils/optimizers.py"


def optimizer_of(name):
    config, _ = command_line.parse([f"--config=configs/{name}"])
    return config.optimizer


@pytest.mark.parametrize(
    ("name", "expected", "source"),
    [
        ("bert.py:base", {"clip_norm": 1.0, "epsilon": 1e-6}, BERT),
        # No code of their pretraining is public; both continue BERT's.
        ("structbert.py:base", {"clip_norm": 1.0, "epsilon": 1e-6}, BERT),
        ("unilm.py:large", {"clip_norm": 1.0, "epsilon": 1e-6}, BERT),
        ("fine_tuning.py:classification", {"clip_norm": 1.0, "epsilon": 1e-6}, BERT),
        ("fine_tuning.py:question_answering", {"clip_norm": 1.0, "epsilon": 1e-6}, BERT),
        ("xlnet.py:large", {"clip_norm": 1.0, "end_learning_rate": 0.001 * 4e-4}, XLNET),
        ("bigbird.py:base", {"epsilon": 1e-6}, BIGBIRD),  # run_pretraining.py does not clip
        ("bigbird_etc.py:base", {"epsilon": 1e-6}, BIGBIRD),
        ("k_bert.py:base", {"clip_norm": 1.0, "epsilon": 1e-6}, KBERT),
    ],
)
def test_an_optimizer_has_the_settings_of_the_released_code(name, expected, source):
    optimizer = optimizer_of(name)
    for setting, value in expected.items():
        assert optimizer[setting] == pytest.approx(value), f"{setting}: {source}"
    assert expected.get("clip_norm", 0) == optimizer.get("clip_norm", 0)


def test_a_faster_demo_of_xlnet_ends_at_a_thousandth_too():
    optimizer = optimizer_of("xlnet.py:demo")
    assert optimizer.end_learning_rate == pytest.approx(optimizer.learning_rate / 1000)


@pytest.mark.parametrize(("size", "epsilon"), [("33b", 1e-6), ("65b", 1e-5), ("2_7b", 1e-5)])
def test_llama_s_norms_have_the_epsilon_of_the_released_weights(size, epsilon):
    # `norm_eps` in the params.json of the weights: of LLaMA only the largest has 1e-5.
    assert llama.SIZES[size]["norm_epsilon"] == epsilon
