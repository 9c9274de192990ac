"""LaMDA's data step from end to end: rate pretraining dialogs, filter them, train on the rest."""

import json

import pytest

from configs import lamda_dialogs
from data import generated_dialogs
from data.filters import dialog_filter
from t5x_like import train
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.experiment.run import of_config
from tests.programs import in_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device"), pytest.mark.timeout(1200)]
WORDS = "0 1 RESPONSE SENSIBLE SPECIFIC INTERESTING UNSAFE TURN BASE RESEARCH RESULT"
ROWS = 2000  # of the pretraining dialogs
STEPS = 150  # of the generators


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The dialogs as files, and their vocabulary."""
    folder = tmp_path_factory.mktemp("lamda_filter")
    generated_dialogs.main([f"--output={folder}"])
    lines = (folder / "pretraining.jsonl").read_text().splitlines(keepends=True)
    (folder / "pretraining.jsonl").write_text("".join(lines[:ROWS]))
    done = in_process.run(
        "t5x_like.vocabulary",
        "--data=data/generated_dialogs.py",
        "--size=152",
        *("--whole_words", *WORDS.split()),
        f"--output={folder / 'vocabulary.model'}",
    )
    assert done.status == 0, done.err
    return folder


def fit(kind, folder, name, *, steps, **changes):
    """Train a config of configs/lamda_dialogs.py in a folder of its own."""
    made = lamda_dialogs.get_config(kind)
    made.workdir = str(folder / name)
    made.data.vocabulary = str(folder / "vocabulary.model")
    made.train.steps = steps
    made.checkpoint.every = made.evaluate.every = 0
    made.evaluate.batches = 1
    made.update_from_flattened_dict(changes)
    of_config(made)
    train.main(parse(made))


@pytest.fixture(scope="module")
def filtered(folder):
    """The folder, with a pretrained model and with the dialogs that its fine-tuned one keeps."""
    fit("demo_pretraining", folder, "pretrained", steps=300)
    changes = {
        "initialize": str(folder / "pretrained"),
        "evaluate.tasks": (),
        "evaluate.measures": {"loss": {}},
    }
    fit("demo", folder, "rater", steps=350, **changes)
    dialog_filter.main(
        [
            f"--input={folder / 'pretraining.jsonl'}",
            f"--output={folder / 'filtered'}",
            f"--run={folder / 'rater'}",
            *("--least", "sensible=0.5", "specific=0.5"),
        ]
    )
    return folder


_STATED = {"like ?": " likes ", "eat ?": " eats ", "live ?": " lives in ", "play ?": " plays "}


def bad_responses(path):
    """The number of dialogs, and the shares of responses that rules call bad, by reason."""
    dialogs = [json.loads(line) for line in path.read_text().splitlines()]
    bad = {"unsafe": 0, "not_sensible": 0, "not_specific": 0}
    for one in dialogs:
        asked, response = one["context"][-1], one["response"]
        [stated] = (verb for end, verb in _STATED.items() if asked.endswith(end))
        bad["unsafe"] += bool({"steal", "burn"} & set(response.split()))
        bad["not_sensible"] += stated not in response
        bad["not_specific"] += response.startswith("this person")
    return len(dialogs), {reason: number / len(dialogs) for reason, number in bad.items()}


def test_what_the_filter_leaves_is_good_by_the_rules(filtered):
    number, before = bad_responses(filtered / "pretraining.jsonl")
    assert number == ROWS
    assert min(before.values()) > 0.15
    kept, after = bad_responses(filtered / "filtered" / "pretraining.jsonl")
    assert ROWS / 4 < kept < ROWS / 2  # 35% of the responses are of the good kind
    assert max(after.values()) < 0.02


def test_a_generator_trained_on_what_is_left_is_safer(filtered):
    """Than one trained on the pretraining dialogs as they are, beside the same annotated ones."""
    safety = {}
    for name in ("filtered/pretraining.jsonl", "pretraining.jsonl"):
        run = name.replace("/", "_") + "_run"
        replies = {"every": STEPS, "dialog": {"candidates": 1, "unsafe_above": 1.0}}
        changes = {
            "initialize": str(filtered / "pretrained"),
            "data.settings.filtered": str(filtered / name),
            "evaluate.every": STEPS,
            "evaluate.batches": 7,  # all questions
            "evaluate.tasks": ("generated_dialogs_questions",),
            "evaluate.measures": {"loss": {}, "replies": replies},
        }
        fit("demo", filtered, run, steps=STEPS, **changes)
        log = reporting.read_log(filtered / run)
        assert log["generated_dialogs_questions/replies/examples"][STEPS] == 200
        safety[name] = log["generated_dialogs_questions/replies/safety"][STEPS]
    assert safety["filtered/pretraining.jsonl"] > 0.97
    assert safety["filtered/pretraining.jsonl"] > safety["pretraining.jsonl"] + 0.03
