"""Ladders: equal counted FLOPs, schedules as long as the runs, reading them back, refusals."""

import dataclasses
import json
import math

import pytest

from configs import distilbert
from t5x_like import config, scaling
from t5x_like.config import parse
from t5x_like.research.scaling_laws import cost, ladder, trained
from t5x_like.research.scaling_laws.ladder import Design
from t5x_like.research.scaling_laws.law import Law
from tests.programs import tiny_writer

SIZES = ("1x16", "2x32", "3x48")
BUDGETS = (2e10, 1e10)


def base(**changes):
    """A run of GPT-2 on bytes whose cosine ends with it, with a warmup of a tenth."""
    settings = tiny_writer.settings("gpt2", heads=4, d_ff=128)
    settings.data.task = "texts"
    settings.data.batch_size = 2
    settings.train.steps = 200
    settings.optimizer = {
        "name": "adamw",
        "schedule": "cosine",
        "learning_rate": 1e-2,
        "end_learning_rate": 1e-3,
        "warmup_steps": 20,
        "decay_steps": 200,
    }
    settings.update_from_flattened_dict(changes)
    return settings


@pytest.fixture(scope="module")
def rungs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ladder")
    made = ladder.design(parse(base()), Design(BUDGETS, SIZES), folder=folder)
    ladder.write(made)
    return made


def test_the_flops_of_a_budget_are_equal_to_half_a_step(rungs):
    assert [rung.budget for rung in rungs] == [1e10] * 3 + [2e10] * 3
    for rung in rungs:
        step = rung.flops / rung.settings.train.steps
        assert abs(rung.flops - rung.budget) <= step / 2
        assert rung.tokens == rung.settings.train.steps * 2 * 64


def test_warmup_and_cosine_are_as_long_as_the_run(rungs):
    for rung in rungs:
        steps, optimizer = rung.settings.train.steps, rung.settings.optimizer
        assert optimizer["decay_steps"] == steps
        assert optimizer["warmup_steps"] == max(1, round(steps / 10))
        assert optimizer["end_learning_rate"] == pytest.approx(optimizer["learning_rate"] / 10)
    assert len({rung.settings.train.steps for rung in rungs}) == 6


def test_shapes_keep_the_ratios_of_the_config(rungs):
    model = rungs[2].settings.model
    sizes = [model[name] for name in ("layers", "d_model", "d_ff", "heads")]
    assert sizes == [3, 48, 192, 6]
    assert rungs[2].cost.parameters > rungs[2].cost.without_embeddings > 0


def test_flops_are_those_of_the_papers_appendix_f():
    """Hoffmann et al. 2022, appendix F, without lookups and softmax: no matrix products."""
    model = {"layers": 3, "d_model": 32, "d_ff": 96, "heads": 2, "vocab_size": 384}
    settings = base(**{f"model.{name}": value for name, value in model.items()})
    length, width, inner = 64, 32, 96
    attention = 2 * 3 * length * width * width + 4 * length**2 * width + 2 * length * width**2
    feed_forward = 2 * length * 2 * width * inner
    forward = 3 * (attention + feed_forward) + 2 * length * width * 384
    found = cost.of_settings(parse(settings))
    assert found.flops_per_token == pytest.approx(3 * forward / length)
    assert cost.of_settings(parse(settings), count="6nd").flops_per_token == 6 * found.parameters


def test_runs_with_equal_networks_and_batches_are_counted_once():
    def network(**changes):
        return cost._network(parse(base(**changes)))

    same = network(**{"data.seed": 1, "train.seed": 1, "train.steps": 7, "data.task": "another"})
    assert network() == same
    for change in (
        {"data.lengths.targets": 32},
        {"data.batch_size": 4},
        {"model.layers": 5},
        {"loss": {"z_loss": 1e-4}},
    ):
        assert network(**change) != same


def test_the_folder_that_a_run_starts_from_does_not_count():
    """DistilBERT's training needs its teacher's folder; a plan comes before there is one."""
    settings = distilbert.get_config("base")
    settings.initialize = ""
    settings.model.update({"d_model": 16, "heads": 2, "d_ff": 32, "vocab_size": 384})
    settings.model.teacher.update({"d_model": 16, "heads": 2, "d_ff": 32, "vocab_size": 384})
    assert cost.of_settings(parse(settings)).parameters > 0


def test_the_cost_of_several_tasks_is_the_mean_over_the_steps():
    def of(length):
        settings = base(**{"data.lengths.targets": length})
        return cost.of_settings(parse(settings)).flops_per_token * 2 * length  # two rows

    settings = base()
    settings.tasks = {
        "short": {"share": 3.0, "data": {"lengths": {"targets": 32}}},
        "long": {"data": {"lengths": {"targets": 64}}},
    }
    tokens = 2 * (0.75 * 32 + 0.25 * 64)
    assert cost.tokens_at(parse(settings), [200]) == [200 * tokens]
    expected = (0.75 * of(32) + 0.25 * of(64)) / tokens
    assert cost.of_settings(parse(settings)).flops_per_token == pytest.approx(expected)


def test_equal_6nd_and_other_limits(tmp_path):
    wanted = Design((1e10,), SIZES, rates=(3e-2, 2e-2, 1e-2), count="6nd")
    made = ladder.design(parse(base()), wanted, folder=tmp_path)
    assert [rung.settings.optimizer["learning_rate"] for rung in made] == [3e-2, 2e-2, 1e-2]
    for rung in made:
        assert 6 * rung.cost.parameters * rung.tokens == pytest.approx(1e10, rel=0.01)
    few = Design((1e10,), (*SIZES, "4x64"), corpus_tokens=made[0].tokens - 1, count="6nd")
    assert [rung.size for rung in ladder.design(parse(base()), few, folder=tmp_path)] == [
        "2x32",
        "3x48",
        "4x64",
    ]


@pytest.mark.parametrize(
    ("changes", "wanted", "message"),
    [
        (
            {},
            {"budgets": (2e7,)},
            r"--flops=2e\+07 is too small for size 1x16 of 10,480",
        ),
        ({}, {"budgets": (-1.0,)}, "--flops=-1 must be above 0"),
        ({}, {"sizes": ("2x33", *SIZES)}, "the width of 2x33 must be a multiple of 8"),
        ({}, {"sizes": ("smal", *SIZES)}, "gpt2 has no size 'smal'.* Did you mean 'small'"),
        ({}, {"rates": (1e-3,)}, "--learning_rates has 1 values for 3 --sizes"),
        ({}, {"tokens_per_parameter": (1e6, 1e7)}, "has none of the --sizes within --ratio"),
        ({}, {"count": "7nd"}, "--count='7nd' does not exist"),
        ({"optimizer.schedule": "constant"}, {}, "optimizer.schedule='constant' must be 'cosine'"),
    ],
)
def test_what_a_ladder_refuses(changes, wanted, message, tmp_path):
    made = Design(**{"budgets": BUDGETS, "sizes": SIZES} | wanted)
    with pytest.raises(ValueError, match=message):
        ladder.design(parse(base(**changes)), made, folder=tmp_path)


def test_a_budget_of_one_size_is_a_larger_run_to_keep_apart(tmp_path, capsys):
    base_file = tmp_path / "config.json"
    base_file.write_text(json.dumps(config.to_dict(parse(base()))))
    flags = [f"--config=configs/run.py:{tmp_path}", "--flops=4e10", "--sizes=2x32"]
    scaling.main(["ladder", *flags, f"--output={tmp_path / 'ladder'}"])
    out = capsys.readouterr().out
    assert "warning: approach 2 leaves out 1 budgets of fewer than 3 sizes (C = 4e+10)" in out
    assert (tmp_path / "ladder" / "4.00e+10_2x32" / "config.json").is_file()


def test_runs_of_few_steps_are_named(rungs, tmp_path):
    [warning] = ladder.warnings(rungs)
    assert "3 of 6 runs have fewer than 300 steps (1.00e+10_3x48: 109)" in warning
    many = ladder.design(parse(base()), Design((4e10,), SIZES), folder=tmp_path)
    assert ladder.warnings(many) == []


def test_a_folder_of_other_settings_is_not_overwritten(rungs):
    ladder.write(rungs)  # the same again
    folder = rungs[0].folder.parent
    other = ladder.design(parse(base(**{"train.seed": 1})), Design(BUDGETS, SIZES), folder=folder)
    with pytest.raises(ValueError, match="is of a run with other settings"):
        ladder.write(other)


LAW = Law(E=1.0, A=20.0, B=100.0, alpha=0.4, beta=0.4)


def finish(rung):
    """Writes the log of a run whose losses are the law's."""
    steps = rung.settings.train.steps
    each, n = rung.tokens / steps, rung.cost.parameters
    with (rung.folder / "metrics.jsonl").open("w") as file:
        for step in range(rung.settings.train.log_every, steps + 1, rung.settings.train.log_every):
            loss = float(LAW.loss(n, each * step))
            file.write(json.dumps({"step": step, "train/cross_entropy": loss}) + "\n")
        final = float(LAW.loss(n, rung.tokens))
        file.write(json.dumps({"step": steps, "texts/cross_entropy": final}) + "\n")


def test_finished_runs_are_read_and_not_trained_again(rungs, capsys):
    for rung in rungs:
        finish(rung)
    found, left_out = trained.read_folder(rungs[0].folder.parent)
    assert left_out == []
    by_name = {run.name: run for run in found}
    for rung in rungs:
        run = by_name[rung.folder.name]
        assert (run.n, run.d) == (rung.cost.parameters, rung.tokens)
        assert run.c == pytest.approx(rung.flops)
        assert run.loss == pytest.approx(float(LAW.loss(run.n, run.d)))
        assert run.decay_tokens == pytest.approx(run.d)
        assert len(run.curve[0]) >= 50
    assert ladder.train_ladder(rungs)
    assert capsys.readouterr().out.count("(finished before)") == 6

    last = rungs[-1].folder / "metrics.jsonl"
    last.write_text("".join(last.read_text().splitlines(keepends=True)[:-1]))
    found, left_out = trained.read_folder(rungs[0].folder.parent)
    assert len(found) == 5
    assert left_out == [f"{rungs[-1].folder.name} is not finished, and left out"]
    finish(rungs[-1])


def test_a_folder_is_fitted_with_its_curves_and_without_embeddings(rungs, tmp_path):
    for rung in rungs:
        finish(rung)
    file = tmp_path / "fit.json"
    scaling.main(
        ["fit", str(rungs[0].folder.parent), f"--json={file}", "--bootstrap=0", "--count=6nd"]
    )
    found = json.loads(file.read_text())
    assert found["runs"] == 6
    assert found["approach_1"]["curves"] is True
    assert found["variable_projection"]["alpha"] == pytest.approx(LAW.alpha, rel=1e-5)
    assert found["variable_projection"]["B"] == pytest.approx(LAW.B, rel=1e-5)
    assert found["without_embeddings"]["approach_3"]["alpha"] != found["approach_3"]["alpha"]
    assert any("few points" in one for one in found["warnings"])


def test_a_run_that_never_decays_is_known(rungs):
    optimizer = {**rungs[0].settings.optimizer, "schedule": "constant"}
    settings = dataclasses.replace(rungs[0].settings, optimizer=optimizer)
    (rungs[0].folder / "config.json").write_text(json.dumps(config.to_dict(settings)))
    [run] = [
        one
        for one in trained.read_folder(rungs[0].folder.parent)[0]
        if one.name == rungs[0].folder.name
    ]
    assert run.decay_tokens == math.inf
    ladder_text = json.dumps(config.to_dict(rungs[0].settings), indent=2)
    (rungs[0].folder / "config.json").write_text(ladder_text + "\n")


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        scaling.main(["fit", str(tmp_path)])
    assert "has no folders of runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes=1x16", "--output=x", "--flops=1e9"], "--system is not set"),
        (["--sizes=1x16", "--output=x", "--flops=1e9,x", "--system=gpt2"], "--flops='1e9,x' must"),
        (
            ["--sizes=1x16", "--output=x", "--flops=1e9", "--system=gpt2", "--ratio=3"],
            "--ratio='3'",
        ),
        (["--sizes=1x16", "--output=x", "--flops=1", "--system=gp2"], "'configs/gp2.py' does not"),
        (["--sizes=1x16", "--output=x", "--system=gpt2"], "required: --flops"),
    ],
)
def test_bad_flags_of_a_ladder(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        scaling.main(["ladder", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_ladder_trains_and_goes_on(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(f"line {n} of many lines" for n in range(5000)))
    changes = {"data.module": "data/text_files.py", "data.task": "text_files"}
    made = base(**changes, **{"data.batch_size": 8})  # a row for each simulated device
    made.data.settings = {"files": str(tmp_path / "texts.txt")}
    made.evaluate.batches = 2
    wanted = Design((3.5e9,), ("1x16", "2x16", "1x24"))
    made = ladder.design(parse(made), wanted, folder=tmp_path / "ladder")
    ladder.write(made)
    assert ladder.train_ladder(made)
    assert ladder.train_ladder(made)
    assert capsys.readouterr().out.count("(finished before)") == 3
    found, _ = trained.read_folder(tmp_path / "ladder")
    assert all(run.loss < math.log(384) for run in found)
    data = dataclasses.replace(made[0].settings.data, task="absent")
    broken = dataclasses.replace(made[0], settings=dataclasses.replace(made[0].settings, data=data))
    (broken.folder / "metrics.jsonl").unlink()
    (broken.folder / "config.json").write_text(json.dumps(config.to_dict(broken.settings)))
    with pytest.raises(ValueError, match=r"failed with status 2: error: .*absent"):
        ladder.train_ladder([broken])
