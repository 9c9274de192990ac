"""Sparrow: judgements as rows, their loss, and rules that an episode is scored by."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import pretrained
from configs import sparrow as config
from data import rule_files
from data.generators import instructions
from t5x_like import from_pretrained, infer, systems, train, vocabularies
from t5x_like.batches import converters, packing
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse, to_dict
from t5x_like.experiment import model_side, reporting
from t5x_like.experiment.run import Run
from t5x_like.inference import ranked_model, text_model
from t5x_like.inference.likelihood import PromptFormat
from t5x_like.losses import preferences
from t5x_like.objectives import build
from t5x_like.objectives.objective import ExampleSpec, Feature
from t5x_like.objectives.prompts import RULE, rule_tokens
from t5x_like.systems import instructgpt, reward_model, sparrow
from tests.programs import command_flags, tiny_writer
from tests.systems import test_ppo

BYTES = vocabularies.load("bytes")
RULES = ((3, 5, 4, 2), (6, 2))


def test_the_loss_is_the_cross_entropy_of_a_violation():
    # log 4 to 1 for a violation, which is one, and is none; then padding.
    logits = jnp.array([[np.log(4.0)], [np.log(4.0)], [-7.0]])
    total, number, metrics = preferences.violations(logits, jnp.array([[2], [1], [0]]))
    assert float(total) == pytest.approx(-np.log(0.8) - np.log(0.2), rel=1e-6)
    assert float(number) == 2
    assert {name: float(a / b) for name, (a, b) in metrics.items()} == {
        "accuracy": 0.5,
        "violated": 0.5,
    }


def test_the_reward_is_the_preference_and_the_mean_of_the_rules_that_are_followed():
    logits = jnp.array([[np.log(0.25), np.log(1.0)], [np.log(9.0), np.log(9.0)]])
    found = sparrow.combined_reward(jnp.array([1.0, -0.5]), logits, weight=2.0)
    # Followed with probabilities 0.8 and 0.5, and with 0.1 and 0.1.
    np.testing.assert_allclose(found, [1.0 + 2 * 0.65, -0.5 + 2 * 0.1], rtol=1e-6)


def example(row, *, targets=40):
    feature = Feature(vocabulary=BYTES)
    given = ExampleSpec({"inputs": 12, "targets": targets}, {"inputs": feature, "targets": feature})
    [found] = build("judgements", end_inputs=False).plan(given)(row, np.random.default_rng(0))
    return found


def test_a_judgement_is_the_response_and_the_rule_each_with_an_end():
    row = {"prompt": "A pet?", "response": " A dog.", "rule": "No dogs.", "violates": 1}
    found = example(row)
    rule = rule_tokens(BYTES, "No dogs.")
    assert rule == [*BYTES.encode(RULE.format("No dogs.")), 1]
    assert found["targets"].tolist() == [*BYTES.encode(" A dog."), 1, *rule]
    assert found["inputs"].tolist() == BYTES.encode("A pet?")
    assert (found["ranks"].tolist(), set(found["row_numbers"].tolist())) == ([2], {1})
    assert example({**row, "violates": 0})["ranks"].tolist() == [1]
    # A response that is too long loses its end, and never the rule.
    short = example({**row, "response": "x" * 99}, targets=len(rule) + 4)
    assert short["targets"].tolist() == [*BYTES.encode("xxx"), 1, *rule]
    with pytest.raises(ValueError, match=r"data.lengths.targets=16 has no room for a response and"):
        example(row, targets=16)


def settings(system):
    """Settings of the networks of `test_ppo`, with two rules."""
    trained = test_ppo.settings(system)
    rules = reward_model.reward_model_of(system, test_ppo.POLICIES[system])
    return sparrow.sparrow_of(trained, rules, RULES)


PROMPT, RESPONSES = [7, 3, 8], [[4, 9, 2], [5, 2]]


def episodes(system):
    """The responses to the prompt, which is padded on the left; the responses on the right."""
    before, room = ([0], 1) if system == "t5" else ([0, *PROMPT], 5)
    new = 4
    tokens, real, causal = np.zeros((3, len(RESPONSES), room + new), np.int32)
    for number, response in enumerate(RESPONSES):
        first, last = room - len(before), room + len(response)
        tokens[number, first:last] = [*before, *response]
        real[number, first:last], causal[number, first:room] = 1, 1
    own = {
        "decoder_input_tokens": tokens,
        "decoder_segment_ids": real,
        "decoder_positions": np.maximum(np.cumsum(real, axis=1) - 1, 0),
        "response_mask": real[:, room:],
    }
    if system == "t5":
        own["encoder_input_tokens"] = np.array([PROMPT] * len(RESPONSES))
        own["encoder_segment_ids"] = np.ones_like(own["encoder_input_tokens"])
    else:
        own["decoder_causal_attention"] = causal
    return {name: jnp.asarray(x) for name, x in own.items()}


def row_of_judgement(system, response, rule):
    """The batch of a judgement, as in the training of a rule model."""
    kind = "encoder_decoder_comparisons" if system == "t5" else "decoder_comparisons"
    converter = converters.build(kind, responses=1)
    targets = np.array([*response, *rule], np.int32)
    row = {
        "inputs": np.array(PROMPT, np.int32),
        "targets": targets,
        "row_numbers": np.ones_like(targets),
        "ranks": np.array([1], np.int32),
    }
    lengths = converter.feature_lengths({"inputs": 6, "targets": 12})
    rows = [[converter.sequences(row)]]
    batch = packing.to_batch(rows, converter=converter, lengths=lengths, pack=False)
    return preferences.rows(batch)


@pytest.mark.parametrize("system", ["gpt2", "t5"])
def test_an_episode_is_judged_like_the_row_of_a_judgement(system):
    module = systems.build("sparrow", settings(system))
    params = jax.jit(lambda: module.init(jax.random.key(0), module.example_batch()))()["params"]
    params = jax.tree.map(lambda x: x * 4.0 if x.ndim > 1 else x, params)
    own, variables = episodes(system), {"params": params}
    found = module.apply(variables, own, method="violations")
    network, preferred = (
        systems.build(kind, systems.inside(settings(system), part))
        for kind, part in (("rule_model", "rules"), ("reward_model", "reward"))
    )
    for number, response in enumerate(RESPONSES):
        for place, rule in enumerate(RULES):
            row = row_of_judgement(system, response, rule)
            [expected] = network.apply({"params": params["rules"]}, row)
            # The same row in other positions of a batch: float32 sums in another order.
            np.testing.assert_allclose(found[number, place], expected, rtol=1e-4, atol=1e-5)
    reward = module.apply(variables, own, method="rewards")
    preference = preferred.apply({"params": params["reward"]}, own)
    expected = preference + np.mean(1 / (1 + np.exp(found)), axis=1)
    np.testing.assert_allclose(reward, expected, rtol=1e-5)
    assert np.ptp(found) > 1e-3  # rules and responses differ


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule_tokens": ()}, "model.rule_tokens must have the tokens of one rule or more"),
        ({"rule_tokens": ((1,), ())}, "model.rule_tokens must have the tokens of one rule or more"),
        ({"rules": {"vocab_size": 9}}, "model.rules.vocab_size=9, and model.vocab_size=10"),
    ],
)
def test_bad_rules_are_refused(changes, message):
    made = settings("gpt2")
    rules = {**made["rules"], **changes.pop("rules", {})}
    with pytest.raises(ValueError, match=message):
        systems.build("sparrow", {**made, "rules": rules, **changes})


def test_a_bad_line_of_judgements_is_named(tmp_path):
    good = {"prompt": "a", "response": "b", "rule": "c", "violates": True}
    for bad, message in (
        ({**good, "rule": " "}, r"rows.jsonl:2: the 'rule' is empty$"),
        ({**good, "violates": "yes"}, r"rows.jsonl:2: violates='yes' must be true or false"),
        ({"prompt": "a", "respond": "b"}, r"no string 'response'. Did you mean 'respond'"),
        (
            {name: value for name, value in good.items() if name != "violates"} | {"violated": 1},
            r"rows.jsonl:2: there is no 'violates'. Did you mean 'violated'",
        ),
    ):
        path = tmp_path / "rows.jsonl"
        path.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
        with pytest.raises(ValueError, match=message):
            rule_files.read(train=str(path))


def test_judgements_of_generated_instructions_follow_the_labeler():
    row = {
        "prompt": "Text: Return the rank. Question: which package is it from? Answer:",
        "kind": "package",
        "text": "Return the rank.",
        "answer": "numpy",
        "response": "Simply, it is from numpy.",
    }
    found = {one["rule"]: one["violates"] for one in instructions.judgements(row)}
    assert list(found.values()) == [0, 0, 1]
    found = instructions.judgements({**row, "response": "I do not know. " * 3})
    assert [one["violates"] for one in found] == [1, 1, 0]


def judged(path, *, rows, seed):
    """Responses of one word, which violate the rule that names the word."""
    random, words = np.random.default_rng(seed), ("yes", "no")
    made = []
    for n in range(rows):
        said, banned = (str(one) for one in random.choice(words, 2))
        own = {"prompt": f"Is {n} a number?", "response": f" {said}", "rule": f"not {banned}"}
        made.append({**own, "violates": said == banned})
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(path)


def write_run(folder):
    """Writes a run of no step: a policy with its reward model and its rule model."""
    made = tiny_writer.settings("gpt2")
    policy = made.model.to_dict()
    reward = reward_model.reward_model_of("gpt2", policy)
    trained = instructgpt.instructgpt_of("gpt2", policy, reward, end_id=1)
    made.system = "sparrow"
    made.model = sparrow.sparrow_of(trained, reward, RULES)
    made.data.objective, made.data.converter = "prompts", "decoder_prompts"
    made.data.lengths = {"inputs": 24, "targets": 6}
    module = systems.build("sparrow", made.model.to_dict())
    variables = jax.jit(lambda: module.init(jax.random.key(0), module.example_batch()))()
    params = jax.tree.map(lambda x: 3.0 * x, nn.unbox(variables["params"]))
    metadata = {"config": to_dict(parse(made)), "data_shards": 1}
    state = model_side.build(Run(parse(tiny_writer.settings("gpt2")))).initial_state()
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, state.replace(params=params), None)
    return folder


@pytest.mark.usefixtures("one_device")
def test_infer_writes_the_best_of_several_responses(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    (tmp_path / "prompts.txt").write_text("What is it?\nWho was there?\n")
    made = pretrained.get_config()
    made.initialize = str(folder)
    made.data.batch_size, made.decode.max_new_tokens = 2, 6
    chosen = []
    fetch = ranked_model.fetch
    monkeypatch.setattr(ranked_model, "fetch", lambda x: chosen.append(fetch(x)) or chosen[-1])
    command_flags.give(
        monkeypatch,
        input=str(tmp_path / "prompts.txt"),
        output=str(tmp_path / "out.jsonl"),
        best_of=5,
    )
    infer.main(parse(made))
    [(tokens, lengths)] = chosen
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, own, size in zip(written, tokens, lengths, strict=True):
        text = BYTES.decode([int(one) for one in own[:size] if one != 1])
        assert row["prediction"].strip() == text.strip()


@pytest.mark.usefixtures("one_device")
def test_settings_that_do_not_rank_are_refused(tmp_path):
    whole = from_pretrained(write_run(tmp_path / "run"), whole=True)

    def ranked(**decode):
        prompt_format = PromptFormat(length=24, start=None)
        model = text_model.TextModel(
            whole.policy(), BYTES, prompt_format, batch_size=2, decode=decode
        )
        return ranked_model.RankedModel(model, whole, number=3)

    assert ranked(temperature=0.7, do_sample=True, num_beams=1)._temperature == 0.7
    for decode, message in (
        ({"temperature": 0.0}, r"temperature=0\.0 must be above 0"),
        ({"num_beams": 4}, "decode.num_beams=4 has no effect"),
        ({"do_sample": True, "top_k": 5}, "decode.top_k=5 has no effect with --best_of"),
        ({"no_repeat_ngram_size": 2}, "decode.no_repeat_ngram_size=2 has no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            ranked(**decode)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_rule_model_reads_the_rule_and_a_policy_is_trained_with_it(tmp_path):
    tiny_writer.write(tmp_path / "sft", tiny_writer.settings("gpt2"), scale=1.0)
    made = config.get_config(f"rules:{tmp_path / 'sft'}")
    made.workdir = str(tmp_path / "rules")
    made.data.settings.train = judged(tmp_path / "train.jsonl", rows=400, seed=0)
    made.data.settings.validation = judged(tmp_path / "held_out.jsonl", rows=100, seed=1)
    made.data.lengths = {"inputs": 24, "targets": 24}
    made.data.batch_size = 16
    made.train.steps = 300
    made.optimizer.learning_rate = 3e-3
    made.evaluate.every = made.checkpoint.every = 0
    made.evaluate.batches = 0
    train.main(parse(made))
    [accuracy] = reporting.read_log(tmp_path / "rules")["rule_files/accuracy"].values()
    # Neither the response nor the rule by itself tells more than a coin.
    assert accuracy > 0.95
    (tmp_path / "rules" / config.RULES).write_text("not yes\n\nnot no\n")
    tiny = tiny_writer.settings("gpt2")
    tiny.system, tiny.model, tiny.initialize = "reward_model", made.model, made.initialize
    tiny.data.objective, tiny.data.converter = "comparisons", "decoder_comparisons"
    tiny.data.objective_settings = {"responses": 2, "end_inputs": False}
    tiny_writer.write(tmp_path / "reward", tiny, scale=1.0)
    numbers = {"tasks": {"preference_files": {"rewards/mean": 0.0, "rewards/deviation": 1.0}}}
    (tmp_path / "reward" / "rewards.json").write_text(json.dumps(numbers))
    folders = ":".join(str(tmp_path / name) for name in ("sft", "reward", "rules"))
    made = config.get_config(f"ppo:{folders}")
    assert len(made.model.rule_tokens) == 2
    made.workdir = str(tmp_path / "ppo")
    prompts = "".join(json.dumps({"prompt": f"Is {n} a number?"}) + "\n" for n in range(40))
    (tmp_path / "prompts.jsonl").write_text(prompts)
    made.data.settings.prompts = str(tmp_path / "prompts.jsonl")
    made.data.objective_settings.pretraining_rows = 0
    made.loss.gamma_ptx = 0.0
    made.data.lengths = {"inputs": 24, "targets": 8}
    made.data.batch_size = 8
    made.train.update({"steps": 2, "minibatches": 2})
    made.evaluate.every = made.checkpoint.every = 0
    train.main(parse(made))
    [reward] = reporting.read_log(tmp_path / "ppo")["prompt_files/reward"].values()
    assert np.isfinite(reward)


def test_the_rank_is_the_probability_of_preference_and_of_following_all_rules():
    logits = jnp.array([[np.log(0.25), np.log(1.0)], [np.log(9.0), np.log(9.0)]])
    found = sparrow.reranking_score(jnp.array([np.log(3.0), 0.0]), logits)
    # Preferred to a mean response with probabilities 0.75 and 0.5.
    np.testing.assert_allclose(np.exp(found), [0.75 * 0.8 * 0.5, 0.5 * 0.1 * 0.1], rtol=1e-6)


@pytest.mark.parametrize("system", ["gpt2", "t5"])
def test_the_best_of_several_responses_has_the_highest_rank(system):
    """The chosen responses, as episodes of this file, have the ranks that were chosen by."""
    module = systems.build("sparrow", settings(system))
    params = jax.jit(lambda: module.init(jax.random.key(0), module.example_batch()))()["params"]
    params = jax.tree.map(lambda x: x * 4.0 if x.ndim > 1 else x, params)
    prompts = {
        name: x for name, x in episodes(system).items() if name.startswith(("enc", "decoder_in"))
    }
    new = episodes(system)["response_mask"].shape[1]
    prompts["decoder_input_tokens"] = prompts["decoder_input_tokens"][:, :-new]
    prompts["decoder_segment_ids"] = episodes(system)["decoder_segment_ids"][:, :-new]
    prompts["responses"] = jnp.zeros((len(RESPONSES), new), jnp.int32)
    tokens, lengths, ranks = ranked_model.best(
        module, params, prompts, jax.random.key(1), number=4, temperature=1.0
    )
    assert ranks.shape == (len(RESPONSES), 4)
    assert np.ptp(ranks, axis=1).max() > 1e-3
    own = episodes(system)
    mask = (np.arange(new) < np.asarray(lengths)[:, None]).astype(np.int32)
    segments = jnp.concatenate([prompts["decoder_segment_ids"], mask], axis=1)
    own |= {
        "decoder_input_tokens": jnp.concatenate([prompts["decoder_input_tokens"], tokens], axis=1),
        "decoder_segment_ids": segments,
        "decoder_positions": jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0),
        "response_mask": jnp.asarray(mask),
    }
    variables = {"params": params}
    found = module.apply(variables, own, method="ranking")
    np.testing.assert_allclose(found, jnp.max(ranks, axis=1), rtol=1e-4, atol=1e-5)
    logits = np.asarray(module.apply(variables, own, method="violations"), np.float64)
    preference = systems.build("reward_model", systems.inside(settings(system), "reward")).apply(
        {"params": params["reward"]}, own
    )
    expected = -np.log1p(np.exp(-np.asarray(preference))) - np.log1p(np.exp(logits)).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
