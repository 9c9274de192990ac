"""ELECTRA: its published sizes, what the generator hands over, the losses of its objectives."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import electra as configs
from t5x_like import partitioning, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse, to_dict
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import forward, predict_masked
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import electra

# Of `google/electra-*-discriminator`, which the paper rounds to 14M, 110M and 335M, and of a
# generator by itself, in Hugging Face's ElectraForMaskedLM.
DISCRIMINATOR = {"small": 13_549_057, "base": 109_483_009, "large": 335_142_913}
GENERATOR = {"small": 4_620_026, "base": 33_740_602, "large": 51_295_290}
VOCABULARY, LENGTH, SAMPLED = 32, 10, 7
TINY = electra.SIZES["small"] | {
    "vocab_size": VOCABULARY,
    "positions": LENGTH,
    "layers": 1,
    "d_embedding": 12,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "generator": 1 / 2,
}


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("size", electra.SIZES)
def test_parameters_as_published(size):
    module = systems.build("electra", electra.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    params = nn.unbox(boxed)["params"]
    generator = params.pop("generator")
    assert count(params) == DISCRIMINATOR[size]
    # It has no embeddings of its own, only the map from them to its width.
    assert generator.keys() == {"projection", "encoder", "head"}
    assert count(generator) + count(params["embeddings"]) == GENERATOR[size]


@functools.cache
def make(objective="electra", head="pretraining"):
    module = systems.build("electra", TINY | {"objective": objective, "head": head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@pytest.mark.parametrize(
    ("tied", "own"),
    [
        ("none", {"embeddings", "projection", "encoder", "head"}),
        ("embeddings", {"projection", "encoder", "head"}),
        ("all", {"head"}),
    ],
)
def test_the_generator_has_parameters_of_its_own_for_the_parts_that_are_not_tied(tied, own):
    module = systems.build("electra", TINY | {"generator": 1.0, "tied": tied})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    params = nn.unbox(boxed)["params"]
    assert params["generator"].keys() == own
    for part in own - {"head"}:
        of_both = [
            jax.tree.map(lambda x: x.shape, tree[part]) for tree in (params, params["generator"])
        ]
        assert of_both[0] == of_both[1]
    total = jax.eval_shape(functools.partial(electra.loss, module), params, batch(), None)[0]
    assert total.shape == ()


def test_all_weights_are_tied_for_a_generator_of_full_size_alone():
    with pytest.raises(ValueError, match=r"tied='all' needs .* model.generator=1, not 0.5"):
        systems.build("electra", TINY | {"tied": "all"})


@functools.partial(jax.jit, static_argnames="objective")
def loss(params, batch, key, *, objective="electra", **weights):
    return electra.loss(make(objective)[0], params, batch, key, **weights)


@functools.partial(jax.jit, static_argnames="objective")
def discriminate(params, read, *, objective="electra"):
    given = batch() | {"encoder_input_tokens": read}
    return forward(make(objective)[0], params, given, None)


def with_bias(params, bias):
    """The parameters with a generator that predicts the same at every position."""
    head = params["generator"]["head"]["masked_lm"]
    zero = {name: jnp.zeros_like(value) for name, value in head["norm"].items()}
    head = head | {"norm": zero, "output": {"bias": jnp.asarray(bias, jnp.float32)}}
    return params | {"generator": params["generator"] | {"head": {"masked_lm": head}}}


def always(params, token=SAMPLED):
    return with_bias(params, 100.0 * np.eye(VOCABULARY)[token])


def batch():
    """Rows of text with two and one masked tokens, one of them SAMPLED, and a row of padding."""
    random = np.random.default_rng(0)
    targets = random.integers(8, VOCABULARY, (3, LENGTH))
    targets[0, 7] = SAMPLED
    weights = np.zeros((3, LENGTH), np.float32)
    weights[0, [2, 7]], weights[1, 1] = 1, 1
    segments = np.ones((3, LENGTH), np.int32)
    segments[1, 6:], segments[2] = 0, 0
    return {
        "encoder_input_tokens": jnp.asarray(np.where(weights > 0, 4, targets)),
        "encoder_target_tokens": jnp.asarray(targets),
        "encoder_loss_weights": jnp.asarray(weights),
        "encoder_segment_ids": jnp.asarray(segments),
    }


def handed_over():
    """The discriminator's inputs from a generator that always samples SAMPLED, and what differs.

    The masked positions 2 and 7 of row 0 and 1 of row 1 are SAMPLED, the original at the second.
    """
    read = np.array(batch()["encoder_target_tokens"])
    read[0, 2] = read[0, 7] = read[1, 1] = SAMPLED
    replaced = np.zeros((3, LENGTH), bool)
    replaced[0, 2] = replaced[1, 1] = True
    return read, replaced


@pytest.mark.parametrize(("objective", "tokens"), [("electra", 16), ("electra_15", 3)])
def test_the_loss_is_the_generator_s_and_50_times_the_discriminator_s(objective, tokens):
    params = always(make(objective)[1])
    total, weight, metrics = loss(params, batch(), None, objective=objective)
    read, replaced = handed_over()
    logits = discriminate(params, read, objective=objective)["logits"]
    counted = np.asarray(batch()["encoder_segment_ids"]) > 0
    if objective == "electra_15":
        counted &= np.asarray(batch()["encoder_loss_weights"]) > 0
    chances = np.asarray(jax.nn.sigmoid(logits), np.float64)
    nats = -np.log(np.where(replaced, chances, 1 - chances))[counted]
    assert nats.shape == (tokens,)
    guessed = [100.0, 0.0, 100.0]  # nats of the three masked tokens
    assert weight == 3
    np.testing.assert_allclose(total / 3, np.mean(guessed) + 50 * np.mean(nats), rtol=1e-5)
    np.testing.assert_allclose(metrics["cross_entropy"][0], sum(guessed), rtol=1e-5)
    found, number = metrics["discriminator/cross_entropy"]
    np.testing.assert_allclose([found, number], [np.sum(nats), tokens], rtol=1e-5)
    assert metrics["discriminator/recall"][1] == 2


def test_no_gradient_flows_through_the_sample():
    _, params = make()

    @jax.jit
    def gradient(weights):
        return jax.grad(lambda p: loss(p, batch(), jax.random.key(1), **weights)[0])(params)

    def largest(tree):
        return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))

    of_discriminator = gradient({"generator": 0.0, "discriminator": 50.0})
    assert largest(of_discriminator["generator"]) == 0
    of_generator = gradient({"generator": 1.0, "discriminator": 0.0})
    assert all(largest(of_generator[part]) == 0 for part in ("projection", "encoder", "head"))
    for gradients in (of_discriminator, of_generator):
        assert largest(gradients["embeddings"]["token"]) > 0
        assert largest(gradients["embeddings"]["position"]) > 0
    # The generator's softmax alone reaches tokens that nobody reads.
    unread = np.setdiff1d(np.arange(VOCABULARY), handed_over()[0])[:1]
    assert largest(of_generator["embeddings"]["token"]["embedding"][unread]) > 0


def test_tokens_are_sampled_from_the_generator_s_softmax():
    chances = np.full(VOCABULARY, 1e-9)
    chances[[20, 21, 22]] = 0.6, 0.3, 0.1
    params = with_bias(make()[1], np.log(chances))
    given = batch() | {"encoder_target_tokens": jnp.full((3, LENGTH), 21)}

    def replaced(key):
        return loss(params, given, key)[2]["discriminator/recall"][1]

    number = jax.jit(jax.vmap(replaced))(jax.random.split(jax.random.key(0), 1000))
    # 3000 samples, 0.3 of them equal to the original: a deviation of 0.008.
    assert abs(np.mean(number) / 3 - 0.7) < 0.04


def test_samples_change_with_the_key_and_stay_in_evaluation():
    _, params = make()
    assert loss(params, batch(), None)[0] == loss(params, batch(), None)[0]
    found = {float(loss(params, batch(), jax.random.key(n))[0]) for n in range(4)}
    assert len(found) == 4


BASELINE = 0.7  # the logit of the expected probability of the discriminator's answer


def adversarial_pair():
    """An adversarial generator of three tokens, whose baseline is the same at every position."""
    module, params = make(head="adversarial")
    chances = np.full(VOCABULARY, 1e-9)
    chances[[SAMPLED, 21, 22]] = 0.5, 0.3, 0.2
    params = with_bias(params, np.log(chances))
    head = params["generator"]["head"]
    baseline = jax.tree.map(jnp.zeros_like, make(head="adversarial")[1])["generator"]["head"]
    baseline = baseline["baseline"] | {"bias": jnp.full(1, BASELINE)}
    generator = params["generator"] | {"head": head | {"baseline": baseline}}
    return module, params | {"generator": generator}, chances / chances.sum()


def rewards(module, params, key):
    """The samples at the three masked positions, and the discriminator's nats there."""
    places = np.nonzero(np.asarray(batch()["encoder_loss_weights"]))
    guesses, masked = predict_masked(module, params, batch(), None, share=0.2, method="generate")
    read = np.asarray(
        electra.corrupt(batch(), masked, guesses["logits"], key)["encoder_input_tokens"]
    )
    logits = forward(module, params, batch() | {"encoder_input_tokens": read}, None)["logits"]
    chances = np.asarray(jax.nn.sigmoid(logits), np.float64)
    same = read == np.asarray(batch()["encoder_target_tokens"])
    return read[places], -np.log(np.where(same, 1 - chances, chances))[places]


def test_an_adversarial_generator_follows_reinforce_with_a_baseline():
    """Clark et al. 2020, appendix F: the gradient of log p(sample) times the reward above b."""
    module, params, chances = adversarial_pair()

    def total(params):
        settings = {"discriminator": 0.0}
        sums = electra.adversarial_loss(module, params, batch(), None, **settings)
        return sums[0] / sums[1], sums[2]

    (value, metrics), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    sampled, reward = rewards(module, params, jax.random.key(0))
    assert len(set(sampled)) > 1
    expected = 1 / (1 + np.exp(-BASELINE))
    advantage = reward + np.log(expected)
    right = np.exp(-reward)
    reinforce = -np.log(chances[sampled]) * advantage
    fit = -right * np.log(expected) - (1 - right) * np.log(1 - expected)
    np.testing.assert_allclose(value, np.mean(reinforce + fit), rtol=1e-5)
    np.testing.assert_allclose(metrics["baseline/cross_entropy"][0], fit.sum(), rtol=1e-5)
    head = gradient["generator"]["head"]
    by_logits = np.mean((chances - np.eye(VOCABULARY)[sampled]) * advantage[:, None], axis=0)
    np.testing.assert_allclose(head["masked_lm"]["output"]["bias"], by_logits, atol=1e-5)
    np.testing.assert_allclose(head["baseline"]["bias"], np.mean(expected - right), rtol=1e-4)
    for name in ("head", "encoder"):  # no gradient through the reward
        assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient[name]))


def test_an_adversarial_generator_s_discriminator_is_trained_as_elsewhere():
    module, params, _ = adversarial_pair()
    own = jax.jit(functools.partial(electra.adversarial_loss, module))(params, batch(), None)
    usual = jax.jit(functools.partial(electra.loss, module))(params, batch(), None)
    for name in ("cross_entropy", "discriminator/cross_entropy", "discriminator/recall"):
        np.testing.assert_allclose(own[2][name], usual[2][name], rtol=1e-6)


def test_an_adversarial_generator_needs_a_discriminator():
    with pytest.raises(
        ValueError, match=r"head='adversarial' needs a discriminator.*'replace_mlm'"
    ):
        systems.build("electra", TINY | {"head": "adversarial", "objective": "replace_mlm"})


def test_replace_mlm_predicts_masked_tokens_from_the_generator_s():
    params = always(make("replace_mlm")[1])
    total, weight, metrics = loss(params, batch(), None, objective="replace_mlm")
    read, _ = handed_over()
    logits = discriminate(params, read, objective="replace_mlm")["logits"]
    log_probs = jax.nn.log_softmax(logits)
    targets = batch()["encoder_target_tokens"]
    places = [(0, 2), (0, 7), (1, 1)]
    predicted = -np.mean([log_probs[row, place, targets[row, place]] for row, place in places])
    np.testing.assert_allclose(total / weight, 200 / 3 + predicted, rtol=1e-5)
    assert metrics["discriminator/cross_entropy"][1] == 3


def test_all_tokens_mlm_mixes_copying_and_predicting():
    params = always(make("all_tokens_mlm")[1])
    read, _ = handed_over()
    outputs = discriminate(params, read, objective="all_tokens_mlm")
    copy = np.asarray(jax.nn.sigmoid(outputs["copy_logits"]), np.float64)
    predicted = np.asarray(jax.nn.softmax(outputs["logits"]), np.float64)
    mixed = copy[..., None] * np.eye(VOCABULARY)[read] + (1 - copy[..., None]) * predicted
    np.testing.assert_allclose(mixed.sum(axis=-1), 1, rtol=1e-5)
    targets = np.asarray(batch()["encoder_target_tokens"])
    chosen = np.take_along_axis(mixed, targets[..., None], axis=-1)[..., 0]
    expected = -np.mean(np.log(chosen)[np.asarray(batch()["encoder_segment_ids"]) > 0])
    total, weight, metrics = loss(params, batch(), None, objective="all_tokens_mlm")
    found, number = metrics["discriminator/cross_entropy"]
    assert number == 16
    np.testing.assert_allclose(found / number, expected, rtol=1e-5)
    np.testing.assert_allclose(total / weight, 200 / 3 + expected, rtol=1e-5)


def test_a_pretraining_model_is_saved_as_its_discriminator(tmp_path):
    module, params = make()
    whole = Pretrained(module, params, system="electra", config=TINY)
    whole.save_pretrained(tmp_path)
    kept = from_pretrained(tmp_path)
    assert kept.config["head"] == "discriminator"
    tokens = batch()["encoder_target_tokens"]
    mask = batch()["encoder_segment_ids"]
    expected = discriminate(params, tokens)["logits"]
    found = kept(tokens, mask)
    # Two programs for the same sums, in which the compiler may order them otherwise.
    np.testing.assert_allclose(found.logits, expected, atol=1e-6)
    np.testing.assert_array_equal(
        kept.params["embeddings"]["token"]["embedding"], params["embeddings"]["token"]["embedding"]
    )
    labels = np.where(mask > 0, np.asarray(tokens) % 2, -100)
    chances = np.asarray(jax.nn.sigmoid(found.logits))
    by_hand = -np.log(np.where(labels == 1, chances, 1 - chances))[labels >= 0].mean()
    np.testing.assert_allclose(kept(tokens, mask, labels=labels).loss, by_hand, rtol=1e-5)


def test_without_a_discriminator_there_is_none_to_save(tmp_path):
    module, params = make("replace_mlm")
    config = TINY | {"objective": "replace_mlm"}
    with pytest.raises(ValueError, match="objective='replace_mlm' trains no discriminator"):
        Pretrained(module, params, system="electra", config=config).save_pretrained(tmp_path)


def stage(number, **model):
    config = configs.get_config(f"small_{number}_stage")
    own = {name: config.model[name] for name in ("head", "tied", "generator")}
    config.model = TINY | own | {"dropout": 0.0} | model
    config.loss.predicted = 0.5
    return config


def trained(config, *, steps):
    """The parameters before and after some steps of a run, and its train state."""
    model = model_side.build(of_config(config))
    state = model.initial_state()
    before = jax.device_get(state.params)
    rows = {name: np.repeat(value, 8, axis=0) for name, value in batch().items()}
    with partitioning.layout(model.mesh):
        for _ in range(steps):
            state, _ = model.train_step(state, model.put(rows))
    return before, jax.device_get(state.params), state


@pytest.fixture(scope="module")
def first_stage(tmp_path_factory):
    """The folder of a trained generator, and its parameters."""
    folder, config = tmp_path_factory.mktemp("first"), stage("first")
    _, params, state = trained(config, steps=2)
    with Checkpoints(folder, metadata={"config": to_dict(parse(config))}) as saver:
        saver.save(2, state, {0: b""})
    return str(folder), params


@pytest.mark.slow
def test_in_two_stages_the_discriminator_begins_as_the_generator_that_stays(first_stage, tmp_path):
    folder, generator = first_stage
    config = stage("second")
    config.initialize = folder
    before, after, state = trained(config, steps=2)
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    same(before["generator"], generator)
    for part in ("embeddings", "projection", "encoder"):
        same(before[part], generator[part])
    assert before["head"].keys() == {"transform", "replaced"}
    same(after["generator"], generator)
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), before, after)
    kernels = (moved["encoder"]["layers"]["block"]["feed_forward"]["wi"], moved["head"]["replaced"])
    assert min(moved["embeddings"]["token"]["embedding"], *(k["kernel"] for k in kernels)) > 0
    # No optimizer state for the generator.
    students = sum(leaf.size for leaf in jax.tree.leaves(after | {"generator": {}}))
    assert sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim) == 2 * students
    with Checkpoints(tmp_path / "run", metadata={"config": to_dict(parse(config))}) as saver:
        saver.save(2, state, {0: b""})
    from_pretrained(tmp_path / "run").save_pretrained(tmp_path / "out")
    kept = from_pretrained(tmp_path / "out")
    assert kept.config["head"] == "discriminator"
    same(kept.params["encoder"], after["encoder"])


def test_the_second_stage_s_loss_is_the_discriminator_s_alone(first_stage):
    config = stage("second")
    config.initialize = first_stage[0]
    model = model_side.build(of_config(config))
    params = model.initial_state().params
    total, weight, metrics = jax.jit(model.loss)(params, batch(), None)
    found, number = metrics["discriminator/cross_entropy"]
    np.testing.assert_allclose(total / weight, found / number, rtol=1e-6)


def test_a_second_stage_that_would_change_the_generator_is_refused(first_stage):
    with pytest.raises(ValueError, match=r"second_stage' needs .* model.generator=1, not 0.5"):
        model_side.build(of_config(stage("second", generator=0.5)))
    with pytest.raises(ValueError, match=r"set model.tied='none', not 'embeddings'"):
        model_side.build(of_config(stage("second", tied="embeddings")))
    config = stage("second")
    config.initialize = ""
    with pytest.raises(ValueError, match="initialize is not set"):
        model_side.build(of_config(config))
    wider = stage("second", d_ff=32)
    wider.initialize = first_stage[0]
    with pytest.raises(ValueError, match="feed_forward"):
        model_side.build(of_config(wider)).initial_state()


def test_unknown_objectives_and_uneven_generators_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'replace_mlm'"):
        systems.build("electra", TINY | {"objective": "replaced_mlm"})
    with pytest.raises(ValueError, match=r"generator=0.3 makes a generator of d_model=5 with 2"):
        systems.build("electra", TINY | {"generator": 0.3, "heads": 8})
