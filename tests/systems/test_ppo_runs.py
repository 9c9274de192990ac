"""Runs of PPO: from two folders to a policy, resumed, on eight devices, read as a model."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from configs import ppo
from t5x_like import checkpoints, config, partitioning, systems, train
from t5x_like.checkpoints import Checkpoints, reading
from t5x_like.config import parse
from t5x_like.experiment import data_side, model_side, reporting
from t5x_like.experiment.run import of_config
from t5x_like.inference.text_model import TextModel
from t5x_like.pretrained import from_pretrained
from t5x_like.research.planning import chips, report
from t5x_like.systems import gpt2, instructgpt, reward_model, t5
from t5x_like.training.step import create_state
from tests.programs import in_process, processes

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 3
TINY = {"vocab_size": 384, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
POLICY = gpt2.SIZES["small"] | TINY | {"positions": 24, "layers": 1}
T5_LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "d_kv": 8}
POLICIES = {"gpt2": POLICY, "t5": t5.SIZES["v1_0_small"] | TINY | T5_LAYERS}
END = 1  # of bytes


def write_run(folder, system, model, *, seed, data=None):
    """A run of no step, with random parameters; `data` are settings of its own."""
    settings = config.defaults()
    settings.system, settings.model = system, model
    settings.data.update({"vocabulary": "bytes", **(data or {})})
    settings.data.lengths = {"inputs": 8, "targets": 6}
    module = systems.build(system, model)
    init = jax.jit(lambda: nn.unbox(module.init(jax.random.key(seed), module.example_batch())))
    first = create_state(init()["params"], optimizer=optax.identity(), seed=0)
    metadata = {"config": config.to_dict(parse(settings)), "data_shards": 1}
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, first, None)


def write_files(folder, system):
    """Prompts, texts, and the runs of a language model and a reward model."""
    rows = ({"prompt": f"say {n}", "response": "no"} for n in range(60))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.txt").write_text("\n".join(f"text {n} of many" for n in range(50)))
    policy = POLICIES[system]
    write_run(folder / "sft", system, policy, seed=1)
    reward = reward_model.reward_model_of(system, policy)
    write_run(folder / "reward", "reward_model", reward, seed=2)


def settings(folder, system="gpt2"):
    """A run of PPO-ptx in `folder`."""
    made = config.defaults()
    made.system = "instructgpt"
    made.workdir, made.initialize = str(folder / "run"), str(folder / "sft")
    policy = POLICIES[system]
    reward = reward_model.reward_model_of(system, policy)
    made.model = instructgpt.instructgpt_of(system, policy, reward, end_id=END)
    made.model.reward.folder = str(folder / "reward")
    made.loss = {"gamma_ptx": 0.5, "beta": 0.1}
    made.data.module = str(ROOT / "data" / "prompt_files.py")
    made.data.settings = {
        "prompts": str(folder / "prompts.jsonl"),
        "pretraining": str(folder / "texts.txt"),
        "held_out": 0.3,
        "template": {"system": "{}", "user": "{}?", "assistant": "{}"},
    }
    made.data.task, made.data.vocabulary = "prompt_files", "bytes"
    made.data.objective, made.data.converter = "prompts", "decoder_prompts"
    made.data.objective_settings = {"end_inputs": False, "pretraining_rows": 2}
    made.data.lengths = {"inputs": 8, "targets": 6, "pretraining": 12}
    made.data.update({"batch_size": 16, "shards": 2, "shuffle_buffer": 50})
    made.train.update({"steps": STEPS, "log_every": 1, "minibatches": 2, "inner_epochs": 2})
    made.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": 0.01,
        "frozen": ("reference", "reward"),
        "moving_average": {"average": "policy"},
        "moving_average_decay": 0.9,
    }
    made.mesh = {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
    made.checkpoint.update({"every": 1, "keep": 10})
    made.evaluate.update({"every": 0, "batches": 1})
    made.decode = {"max_new_tokens": 6}
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prompts, texts, and the runs of a language model, a reward model and a whole PPO."""
    made = tmp_path_factory.mktemp("ppo")
    write_files(made, "gpt2")
    train.main(parse(settings(made)))
    return made


def stored(workdir, step):
    """All arrays of a checkpoint."""
    found = reading.newest_intact(pathlib.Path(workdir) / "checkpoints" / str(step))
    return {
        item: reading._restore_arrays(found / item, None, cast=False)
        for item in (reading.PARAMS, reading.TRAINING)
    }


def assert_same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), found, expected)


def test_a_run_begins_with_its_two_folders_and_trains_policy_and_value_alone(folder):
    policy = checkpoints.restore_params(folder / "sft")[0]
    reward = checkpoints.restore_params(folder / "reward")[0]
    first, last = (stored(folder / "run", step)["params"] for step in (1, STEPS))
    for params in (first, last):
        assert_same(params["reference"], policy)
        assert_same(params["reward"], reward)
    for name, before in (("policy", policy), ("value", reward), ("average", policy)):
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), last[name], before)
        assert all(one > 0 for one in jax.tree.leaves(moved)), name
    # Adam's two moments of the policy and the value network, and a count.
    moments = stored(folder / "run", STEPS)["training"]["opt_state"]
    trained = [x.size for name in ("policy", "value") for x in jax.tree.leaves(last[name])]
    sizes = [x.size for x in jax.tree.leaves(moments) if x.ndim]
    assert sum(sizes) == 2 * sum(trained)
    counts = {int(x) for x in jax.tree.leaves(moments) if not x.ndim}
    assert counts == {STEPS * 4}  # the optimizer counts updates


def test_the_log_has_what_the_episodes_were(folder):
    log = reporting.read_log(folder / "run")
    for metric in ("reward", "divergence", "ended", "response_length", "entropy", "ratio"):
        assert len(log[f"train/{metric}"]) == STEPS
    for metric in ("value/loss", "pretraining/cross_entropy", "clipped", "learning_rate"):
        assert len(log[f"train/{metric}"]) == STEPS
    assert log["train/ratio"][1] == pytest.approx(1, abs=0.1)
    # At first the policy is its reference.
    assert abs(log["train/divergence"][1]) < 1e-4 < abs(log["train/divergence"][STEPS])
    assert 1 <= log["train/response_length"][1] <= 6
    assert set(log["prompt_files/reward"]) == {STEPS}


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_bit_for_bit(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))
    again = settings(folder)
    again.workdir = str(tmp_path / "run")
    train.main(parse(again))
    assert_same(stored(again.workdir, STEPS), stored(folder / "run", STEPS))
    workdirs = (folder / "run", tmp_path / "run")
    logs = [reporting.read_log(one)["prompt_files/loss"] for one in workdirs]
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_ppo_ptx_of_an_encoder_decoder_learns_and_goes_on_bit_for_bit(tmp_path):
    write_files(tmp_path, "t5")
    first = settings(tmp_path, "t5")
    first.data.converter = "encoder_prompts"
    first.data.objective_settings.pretraining_objective = "prefix_lm"
    first.data.lengths = {
        **{"inputs": 8, "targets": 6},
        **dict.fromkeys(("pretraining_inputs", "pretraining_targets"), 12),
    }
    train.main(parse(first))
    again = first.copy_and_resolve_references()
    again.workdir = str(tmp_path / "again")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "again" / "checkpoints" / str(step))
    train.main(parse(again))
    assert_same(stored(again.workdir, STEPS), stored(first.workdir, STEPS))
    measured = {"rewards/mean": 0.5, "rewards/deviation": 2.0}
    found = {"tasks": {"preference_files": measured}}
    (tmp_path / "reward" / "rewards.json").write_text(json.dumps(found))
    made = ppo.get_config(f"{tmp_path / 'sft'}:{tmp_path / 'reward'}")
    of_config(made)
    assert made.data.converter == "encoder_prompts"
    # The vocabulary has the sentinels that spans need.
    assert made.data.objective_settings.pretraining_objective == "span_corruption"
    lengths = {"pretraining_inputs": 512, "pretraining_targets": 114}
    assert made.data.lengths.to_dict() == {"inputs": 8, "targets": 6} | lengths
    costs = reporting.read_log(tmp_path / "run")["train/pretraining/cross_entropy"]
    assert len(costs) == STEPS
    assert costs[STEPS] < costs[1]
    assert from_pretrained(first.workdir).system == "t5"


@pytest.mark.slow
def test_one_device_computes_what_eight_do(folder):
    alone = settings(folder)
    alone.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}
    model = model_side.build(of_config(alone), devices=jax.devices()[:1])
    data = data_side.build(of_config(alone).parts[0], model.mesh, shards=2)
    batches = train._batches(of_config(alone).parts, {"": data}, step=0, seed=0)
    now, log = model.initial_state(), reporting.read_log(folder / "run")
    with partitioning.layout(model.mesh):
        for step in range(1, STEPS + 1):
            before = now
            now, found = model.train_step(before, model.put(next(batches)[1]))
            # The update has overwritten what it was given.
            assert all(one.is_deleted() for one in jax.tree.leaves(before.opt_state))
            for name in ("loss", "reward", "divergence", "value/loss", "grad_norm"):
                # Float32 sums in another order, through as many updates.
                expected = log[f"train/{name}"][step]
                assert float(found[name].compute()) == pytest.approx(expected, rel=2e-4, abs=2e-5)
    sharded = jax.tree.leaves(model_side.build(of_config(settings(folder))).shardings)
    assert any(not one.is_fully_replicated for one in sharded)


def test_a_run_is_read_as_the_average_of_its_policy(folder, tmp_path):
    model = from_pretrained(folder / "run")
    assert model.system == "gpt2"
    average = stored(folder / "run", STEPS)["params"]["average"]
    assert_same(jax.device_get(model.params), average)
    model.save_pretrained(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["GPT2LMHeadModel"]
    again = from_pretrained(tmp_path / "out")
    assert_same(jax.device_get(again.params), average)


@pytest.mark.slow
def test_a_plan_has_both_programs_of_a_step(folder):
    run = of_config(settings(folder))
    found = report.arithmetic(run)
    found = report.with_compiler(found, run, chips.topology("cpu:8"))
    before = found["prepare"]
    assert before["bytes_per_device"]["optimizer"] == found["bytes_per_device"]["optimizer"]
    for one in (before, found):
        assert one["bytes_per_device"]["peak"] > one["bytes_per_device"]["arguments"] > 0
    # Two inner epochs; of the prompts alone, sampling is no part of the update.
    assert found["flops_per_step"] > 0
    assert before["flops_per_step_compiled"] < found["flops_per_step_compiled"]
    text = report.text(found)
    assert text.count("at the peak") == 2
    assert "before the update: sampling" in text


def test_the_config_follows_its_folders(folder, tmp_path):
    folders = f"{folder / 'sft'}:{folder / 'reward'}"
    with pytest.raises(ValueError, match=r"rewards.json: measure the rewards of demonstrations"):
        ppo.get_config(folders)
    measured = {"rewards/mean": -0.5, "rewards/deviation": 2.0}
    found = {"tasks": {"preference_files": measured}}
    (folder / "reward" / "rewards.json").write_text(json.dumps(found))
    made = ppo.get_config(folders)
    of_config(made)
    assert (made.model.reward.shift, made.model.reward.scale) == (-0.5, 2.0)
    assert made.model.end_id == END
    assert made.data.lengths.to_dict() == {"inputs": 8, "targets": 6, "pretraining": 15}
    assert made.data.settings.template == "plain"
    chat = {"module": "data/preference_files.py", "settings": {"template": "chatml"}}
    write_run(tmp_path / "sft", "gpt2", POLICY, seed=1, data=chat)
    made = ppo.get_config(f"{tmp_path / 'sft'}:{folder / 'reward'}")
    assert made.data.settings.template == "chatml"
    made.optimizer.learning_rate = 1e-5
    built = model_side.build(of_config(made), devices=jax.devices()[:1])
    # Ten iterations of eight updates, from a tenth.
    rates = [float(built.schedule(n)) for n in (0, 80, 5000)]
    np.testing.assert_allclose(rates, [9e-7, 1e-5, 1e-5], rtol=1e-6)
    of_config(ppo.get_config("175b"))
    for folders, message in (
        (f"{folder / 'sft'}", "lacks the model to start from, or the reward model"),
        (f"{folder / 'sft'}:{folder / 'sft'}", "the second folder has a gpt2"),
    ):
        with pytest.raises(ValueError, match=message):
            ppo.get_config(folders)


@pytest.mark.slow
def test_the_commands_take_a_run_for_its_policy(folder, tmp_path, monkeypatch):
    run = f"--config={ROOT / 'configs/run.py'}:{folder / 'run'}"
    done = in_process.run("t5x_like.infer", run, "--input=-", stdin="say 3\n")
    assert done.status == 0, done.err
    done = in_process.run("t5x_like.convert", f"--from={folder / 'run'}", f"--to={tmp_path}/hf")
    assert done.status == 0, done.err
    assert (tmp_path / "hf" / "model.safetensors").exists()
    done = in_process.run("t5x_like.evaluate", run)
    assert done.status == 0, done.err
    prompts, stream = [], TextModel.stream

    def keep(model, prompt, callback, **others):
        prompts.append(model.vocabulary.decode(prompt))
        stream(model, prompt, callback, **others)

    monkeypatch.setattr(TextModel, "stream", keep)
    short = "--config.decode.max_new_tokens=1"  # an answer of one byte leaves room for a turn
    done = in_process.run("t5x_like.infer", run, short, "--interactive", stdin="a\nb\n\nc\n")
    assert done.status == 0, done.err
    assert (prompts[0], prompts[1][:2], prompts[1][-2:], prompts[2]) == ("a?", "a?", "b?", "c?")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["1 update", "2", "3 prepare_step"])
def test_a_process_killed_within_a_rollout_or_update_goes_on_bit_for_bit(folder, tmp_path, killed):
    again = settings(folder)
    again.workdir = str(tmp_path / "run")
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(config.to_dict(parse(again))))
    command = [sys.executable, "-m", "tests.programs.killed_run", str(path), *killed.split()]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    # A save waits for the one before, so that in the third step the first checkpoint is there.
    found = checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints")
    assert found or not killed.startswith("3")
    train.main(parse(again))
    assert_same(stored(again.workdir, STEPS), stored(folder / "run", STEPS))


@pytest.mark.slow
def test_two_processes_compute_what_eight_devices_do(folder, tmp_path):
    together = settings(folder)
    together.workdir = str(tmp_path / "run")
    together.mesh = {"data": 1, "fsdp": 2, "expert": 1, "model": 1}
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(config.to_dict(parse(together))))
    program = (
        f"from t5x_like import config, train; train.main(config.parse(config.load({str(path)!r})))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | one | {"XLA_FLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for one in processes.environments()
    ]
    outputs = [process.communicate(timeout=900)[0] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], outputs
    logs = [reporting.read_log(one) for one in (tmp_path / "run", folder / "run")]
    for name in ("train/loss", "train/reward", "train/divergence", "prompt_files/reward"):
        found, expected = (list(log[name].values()) for log in logs)
        # Float32 sums in another order, through as many updates.
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.reward.folder": ""}, "model.reward.folder is not set: name the folder"),
        ({"initialize": ""}, "initialize is not set"),
        ({"data.objective": "text_to_text"}, "this instructgpt reads the examples of 'prompts'"),
        # The reference and the policy are those of the folder, whose feed-forward is 24 wide.
        (
            {"model.policy.d_ff": 32},
            r"the policy, which is also its reference, .*"
            r"float32\[[\d, ]*24[\d, ]*\], the model as float32\[[\d, ]*32[\d, ]*\]",
        ),
        # Both have networks of 384 tokens.
        (
            {"data.vocabulary": "bytes:0"},
            r"the reward in .*/reward was trained with data.vocabulary='bytes', which is another",
        ),
        ({"loss.betta": 0.1}, "loss.betta does not exist"),
        ({"model.reward.vocab_size": 99}, "the reward model read the same tokens"),
        ({"loss.gae_decay": "high"}, "loss.gae_decay='high' must be a number"),
    ],
)
def test_what_a_run_lacks_is_named(folder, changes, message):
    given = settings(folder)
    with given.unlocked():
        for key, value in changes.items():
            *parents, last = key.split(".")
            node = given
            for parent in parents:
                node = node[parent]
            node[last] = value
    with pytest.raises(ValueError, match=message):
        model_side.build(of_config(given)).initial_state()


def test_only_systems_that_prepare_batches_have_several_updates(folder):
    given = settings(folder)
    given.system, given.model = "gpt2", POLICY
    given.optimizer = {"name": "sgd", "schedule": "constant", "learning_rate": 0.1}
    given.data.objective, given.initialize, given.loss = "language_modeling", "", {}
    with pytest.raises(ValueError, match=r"train.minibatches=2: a step of this gpt2 has one"):
        model_side.build(of_config(given))
