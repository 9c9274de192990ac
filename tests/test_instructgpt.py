"""InstructGPT's stages and DPO from a folder to answers: configs, runs, rewards, a conversation."""

import importlib
import json
import pathlib

import pytest

from configs import instructgpt
from t5x_like import evaluate, train
from t5x_like.checkpoints import read_metadata
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.experiment.run import of_config
from t5x_like.inference import text_model
from t5x_like.pretrained import from_pretrained
from t5x_like.vocabularies.chat import find_template
from tests.programs import command_flags, tiny_writer

pytestmark = pytest.mark.usefixtures("one_device")
SYSTEMS = ("gpt2", "t5")
ANSWERS = (" yes", " perhaps", " no")  # the best one first


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run of each system that nobody trained, and files of feedback."""
    folder = tmp_path_factory.mktemp("instructgpt")
    for system in SYSTEMS:
        tiny_writer.write(folder / system, tiny_writer.settings(system), scale=1.0)
    shown, compared = [], []
    for n in range(40):
        turns = [{"role": "user", "content": f"Is {n} a number?"}]
        answers = ({"role": "assistant", "content": text.strip()} for text in ANSWERS)
        shown += [{"messages": [*turns, answer]} for answer in answers]
        order = [n % 3, (n + 1) % 3, (n + 2) % 3]
        responses, ranks = [ANSWERS[one] for one in order], [one + 1 for one in order]
        compared.append({"prompt": turns, "responses": responses, "ranks": ranks})
    for name, rows in (("shown", shown), ("compared", compared)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


def stage(name, folder, *, file, steps=0):
    """The config of a stage on files of feedback; prompts of 40 bytes, responses of 16."""
    module, _, part = name.partition(":")
    made = importlib.import_module(f"configs.{module}").get_config(
        f"{part}:{folder}" if part else str(folder)
    )
    made.workdir = str(folder.parent / f"{folder.name}_{part or module}")
    made.data.settings.train = str(folder.parent / f"{file}.jsonl")
    made.data.settings.held_out = 0.2
    made.data.lengths = {"inputs": 40, "targets": 16}
    made.data.batch_size = 8
    made.decode.max_new_tokens = 12
    made.train.steps = steps or 1
    made.train.log_every = 10
    made.optimizer.learning_rate = 3e-3
    made.optimizer.warmup_steps = 0
    made.evaluate.every = made.checkpoint.every = 0
    made.evaluate.batches = 0
    of_config(made)
    return made


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_stage_reads_as_the_model_before_it(folders, system):
    encoder = system == "t5"
    made = stage("instructgpt:sft", folders / system, file="shown")
    assert made.system == system
    assert made.data.vocabulary == "bytes"
    assert made.data.objective_settings.end_inputs == encoder
    assert made.data.converter == ("encoder_decoder" if encoder else "prefix_lm")
    assert made.model.dropout == 0.2
    assert made.optimizer.end_learning_rate == pytest.approx(3e-4)
    made = stage("instructgpt:reward", folders / system, file="compared")
    assert (made.model.trunk.system, made.model.trunk.dropout) == (system, 0.0)
    assert made.data.objective_settings.to_dict() == {"responses": 9, "end_inputs": encoder}
    made = stage("dpo", folders / system, file="compared")
    assert (made.model.policy.system, made.optimizer.frozen) == (system, ("reference",))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("instructgpt:sft", r"sft lacks the model to start from: give its folder"),
        ("instructgpt:stf", r"has no stage 'stf': choose sft, reward, rewards"),
        ("instructgpt:reward:nowhere", r"there is no folder nowhere"),
        ("dpo", r"configs/dpo\.py lacks the policy to start from"),
    ],
)
def test_a_stage_without_its_folder_is_named(name, message):
    module, _, argument = name.partition(":")
    with pytest.raises(ValueError, match=message):
        importlib.import_module(f"configs.{module}").get_config(argument)


def test_rewards_are_those_of_a_reward_model(folders):
    with pytest.raises(ValueError, match=r"this is a gpt2, and rewards come from a reward_model"):
        stage("instructgpt:rewards", folders / "gpt2", file="shown")


def last(made, name):
    found = reporting.read_log(pathlib.Path(made.workdir))[f"preference_files/{name}"]
    return found[max(found)]


@pytest.fixture(scope="module", params=SYSTEMS)
def tuned(request, folders):
    """A run of supervised fine-tuning, whose demonstrations have each answer as often."""
    sft = stage("instructgpt:sft", folders / request.param, file="shown", steps=300)
    sft.model.dropout = 0.0
    train.main(parse(sft))
    # Of 18 tokens of three answers the first cannot be known, and is the most likely one once.
    assert last(sft, "accuracy") == pytest.approx(16 / 18)
    return pathlib.Path(sft.workdir)


@pytest.mark.slow
def test_a_reward_model_learns_the_order_and_demonstrations_have_mean_0(tuned, monkeypatch):
    reward = stage("instructgpt:reward", tuned, file="compared", steps=60)
    reward.data.objective_settings.responses = 3
    train.main(parse(reward))
    assert last(reward, "accuracy") == 1
    folder = pathlib.Path(reward.workdir)
    command_flags.give(monkeypatch, output=str(folder / "rewards.json"))
    measured = stage("instructgpt:rewards", folder, file="shown")
    measured.workdir = reward.workdir
    evaluate.main(parse(measured))
    normal = instructgpt.normalization(reward.workdir)
    assert normal["scale"] > 0.1
    measured.model.update(normal)
    command_flags.give(monkeypatch, output=str(folder / "shifted.json"))
    evaluate.main(parse(measured))
    found = json.loads((folder / "shifted.json").read_text())["tasks"]["preference_files"]
    assert found["rewards/mean"] == pytest.approx(0, abs=1e-3)
    assert found["rewards/deviation"] == pytest.approx(1, abs=1e-3)


def pair_of(model, prompt, response):
    """A prompt and a response, tokenized as in training."""
    return text_model.TokenPair(
        model.prompt(prompt), [*model.vocabulary.encode(response), model.vocabulary.eos_id]
    )


@pytest.mark.slow
def test_dpo_prefers_what_people_prefer_and_leaves_a_policy(tuned, monkeypatch):
    dpo = stage("dpo", tuned, file="compared", steps=30)
    dpo.data.objective_settings.responses = 3
    dpo.loss.beta, dpo.optimizer.learning_rate = 0.5, 1e-4
    train.main(parse(dpo))
    assert last(dpo, "accuracy") == 1
    assert read_metadata(dpo.workdir)["config"]["system"] == "dpo"
    question = find_template("plain").prompt([{"role": "user", "content": "Is 50 a number?"}])
    policy, reference = (
        text_model.build(from_pretrained(workdir), of_config(dpo).parts[0])
        for workdir in (dpo.workdir, tuned)
    )
    after, before = (
        [
            one.total
            for one in model.score_tokens([pair_of(model, question, one) for one in ANSWERS])
        ]
        for model in (policy, reference)
    )
    gains = [x - y for x, y in zip(after, before, strict=True)]
    assert gains == sorted(gains, reverse=True)
    command_flags.give(monkeypatch)
    evaluate.main(parse(dpo))
    found = json.loads((pathlib.Path(dpo.workdir) / "evaluation.json").read_text())["tasks"]
    assert found["preference_files"]["loss"] == pytest.approx(last(dpo, "loss"), rel=1e-4)
