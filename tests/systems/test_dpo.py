"""DPO: its loss by its formula, the gradient of the policy alone, and runs that are read as it."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import config, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import dpo, gpt2, t5

BETA = 0.3
TINY = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "heads": 2}
POLICIES = {
    "gpt2": gpt2.SIZES["small"] | TINY | {"layers": 2, "positions": 24, "dropout": 0.0},
    "t5": t5.SIZES["v1_0_small"] | TINY | {"encoder_layers": 2, "decoder_layers": 2, "d_kv": 8},
}


@pytest.fixture(scope="module", params=POLICIES)
def made(request):
    """A pair whose policy has moved from its reference, and a batch of two prompts."""
    name = request.param
    module = systems.build("dpo", dpo.pair_of(name, POLICIES[name]))
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    params = {
        "policy": init(jax.random.key(1))["policy"],
        "reference": init(jax.random.key(2))["reference"],
    }
    random = np.random.default_rng(0)
    weights = np.zeros((2, 3, 8), np.float32)
    weights[:, :, 3:6] = 1
    batch = {
        "decoder_input_tokens": random.integers(1, 40, (2, 3, 8)),
        "decoder_target_tokens": random.integers(1, 40, (2, 3, 8)),
        "decoder_segment_ids": np.ones((2, 3, 8), np.int32),
        "decoder_loss_weights": weights,
        "ranks": np.array([[2, 1, 3], [1, 2, 0]]),
    }
    if name == "t5":
        batch["encoder_input_tokens"] = random.integers(1, 40, (2, 5))

    def loss(params, batch):
        total, *rest = dpo.loss(module, params, batch, None, beta=BETA)
        return total, rest

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return name, params, {key: jnp.asarray(x) for key, x in batch.items()}, run


def response_log_probs(apply, params, batch, row, response):
    """The log-probability of one response, by itself."""
    own = {k: v[row, response][None] for k, v in batch.items() if k.startswith("decoder_")}
    own |= {k: v[row][None] for k, v in batch.items() if k.startswith("encoder_")}
    logits = apply({"params": params}, own)
    each = jnp.take_along_axis(
        jax.nn.log_softmax(logits), own["decoder_target_tokens"][..., None], axis=-1
    )[..., 0]
    return float(jnp.sum(each * own["decoder_loss_weights"]))


def test_the_loss_is_equation_7(made):
    name, params, batch, run = made
    apply = jax.jit(systems.build(name, POLICIES[name]).apply)
    ratio = {
        (row, n): response_log_probs(apply, params["policy"], batch, row, n)
        - response_log_probs(apply, params["reference"], batch, row, n)
        for row, n in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    }
    preferred = [((0, 1), (0, 0)), ((0, 1), (0, 2)), ((0, 0), (0, 2)), ((1, 0), (1, 1))]
    margins = [BETA * (ratio[won] - ratio[lost]) for won, lost in preferred]
    each = [math.log(1 + math.exp(-margin)) for margin in margins]
    expected = sum(each[:3]) / 3 + each[3]
    (total, (weight, metrics)), _ = run(params, batch)
    assert weight == 2
    # Float32 log-probabilities of some tens of nats.
    assert total == pytest.approx(expected, rel=1e-4)
    assert metrics["margin"][0] == pytest.approx(sum(margins), rel=1e-3, abs=1e-3)
    assert metrics["accuracy"] == (sum(margin > 0 for margin in margins), 4)


def test_the_reference_gets_no_gradient_and_equal_networks_cost_log_2(made):
    _, params, batch, run = made
    _, gradient = run(params, batch)
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(gradient["reference"]))
    assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradient["policy"]))
    same = {"policy": params["policy"], "reference": params["policy"]}
    (total, (weight, metrics)), _ = run(same, batch)
    assert total / weight == pytest.approx(math.log(2), rel=1e-6)
    assert metrics["margin"][0] == 0


def test_a_run_starts_from_one_folder_and_is_read_as_its_policy(tmp_path):
    made = config.defaults()
    made.system, made.model = "gpt2", POLICIES["gpt2"]
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    save(made, tmp_path / "sft")
    made.system, made.model = "dpo", dpo.pair_of("gpt2", POLICIES["gpt2"])
    made.data.objective, made.initialize = "comparisons", str(tmp_path / "sft")
    state = save(made, tmp_path / "dpo")
    for name in ("policy", "reference"):
        found = from_pretrained(tmp_path / "sft").params
        jax.tree.map(np.testing.assert_array_equal, state.params[name], found)
    found = from_pretrained(tmp_path / "dpo")
    assert (found.system, found.config["d_model"]) == ("gpt2", 16)
    jax.tree.map(np.testing.assert_array_equal, found.params, state.params["policy"])


def save(made, folder):
    """A run of no step: its initial parameters."""
    state = model_side.build(of_config(made), devices=jax.devices()[:1]).initial_state()
    metadata = {"config": config.to_dict(parse(made)), "data_shards": 1}
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, state, None)
    return state
