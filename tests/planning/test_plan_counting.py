"""Parameters by part, and FLOPs by formula, of systems whose counts are known."""

import dataclasses
import functools

import jax
import pytest

from t5x_like import config, systems
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import counting, report
from t5x_like.systems import dpo

OBJECTIVES = {
    "encoder_decoder": "span_corruption",
    "decoder": "language_modeling",
    "encoder": "bert",
}
ADAM = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}


def made(system, size, *, converter="decoder", **model):
    settings = config.defaults()
    settings.system = system
    settings.model = systems.find(system).sizes[size] | model
    objective = {"converter": converter, "objective": OBJECTIVES[converter]}
    settings.data.update({**objective, "batch_size": 4})
    settings.data.lengths = {"inputs": 64, "targets": 64}
    settings.optimizer = ADAM
    settings.mesh = dataclasses.asdict(report.ONE_DEVICE)
    return settings


def parts(system, size, **model):
    settings = made(system, size, **model)
    built = model_side.build(of_config(settings), devices=jax.devices()[:1])
    return counting.by_part(
        counting.parameters(built.shapes.params, built.axes.params, model=settings.model.to_dict())
    )


@functools.cache
def plan(system, size, converter, **model):
    return report.arithmetic(of_config(made(system, size, converter=converter, **model)))


@pytest.mark.parametrize(
    ("system", "size", "converter"),
    [
        ("t5", "small", "encoder_decoder"),
        ("t5", "v1_0_small", "encoder_decoder"),  # its head is the embedding
        ("palm", "8b", "decoder"),
        ("gpt2", "small", "decoder"),
    ],
)
def test_the_formula_is_the_count_of_products(system, size, converter):
    found = plan(system, size, converter)
    # The formula counts biases and norms as if they were matrices: less than a hundredth of all.
    assert found["flops_per_step_by_formula"] == pytest.approx(found["flops_per_step"], rel=0.01)
    assert found["flops_per_token"] == found["flops_per_step"] / found["batch"]["tokens"]


def test_bert_predicts_few_positions_and_the_formula_all():
    found = plan("bert", "base", "encoder")
    assert found["flops_per_step_by_formula"] > found["flops_per_step"]


def test_recomputing_layers_repeats_their_forward_pass():
    kept, again = plan("gpt2", "small", "decoder"), plan("gpt2", "small", "decoder", remat="full")
    assert again["flops_per_step"] == kept["flops_per_step"] == kept["flops_per_step_recomputing"]
    head = 6 * 50257 * 768 * 4 * 64
    ratio = (again["flops_per_step_recomputing"] - head) / (again["flops_per_step"] - head)
    # 4/3, but for the last product of a layer, whose result the backward pass does not need.
    assert 1.2 < ratio < 4 / 3


def test_parts_of_t5_are_those_of_the_paper():
    found = plan("t5", "v1_0_small", "encoder_decoder")
    totals = {name: sums["total"] for name, sums in found["parameters_by_part"].items()}
    assert totals["embedding"] == 32128 * 512
    assert totals["attention"] == 18 * 4 * 512 * 512
    assert totals["feed-forward"] == 12 * 2 * 512 * 2048
    assert found["parameters"] == found["active_parameters"] == sum(totals.values()) == 60_506_624
    assert found["parameter_bytes"] == 4 * found["parameters"]
    assert found["optimizer_bytes"] == 2 * found["parameter_bytes"] + 8  # two moments, two counts


def test_a_head_of_its_own_is_a_part():
    assert parts("t5", "small")["head"]["total"] == 32128 * 512


@pytest.mark.parametrize(("router", "chosen"), [("switch", 1), ("top2", 2)])
def test_of_experts_a_token_meets_those_that_it_is_given_to(router, chosen):
    found = parts("switch", "base_8", router=router)
    assert found["experts"]["total"] == 12 * 8 * 2 * 768 * 3072
    assert found["experts"]["active"] == found["experts"]["total"] * chosen // 8
    assert found["router"] == {"total": 12 * 768 * 8, "active": 12 * 768 * 8}


def test_mixtral_has_the_published_active_parameters():
    # Jiang et al. 2024 (arXiv:2401.04088), section 2.2 and mistral.ai/news/mixtral-of-experts:
    # 46.7B parameters, and 12.9B for a token, which two of eight experts compute.
    found = parts("mixtral", "8x7b")
    total, active = (sum(part[key] for part in found.values()) for key in ("total", "active"))
    expert, attention = 3 * 4096 * 14_336, 2 * 4096 * 4096 + 2 * 4096 * 1024
    layer, ends = attention + 4096 * 8 + 2 * 4096, 2 * 32_000 * 4096 + 4096
    assert total == 32 * (layer + 8 * expert) + ends == 46_702_792_704
    assert active == 32 * (layer + 2 * expert) + ends == 12_879_925_248


def test_experts_inside_a_system_of_several_networks_are_found():
    policy = systems.find("mixtral").sizes["8x7b"] | {"layers": 1, "chosen": 3}
    settings = made("dpo", "gpt2_large")
    settings.model = dpo.pair_of("mixtral", policy)
    assert counting.choices(settings.model.to_dict()) == 3


@pytest.mark.parametrize(
    ("system", "size"),
    [("albert", "base"), ("electra", "small"), ("spanbert", "base"), ("chinchilla", "70b")],
)
def test_every_parameter_belongs_to_a_part(system, size):
    assert "other" not in parts(system, size)
