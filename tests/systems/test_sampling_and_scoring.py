"""What is sampled is what is scored: prefix language models, and experts with few slots."""

import functools
import types

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import instructgpt as configs_instructgpt
from t5x_like import config, partitioning, systems
from t5x_like.decoding.generator import Generator
from t5x_like.evaluation.training_evaluation import EvaluationPlan, dry_run
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.inference.likelihood import PromptFormat, Scorer, TokenPair
from t5x_like.losses import preferences
from t5x_like.nn.compound_networks import Ensemble
from t5x_like.nn.moe import undropped
from t5x_like.systems import dpo, instructgpt, policy_optimization, reward_model, switch, t5

VOCABULARY, PROMPT, NEW, END = 12, 6, 5, 2
TINY = {"vocab_size": VOCABULARY, "d_model": 16, "d_ff": 24, "heads": 2, "d_kv": 8}
TINY |= {"encoder_layers": 2, "decoder_layers": 2}
# A slot for one token in eight: without slots for all, most tokens of a row are dropped.
FEW = {"experts": 4, "sparse_every": 1, "eval_capacity_factor": 0.5, "group_size": 64}
PREFIX = {"architecture": "prefix_decoder"}
DECODER = {"architecture": "decoder"}
POLICIES = {
    "prefix": ("t5", t5.SIZES["v1_0_small"] | TINY | PREFIX),
    "experts": ("switch", switch.SIZES["base_8"] | TINY | FEW | DECODER),
    "experts of a prefix": ("switch", switch.SIZES["base_8"] | TINY | FEW | PREFIX),
    "experts of both sides": ("switch", switch.SIZES["base_8"] | TINY | FEW),
}


def policy_of(name, **changes):
    """A network and its parameters, so large that tokens differ."""
    system, settings = POLICIES[name]
    module = systems.build(system, settings | changes)
    init = jax.jit(lambda: nn.unbox(module.init(jax.random.key(1), module.example_batch())))
    return module, jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, init()["params"])


def prompts(*, encodes, rows=8):
    generator = np.random.default_rng(0)
    real = np.arange(PROMPT) < generator.integers(1, PROMPT + 1, rows)[:, None]
    tokens = np.where(real, generator.integers(3, VOCABULARY, real.shape), 0)
    room = {"responses": np.zeros((rows, NEW), int)}
    if not encodes:  # padded on the left
        own = {"decoder_input_tokens": tokens[:, ::-1], "decoder_segment_ids": 1 * real[:, ::-1]}
        return own | room
    first = np.zeros((rows, 1), int)
    own = {"encoder_input_tokens": tokens, "encoder_segment_ids": 1 * real}
    return own | {"decoder_input_tokens": first, "decoder_segment_ids": first + 1} | room


@pytest.mark.parametrize(
    "name",
    [
        "prefix",
        "experts of a prefix",
        pytest.param("experts", marks=pytest.mark.slow),
        pytest.param("experts of both sides", marks=pytest.mark.slow),
    ],
)
def test_the_first_ratio_of_ppo_is_1(name):
    # Of a policy and itself, whatever the policy (Schulman et al. 2017, equation 6).
    system, policy = POLICIES[name]
    reward = reward_model.reward_model_of(system, policy)
    module = systems.build(
        "instructgpt", instructgpt.instructgpt_of(system, policy, reward, end_id=END)
    )
    _, own = policy_of(name)
    trunk = {"trunk": own, "head": {"kernel": np.ones((16, 1), np.float32)}}
    params = dict.fromkeys(("policy", "reference", "average"), own)
    params |= dict.fromkeys(("value", "reward"), trunk)

    @jax.jit
    def run(params, batch):
        state = type("State", (), {"params": params})
        rng = jax.random.key(3)
        episodes = policy_optimization.prepare(module, state, batch, rng, temperature=0.7)
        # An update has other rows beside it than the sample had.
        some = {key: value[:2] for key, value in episodes.items()}
        logits, _ = module.apply({"params": params}, some, method="act")
        return some, policy_optimization.log_probs(logits, some, temperature=0.7)

    episodes, scored = run(params, prompts(encodes=name == "experts of both sides"))
    real = np.asarray(episodes["response_mask"]) > 0
    ratio = np.exp(np.asarray(scored - episodes["old_log_probs"]))[real]
    # Float32 sums over a cache and over whole rows.
    np.testing.assert_allclose(ratio, 1, atol=3e-5)
    np.testing.assert_allclose(episodes["divergence"], 0, atol=1e-4)


def log_probs_in_steps(module, params, prompt, continuation):
    """The log-probabilities of a continuation as generation has them, token by token."""
    generator = Generator(module, params)
    arguments = {"decoder_input_tokens": np.array([[0, *prompt]])}
    logits, cache = generator.prefill(arguments, cache_length=1 + len(prompt) + len(continuation))
    extend = jax.jit(lambda extend, token, cache: extend(token, cache))
    found = []
    for token in continuation:
        found.append(jax.nn.log_softmax(logits)[0, token])
        logits, cache = extend(generator.extend, np.array([[token]]), cache)
        logits = logits[:, 0]
    return np.array(found)


@pytest.mark.parametrize(
    "name",
    [pytest.param("prefix", marks=pytest.mark.slow), "experts"],
)
def test_log_likelihoods_are_those_of_generation_whatever_is_beside_them(name):
    module, params = policy_of(name)
    tokens = np.random.default_rng(2).integers(3, VOCABULARY, (4, 12)).tolist()
    pairs = [TokenPair(row[:4], row[4:]) for row in tokens]
    form = PromptFormat(length=32, sees_prompt=name == "prefix")
    scores = Scorer(module, form, batch_size=4)(params, pairs)
    for (prompt, continuation), score in zip(pairs, scores, strict=True):
        own = log_probs_in_steps(module, params, prompt, continuation)
        np.testing.assert_allclose(score.log_probs, own, atol=3e-5)


def comparisons(rows=4):
    tokens = np.random.default_rng(4).integers(3, VOCABULARY, (rows, 2, 9))
    weights = np.broadcast_to(np.arange(9) >= 4, tokens.shape).astype(np.float32)
    return {
        "decoder_input_tokens": tokens,
        "decoder_segment_ids": np.ones_like(tokens),
        "decoder_target_tokens": np.roll(tokens, -1, axis=2),
        "decoder_loss_weights": weights,
        "ranks": np.tile([1, 2], (rows, 1)),
    }


def test_comparisons_do_not_depend_on_the_rows_beside_them():
    system, policy = POLICIES["experts"]
    settings = policy | {"jitter": 0.0}
    _, own = policy_of("experts")
    pair = systems.build("dpo", dpo.pair_of(system, settings))
    other = jax.tree.map(lambda x: 1.1 * x, own)

    @functools.partial(jax.jit, static_argnames="rows")
    def cost(batch, rows):
        some = {name: x[:rows] for name, x in batch.items()}
        params = {"policy": own, "reference": other}
        return dpo.loss(pair, params, some, jax.random.key(0))[2]["margin"]

    rewards = systems.build("reward_model", reward_model.reward_model_of(system, settings))
    trunk = {"trunk": own, "head": {"kernel": np.ones((16, 1), np.float32)}}
    score = jax.jit(lambda batch: rewards.apply({"params": trunk}, preferences.rows(batch)))
    batch = comparisons()
    alone = [{name: x[n : n + 1] for name, x in batch.items()} for n in range(4)]
    margins = [float(cost(one, rows=1)[0]) for one in alone]
    assert float(cost(batch, rows=4)[0]) == pytest.approx(sum(margins), abs=1e-4)
    each = np.concatenate([score(one) for one in alone])
    np.testing.assert_allclose(score(batch), each, atol=3e-5)
    # The policy is trained without noise, since the reference has none: the first margin is 0.
    same = dpo.loss(pair, {"policy": own, "reference": own}, batch, jax.random.key(0))
    assert float(same[2]["margin"][0]) == pytest.approx(0, abs=1e-5)


def test_experts_spread_over_devices_have_slots_for_all():
    module, params = policy_of("experts")
    pairs = [TokenPair([3, 4], [5, 6, 7, 8])] * 4
    scorer = Scorer(module, PromptFormat(length=16), batch_size=4)
    alone = scorer(params, pairs)[0].log_probs
    with partitioning.layout(partitioning.make_mesh({"data": 2, "expert": 4})):
        spread = Scorer(module, PromptFormat(length=16), batch_size=4)(params, pairs)[0].log_probs
    np.testing.assert_allclose(spread, alone, atol=3e-5)


def test_the_members_of_an_ensemble_drop_nothing():
    module, _ = policy_of("experts")
    both = undropped(Ensemble(members=(module, module.clone())))
    settings = [member.make_decoder.keywords["make_stack"] for member in both.members]
    assert all("drops=False" in repr(one) or "'drops': False" in repr(one) for one in settings)
    dense = Ensemble(members=(policy_of("prefix")[0],))
    assert undropped(dense) is dense


def test_texts_of_experts_that_choose_have_no_probability():
    module, params = policy_of("experts", router="expert_choice")
    with pytest.raises(ValueError, match=r"model\.router='expert_choice': .* train with another"):
        Scorer(module, PromptFormat(length=16), batch_size=4)
    with pytest.raises(ValueError, match=r"model\.router='expert_choice'"):
        Generator(module, params)
    system, policy = POLICIES["experts"]
    pair = systems.build("dpo", dpo.pair_of(system, policy | {"router": "expert_choice"}))
    with pytest.raises(ValueError, match=r"model\.router='expert_choice'"):
        jax.eval_shape(pair.init, jax.random.key(0), pair.example_batch())


@pytest.mark.slow
def test_slots_that_each_row_of_an_encoder_has_for_itself_stay():
    # Hugging Face's SwitchTransformersTop1Router has `expert_capacity` slots in each row, also when
    # it generates (transformers 5.24, models/switch_transformers).
    settings = {"expert_capacity": 1, "group_size": 0}
    module, params = policy_of("experts of both sides", **settings)
    tokens = np.arange(3, 11)[None]
    batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens * 0}
    states = [
        jax.jit(functools.partial(one.apply, collect=("hidden_states",)))({"params": params}, batch)
        for one in (module, undropped(module))
    ]
    states = [collected["encoder"] for _, collected in states]
    for kept, same in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(kept, same)


def test_a_measure_of_texts_without_a_probability_is_refused_before_training():
    settings = config.defaults()
    settings.system = "switch"
    settings.model = POLICIES["experts"][1] | {"router": "expert_choice", "vocab_size": 384}
    settings.data.update({"objective": "language_modeling", "converter": "decoder"})
    settings.data.vocabulary = "bytes"
    settings.data.lengths = {"targets": 8}
    settings.optimizer = {"name": "sgd", "schedule": "constant", "learning_rate": 0.1}
    settings.mesh = {"data": 1}
    settings.train.steps, settings.evaluate.every = 4, 2
    models = {"": model_side.build(of_config(settings), devices=jax.devices()[:1])}

    def run(every):
        settings.evaluate.measures = {"loss": {}, "documents": {"every": every}}
        made = of_config(settings)
        [phase] = made.phases
        data = {"": types.SimpleNamespace(part=phase.parts[0])}
        dry_run(EvaluationPlan(made), models, data, phase)

    run(every=0)
    with pytest.raises(ValueError, match=r"documents: model\.router='expert_choice'"):
        run(every=2)


def test_compared_models_are_trained_without_noise():
    settings = POLICIES["experts"][1] | {"dropout": 0.1, "expert_dropout": 0.2}
    noise = configs_instructgpt.without_noise(settings)
    assert noise == {"dropout": 0.0, "expert_dropout": 0.0, "jitter": 0.0}
