"""The stochastic answer network: PyTorch's numbers, padding, the steps that are kept."""

import functools
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.systems import mt_dnn
from t5x_like.systems.mt_dnn import StochasticAnswer, kept_steps

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "stochastic_answer.npz"
# A gate after the other in PyTorch, [3 D, D]; here [D, 3, D].
OURS = {
    "query/kernel": "query.weight",
    "bilinear/kernel": "bilinear.weight",
    "unit/input/kernel": "unit.weight_ih",
    "unit/input/bias": "unit.bias_ih",
    "unit/state/kernel": "unit.weight_hh",
    "unit/state/bias": "unit.bias_hh",
    "classifier/kernel": "classifier.weight",
    "classifier/bias": "classifier.bias",
}


@functools.cache
def golden():
    with np.load(GOLDEN) as file:
        return dict(file)


def ours(arrays, prefix):
    """Arrays of PyTorch's parameters in the shapes of ours, by path."""
    found = {path: arrays[f"{prefix}/{name}"].T for path, name in OURS.items()}
    width = found["bilinear/kernel"].shape[0]
    of_unit = {path: x for path, x in found.items() if path.startswith("unit/")}
    gates = {path: x.reshape(*x.shape[:-1], 3, width) for path, x in of_unit.items()}
    return {path: jnp.asarray(x, jnp.float32) for path, x in (found | gates).items()}


def network(**changes):
    settings = {"labels": 3, "steps": 5, "prediction_dropout": 0.5} | changes
    return StochasticAnswer(**settings, kernel_init=nn.initializers.ones)


def batch():
    firsts, seconds = golden()["firsts"][:, None], golden()["seconds"][:, None]
    place = np.arange(golden()["hidden"].shape[1])
    return {
        "encoder_segment_ids": jnp.asarray(place < 1 + firsts + seconds, jnp.int32),
        "encoder_token_types": jnp.asarray(place > firsts, jnp.int32),
    }


@functools.cache
def computed(name, deterministic):
    """The probabilities, the loss and its gradients with the golden's parameters."""
    module, labels = network(), jnp.asarray(golden()["labels"])

    def loss(params, hidden):
        tree = flat_to_tree(params)
        rngs = {"dropout": jax.random.key(0)}
        found = module.apply(
            {"params": tree}, hidden, None, batch(), deterministic=deterministic, rngs=rngs
        )["logits"]
        return -jnp.sum(found[jnp.arange(3), labels]), jnp.exp(found)

    params = ours(golden(), "parameters")
    hidden = jnp.asarray(golden()["hidden"], jnp.float32)
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, hidden)


def flat_to_tree(flat):
    tree = {}
    for path, x in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = x
    return tree


def assert_golden(name, found):
    (loss, probabilities), (of_params, of_hidden) = found
    arrays = golden()
    np.testing.assert_allclose(probabilities, arrays[f"{name}/probabilities"], atol=1e-5)
    np.testing.assert_allclose(loss, arrays[f"{name}/loss"], rtol=1e-5)
    np.testing.assert_allclose(of_hidden, arrays[f"{name}/gradients/hidden"], atol=1e-5)
    for path, expected in ours(arrays, f"{name}/gradients").items():
        np.testing.assert_allclose(of_params[path], expected, atol=1e-5, err_msg=path)


def test_values_and_gradients_are_those_of_pytorch():
    assert_golden("all", computed("all", True))


def test_the_mean_is_over_the_steps_that_are_kept(monkeypatch):
    kept = jnp.asarray(golden()["some/kept"])
    monkeypatch.setattr(mt_dnn, "kept_steps", lambda *_, **__: kept)
    assert_golden("some", computed("some", False))


def test_parameters_are_counted_by_the_formula():
    d, c = 16, 4
    tree = jax.eval_shape(
        network(labels=c).init,
        jax.random.key(0),
        jnp.zeros((2, 5, d)),
        None,
        {"encoder_segment_ids": jnp.ones((2, 5), jnp.int32)},
    )
    found = {
        name: sum(x.size for x in jax.tree.leaves(part)) for name, part in tree["params"].items()
    }
    expected = {"query": d, "bilinear": d * d, "unit": 6 * d * d + 6 * d}
    assert found == expected | {"classifier": 4 * d * c + c}


def test_of_each_row_a_step_is_always_kept_and_each_other_at_its_rate():
    kept = np.asarray(kept_steps(jax.random.key(0), (20_000, 5), rate=0.3))
    assert kept.any(axis=1).all()
    # A step is drawn in one row of five, and else kept at 0.7; five standard deviations.
    np.testing.assert_allclose(kept.mean(axis=0), 0.2 + 0.8 * 0.7, atol=0.015)
    alone = np.asarray(kept_steps(jax.random.key(1), (20_000, 5), rate=1.0))
    assert (alone.sum(axis=1) == 1).all()
    np.testing.assert_allclose(alone.mean(axis=0), 0.2, atol=0.015)


def test_padding_and_the_first_token_change_nothing_and_a_single_text_has_no_class():
    params = flat_to_tree(ours(golden(), "parameters"))
    hidden = jnp.asarray(golden()["hidden"], jnp.float32)
    apply = jax.jit(lambda h, b: network().apply({"params": params}, h, None, b)["logits"])
    expected = apply(hidden, batch())
    outside = (batch()["encoder_segment_ids"] == 0).at[:, 0].set(True)[..., None]
    np.testing.assert_array_equal(apply(jnp.where(outside, 7.0, hidden), batch()), expected)
    single = batch()["encoder_token_types"].at[1].set(0)
    padded = batch()["encoder_segment_ids"].at[2].set(0)
    found = apply(hidden, {"encoder_token_types": single, "encoder_segment_ids": padded})
    np.testing.assert_array_equal(found[0], expected[0])
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[2]).all()
