"""Studies: cells and the runs that they share, changed arms, verdicts, the page, the command."""

import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from t5x_like import study as command
from t5x_like import systems
from t5x_like.experiment import command_line, training_processes
from t5x_like.research.studies import (
    Arm,
    Claim,
    Curve,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    TrainingRun,
    cells,
    definition,
    estimate,
    results,
)
from tests.programs import toy_study

ROOT = pathlib.Path(__file__).parents[2]
TOY = str(ROOT / "tests" / "programs" / "toy_study.py")


def made(tmp_path, **changes):
    study = toy_study.get_study(**changes)
    return study, cells.cells(study, tmp_path / "runs", changes={})


def finish(run, value=1.5):
    """What training leaves behind."""
    (run.folder / "checkpoints" / str(run.settings.train.steps)).mkdir(parents=True)
    lines = [{"step": run.settings.train.steps, "text_files/cross_entropy": value}]
    lines += [{"step": 2, "train/tokens_per_second": 100.0}]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def test_cells_go_seed_by_seed_and_every_seed_is_set(tmp_path):
    study, found = made(tmp_path)
    assert [(cell.arm, cell.seed) for cell in found] == [
        (arm, seed) for seed in study.seeds for arm in study.arms
    ]
    for cell in found:
        for run in cell.runs.values():
            assert (run.settings.train.seed, run.settings.data.seed) == (cell.seed, cell.seed)
    deep = found[1].runs
    assert deep["pretraining"].settings.model["decoder_layers"] == 2
    assert deep["fine_tuning"].settings.model["decoder_layers"] == 2
    assert deep["fine_tuning"].settings.initialize == str(deep["pretraining"].folder)
    assert deep["fine_tuning"].settings.optimizer["learning_rate"] == 0.001
    assert deep["fine_tuning"].after is deep["pretraining"]


def test_equal_runs_are_one_and_a_run_that_is_left_out_gives_its_network(tmp_path):
    arms = {
        "first": Arm(changes={"fine_tuning": {"optimizer.learning_rate": 0.1}}),
        "second": Arm(changes={"fine_tuning": {"optimizer.learning_rate": 0.2}}),
        "third": Arm(),
        "none": Arm(leaves_out=("pretraining",), changes={"pretraining": {"model.d_ff": 64}}),
    }
    _, found = made(tmp_path, arms=arms, claims=(), seeds=(0,))
    first, second, third, none = (cell.runs for cell in found)
    assert first["pretraining"] is second["pretraining"] is third["pretraining"]
    assert first["fine_tuning"] is not second["fine_tuning"]
    assert list(none) == ["fine_tuning"]
    assert none["fine_tuning"].settings.initialize == ""
    assert none["fine_tuning"].settings.model["d_ff"] == 64
    assert len(cells.runs_of(found)) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"center": "mode"}, r"center='mode' does not exist"),
        ({"best_by": "los"}, r"best_by='los'.*Did you mean 'loss'"),
        ({"arms": {"..": Arm()}, "claims": ()}, r"arms: '..' must be a name"),
        ({"seeds": (0, 0)}, r"seeds=\(0, 0\) must be one or more, each once"),
        ({"arms": {"a b": Arm()}, "claims": ()}, r"arms: 'a b' must be a name"),
        ({"arms": {}, "claims": ()}, "arms: '' must be a name"),
        (
            {"arms": {"a": Arm(changes={"pretrain": {}})}, "claims": ()},
            "Did you mean 'pretraining'",
        ),
        ({"arms": {"a": Arm(paper={"los": 1.0})}, "claims": ()}, "Did you mean 'loss'"),
        (
            {"arms": {"a": Arm(leaves_out=("fine_tuning",))}, "claims": ()},
            "arms.a leaves out a run that is measured",
        ),
        (
            {"claims": (Claim(text="", measure="loss", arm="dep", than="shallow"),)},
            "Did you mean 'deep'",
        ),
        (
            {"measures": {"loss": OutcomeMeasure(run="tuning", number="x")}},
            "measures.loss.run='tuning'",
        ),
        (
            {"runs": {"fine_tuning": TrainingRun(config="x", starts_from="later")}},
            "runs.fine_tuning.starts_from='later'",
        ),
    ],
)
def test_a_wrong_study_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        toy_study.get_study(**changes)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("train.stpes", 3, "arms.a, runs.pretraining: .*train.stpes"),
        ("trian.steps", 3, "trian.steps does not exist"),
        ("train.steps", 0, "train.steps=0 must be 1 or more"),
        ("train.patience", 3, "train.patience must be 0"),
    ],
)
def test_a_wrong_setting_names_arm_and_run(tmp_path, setting, value, message):
    arms = {"a": Arm(changes={"pretraining": {setting: value}})}
    with pytest.raises(ValueError, match=message):
        made(tmp_path, arms=arms, claims=())


def test_a_changed_arm_is_refused_or_trained_anew_with_what_starts_from_it(tmp_path):
    study, found = made(tmp_path)
    cells.write(cells.runs_of(found), again=())
    cells.write(cells.runs_of(found), again=())  # nothing has changed
    for run in cells.runs_of(found):
        finish(run)
    deep = dataclasses.replace(study.arms["deep"], changes={"pretraining": {"model.d_ff": 64}})
    changed = dataclasses.replace(study, arms={**study.arms, "deep": deep})
    runs = cells.runs_of(cells.cells(changed, tmp_path / "runs", changes={}))
    with pytest.raises(ValueError, match=r"other settings \(of 4 in all\): --rerun=deep removes"):
        cells.write(runs, again=())
    cells.write(runs, again=["deep"])
    assert [run.is_finished() for run in runs] == ["shallow" in run.folder.parts for run in runs]
    stored = json.loads((runs[2].folder / "config.json").read_text())
    assert stored["model"]["d_ff"] == 64


def test_a_run_that_is_older_than_a_setting_is_not_another_one(tmp_path):
    _, found = made(tmp_path)
    runs = cells.runs_of(found)
    cells.write(runs, again=())
    planned = runs[0].folder / "planned.json"
    settings = json.loads(planned.read_text())
    later = systems.find(settings["system"]).older_defaults
    known = {name: value for name, value in later.items() if settings["model"].get(name) == value}
    assert known
    for name in known:
        del settings["model"][name]
    del settings["train"]["compiler"]
    planned.write_text(json.dumps(settings))
    cells.write(runs, again=())
    settings["model"]["d_ff"] += 1
    planned.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="has a run of other settings"):
        cells.write(runs, again=())


def test_a_run_is_finished_with_its_last_checkpoint_and_its_numbers(tmp_path):
    _, found = made(tmp_path)
    run = found[0].runs["fine_tuning"]
    assert not run.is_finished()
    finish(run, value=None)
    assert run.is_finished()  # undefined, such as a correlation of equal numbers
    assert run.value("text_files/cross_entropy") is None
    (run.folder / "metrics.jsonl").write_text('{"step": 2, "text_files/cross_entropy": 1}\n')
    assert not run.is_finished()


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        ("text_files/documents/excess_nats", {}, "evaluate.measures.documents.every must be above"),
        (
            "text_files/mine/perplexity",
            {"evaluate.measures": {"mine": {"kind": "documents"}}},
            "evaluate.measures.mine.every must be above 0",
        ),
        ("text_file/cross_entropy", {}, "which measures text_files/...$"),
        (
            "all/averag",
            {"evaluate.averages": {"all": {"one": "text_files/cross_entropy"}}},
            "which measures text_files/..., all/average$",
        ),
    ],
)
def test_a_number_that_no_run_measures_is_refused(tmp_path, number, changes, message):
    measures = {"loss": OutcomeMeasure(run="pretraining", number=number)}
    arms = {"a": Arm(changes={"pretraining": changes})}
    _, found = made(tmp_path, arms=arms, claims=(), measures=measures)
    with pytest.raises(ValueError, match=message):
        estimate.check(cells.runs_of(found))


def test_a_run_that_ended_without_its_number_is_an_error(tmp_path, monkeypatch):
    _, found = made(tmp_path)
    runs = cells.runs_of(found)
    for run in runs:
        finish(run)
    (runs[1].folder / "metrics.jsonl").write_text(f'{{"step": {toy_study.STEPS}, "loss": 1}}\n')
    monkeypatch.setattr(training_processes, "_Process", FakeProcess)
    monkeypatch.setattr(training_processes, "_POLL", 0.0)
    with pytest.raises(
        ValueError, match=r"fine_tuning was trained, .* no text_files/cross_entropy"
    ):
        command._train(runs, processes=1)


def test_the_page_has_ours_beside_the_papers_and_the_verdicts(tmp_path):
    study, found = made(tmp_path)
    for cell in found:
        cells.write(list(cell.runs.values()), again=())
        for run in cell.runs.values():
            finish(run, value=1.0 + 0.1 * cell.seed + (cell.arm == "shallow"))
    runs = cells.runs_of(found)
    cost = dataclasses.asdict(estimate.of_finished(runs))
    smallest, largest = {estimate.of_run(run).parameters for run in runs}
    # Each run reads its tokens at 100 a second.
    seconds = sum(estimate.of_run(run).tokens for run in runs) / 100
    assert cost == {
        "runs": len(runs),
        "parameters": tuple(sorted((smallest, largest))),
        "minutes": pytest.approx(seconds / 60),
    }
    text = results.write(study, "toy", found, tmp_path / "page", cost=cost).read_text()
    assert "| arm | loss | loss in the paper |" in text
    assert "| shallow | 2.05 ± 0.07 | 2.50 |" in text
    assert "| deep | 1.05 ± 0.07 | 2.00 |" in text
    assert "| Deep is better. | held | -1.00 | [-1.00, -1.00] | 2 |" in text
    assert (tmp_path / "page" / "toy.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "page" / "toy.json").read_text())
    assert stored["values"]["deep"]["loss"] == {"0": 1.0, "1": 1.1}
    assert stored["cost"]["runs"] == len(runs)


def test_a_curve_shows_each_seed_and_the_centers_over_its_number(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, dpi: figures.append(figure)
    )
    lines = {"deep": {10: "deep_10", 100: "deep_100"}, "shallow": {100: "shallow"}}
    study = toy_study.get_study(
        arms={"deep_100": Arm(), "deep_10": Arm(), "shallow": Arm()},
        claims=(),
        learned=(Learned(arm="shallow", measure="loss", than=4.0, what="word frequencies"),),
        curve=Curve(number="pairs", lines=lines),
    )
    values = {
        "deep_100": {"loss": {0: 1.0, 1: 2.0}},
        "deep_10": {"loss": {0: 3.0, 1: 5.0}},
        "shallow": {"loss": {}},
    }
    results.draw(study, values, tmp_path / "toy.png")
    (panel,) = figures[0].axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines]
    assert drawn[:3] == [([10, 100], [4.0, 1.5]), ([10, 10], [3.0, 5.0]), ([100, 100], [1.0, 2.0])]
    assert drawn[-1][1] == [4.0, 4.0]
    assert (panel.get_xlabel(), panel.get_xscale()) == ("pairs", "log")
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert names == ["deep", "shallow", "word frequencies"]


def test_some_arms_of_a_study_are_trained_without_the_others_of_its_curve():
    lines = {"all": {1: "shallow", 2: "deep"}, "other": {2: "deep"}}
    study = toy_study.get_study(curve=Curve(number="layers", lines=lines))
    options = command._parser().parse_args(["toy", "--arms=shallow"])
    restricted = command._restricted(study, options)
    assert restricted.curve == Curve(number="layers", lines={"all": {1: "shallow"}})
    assert study.curve.of(["other"]) is None  # then the figure has a row for each arm


def test_bad_curves_are_refused():
    with pytest.raises(ValueError, match="the line 'deep' of a curve must have values above 0"):
        Curve(number="pairs", lines={"deep": {0: "deep"}})
    with pytest.raises(ValueError, match=r"arm of a curve.*'dep'.*'deep'"):
        toy_study.get_study(curve=Curve(number="pairs", lines={"deep": {1: "dep"}}))


def test_the_page_of_an_unfinished_study_says_so(tmp_path):
    study, found = made(tmp_path)
    lines = "\n".join(results.lines(study, "toy", results.values_of(study, found), []))
    assert "0 of 2 arms have a finished cell." in lines
    assert "| deep |  | 2.00 |" in lines


def test_the_plan_counts_what_is_not_finished_at_the_rate_of_what_is(tmp_path):
    _, found = made(tmp_path)
    runs = cells.runs_of(found)
    cost = estimate.of_run(runs[0])
    assert cost.tokens == toy_study.STEPS * 8 * (32 + 16)
    before = "\n".join(estimate.table(found, rate=1e6, source="given", processes=1))
    assert "4 cells of 8 different runs" in before
    assert "8 runs of" in before
    cells.write(runs, again=())
    finish(runs[0])
    rate, source = estimate.measured_rate(runs)
    assert rate == pytest.approx(100 * cost.flops_per_token)
    assert source == "the median of 1 finished runs"
    assert "7 runs of" in "\n".join(estimate.table(found, rate=rate, source="", processes=1))


def test_the_columns_of_the_plan_are_apart_however_long_a_name_is(tmp_path):
    arms = {"short": Arm(), "learning_rate-0.0001_batch_size-16": Arm()}
    _, found = made(tmp_path, arms=arms, claims=(), seeds=(0,))
    table = estimate.table(found, rate=1e6, source="given", processes=1)
    head, *rows = itertools.islice(table, 5)
    for row in rows:
        assert row.split()[1] in ("pretraining", "fine_tuning")
        assert row.index(row.split()[1]) == head.index("run")


class FakeProcess:
    """Trains a run in an instant."""

    seconds = 0.0

    def __init__(self, folder, cores):
        self._left = 2
        self.cores = cores

    @property
    def has_ended(self):
        self._left -= 1
        return self._left < 0

    def check(self):
        pass

    def stop(self):
        pass

    def wait(self):
        pass


def test_a_run_waits_for_the_one_that_it_starts_from(monkeypatch):
    started, active, most, used = [], set(), [], []

    class Process(FakeProcess):
        def __init__(self, folder, cores):
            super().__init__(folder, cores)
            started.append(folder.name)
            used.append(cores)
            active.add(folder)
            most.append(len(active))

    finished = set()
    paths = [pathlib.Path(name) for name in "abcd"]

    def job(path, *after):
        def is_finished():
            if path in active:
                active.discard(path)
                finished.add(path)
            return path in finished

        return training_processes.Job(path, is_finished, after)

    monkeypatch.setattr(training_processes, "_Process", Process)
    monkeypatch.setattr(training_processes, "_POLL", 0.0)
    a, b, c, d = paths
    finished.add(d)
    reports = []
    jobs = [job(a), job(b, a), job(c), job(d)]
    done = training_processes.train(
        jobs, report=lambda one, seconds: reports.append((one.folder.name, seconds)), processes=2
    )
    assert done
    assert started == ["a", "c", "b"]  # b comes after a, and c need not wait for it
    assert max(most) == 2
    assert used[0].isdisjoint(used[1])
    assert all(cores <= os.sched_getaffinity(0) for cores in used)
    assert ("d", None) in reports
    assert {name for name, _ in reports} == set("abcd")


def test_a_run_is_not_trained_while_another_process_trains_it(tmp_path):
    job = training_processes.Job(tmp_path, lambda: False)
    with (tmp_path / "output.txt").open("a") as output:
        fcntl.flock(output, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is being trained by another process"):
            training_processes.train([job], report=lambda job, seconds: None)


def test_a_run_that_fails_is_named_with_its_last_line(tmp_path):
    (tmp_path / "config.json").write_text('{"system": "brt"}')
    job = training_processes.Job(tmp_path, lambda: False)
    with pytest.raises(ValueError, match=r"failed with status 2: error: .*Did you mean 'bert'"):
        training_processes.train([job], report=lambda job, seconds: None)
    assert "Traceback" not in (tmp_path / "output.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t5_gird"], "'t5_gird' is not a study: .*Did you mean 't5_grid'"),
        (["t5_grid", "--arms=basline"], "Did you mean 'baseline'"),
        (["t5_grid", "--seeds=0,x"], "--seeds='0,x' must be whole numbers"),
        (["t5_grid", "--rate=0", "--plan"], "--rate=0 must be above 0"),
        (["t5_grid", "--config.train.steps"], "has no value"),
        (["t5_grid", "--hours=2"], "--hours=2 needs --until_decided"),
        (["t5_grid", "--until_decided", "--hours=0"], "--hours=0 needs .* must be above 0"),
        ([TOY, "--until_decided", "--most_seeds=1"], "no more than --most_seeds: 2 and 1"),
        (["t5_grid", "--arm=baseline"], "the flag '--arm' does not exist"),
        (["configs/t5.py"], "has no function get_study"),
        (["t5_grid", "--output=Makefile"], "--output='Makefile'.* is a file"),
        ([TOY, "--config.train.stpes=3"], "train.stpes"),
        ([TOY, "--config.model.layers=3"], "model.layers is not a setting of t5"),
        ([TOY, "--config.data.vocabulary=none.model"], "none.model"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    # What the command is doing may be printed before.
    (error,) = [line for line in lines if not line.endswith(" ...")]
    assert re.search(message, error), error


def test_every_arm_of_the_grid_has_a_valid_config_and_the_papers_numbers(tmp_path):
    _, study = definition.load("t5_grid")
    found = cells.cells(dataclasses.replace(study, seeds=(0,)), tmp_path, changes={})
    assert len(found) == len(study.arms) == 38
    assert len(cells.runs_of(found)) == 71
    for name, arm in study.arms.items():
        # The paper has deshuffling for the encoder-decoder alone.
        beyond = name.endswith("_deshuffling")
        assert set(arm.paper) == (set() if beyond else {"average", "span", "summary"})
    # Raffel et al. 2020, table 2, GLUE and SQuAD.
    assert study.arms["baseline"].paper["average"] == 83.28
    assert study.arms["decoder"].paper["span"] == 61.14


def numbers(monkeypatch, of):
    """Training is to leave behind `of(arm, seed)`; returns the cells in their order."""
    trained = []

    def train(runs, *, processes):
        for run in runs:
            if not run.is_finished():
                arm, seed = run.folder.parts[-3:-1]
                if run.name == "fine_tuning":
                    trained.append((arm, int(seed)))
                finish(run, value=of(arm, int(seed)))

    monkeypatch.setattr(command, "_train", train)
    return trained


def needing(tmp_path, command):
    """The arguments of a study that needs the file made.zip, which a command of Python makes."""
    file = tmp_path / "needing.py"
    file.write_text(
        "from tests.programs import toy_study\n"
        "def get_study():\n"
        f"    needs = {{'{tmp_path}/made.zip': '{command}'}}\n"
        "    return toy_study.get_study(needs=needs)\n"
    )
    return [str(file), f"--output={tmp_path}/runs"]


def test_what_a_study_needs_is_named_by_its_plan_and_made_before_training(
    tmp_path, monkeypatch, capfd
):
    numbers(monkeypatch, lambda arm, seed: 1.0)
    arguments = needing(tmp_path, f"zipfile -c {tmp_path}/made.zip Makefile")
    first = f"first: python -m zipfile -c {tmp_path}/made.zip Makefile\n"
    command.main([*arguments, "--plan", "--rate=1e9"])
    assert capfd.readouterr().out.startswith(first)
    assert not (tmp_path / "made.zip").exists()
    command.main(arguments)
    assert capfd.readouterr().out.startswith(first)
    assert (tmp_path / "made.zip").exists()
    command.main(arguments)
    assert "first:" not in capfd.readouterr().out


def test_the_command_that_pretrains_for_all_seeds_is_a_run_of_its_language():
    text = GeneratedText(language="homonyms", kind="albert", size=140)
    changes = {"train.phases": (), "phases": {}, "model.layers": 4, "data.lengths.inputs": 32}
    made = text.pretrained("configs/bert.py:demo", "runs/one", steps=9, changes=changes)
    [(path, line)] = made.items()
    module, *flags = shlex.split(line)
    config, rest = command_line.parse(flags)
    assert (path, module, rest) == ("runs/one/checkpoints/9", "t5x_like.train", [])
    assert (config.workdir, config.train.steps, config.train.phases) == ("runs/one", 9, ())
    assert (config.model.layers, config.data.lengths.inputs) == (4, 32)
    assert (config.data.module, config.data.task) == ("data/languages/homonyms.py", "homonyms")
    assert config.data.vocabulary == text.vocabulary


def test_a_study_ends_where_what_it_needs_cannot_be_made(tmp_path, monkeypatch, capfd):
    trained = numbers(monkeypatch, lambda arm, seed: 1.0)
    with pytest.raises(SystemExit) as stopped:
        command.main(needing(tmp_path, "zipfile -t no_such_file.zip"))
    assert stopped.value.code == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"error: the study needs what `python -m zipfile .*` makes", last)
    assert not trained


def test_seeds_are_added_until_the_claim_is_decided(tmp_path, monkeypatch, capsys):
    noise = [0.9, 1.2, 0.2, 0.5, 0.4, 0.5, 0.6, 0.5, 0.4, 0.5]  # of the deep network's advantage
    trained = numbers(monkeypatch, lambda arm, seed: 3.0 - noise[seed] * (arm == "deep"))
    words = [TOY, f"--output={tmp_path / 'runs'}", "--until_decided", "--most_seeds=10"]
    command.main(words)
    shown = capsys.readouterr().out
    assert "1 claims are not decided: a seed more for deep, shallow" in shown
    assert "| Deep is better. | held |" in shown
    assert "the repeated confidence interval (looks after 2 to 10 seeds)" in shown
    seeds = [seed for arm, seed in trained if arm == "deep"]
    assert seeds == [*range(len(seeds))]
    assert 2 < len(seeds) < 10
    command.main(words)  # nothing is trained again
    command.main([TOY, f"--output={tmp_path / 'runs'}", "--report"])
    assert [seed for arm, seed in trained if arm == "deep"] == seeds
    assert "the repeated confidence interval (looks after 2 to 10 seeds)" in capsys.readouterr().out
    stored = json.loads((tmp_path / "runs" / "toy_study.json").read_text())
    assert stored["looks"] == {"first": 2, "most": 10}
    assert stored["claims"][0]["seeds"] == len(seeds)


@pytest.mark.parametrize("flag", ["--report", "--plan"])
def test_runs_of_other_settings_are_neither_reported_nor_planned(
    flag, tmp_path, monkeypatch, capsys
):
    numbers(monkeypatch, lambda arm, seed: 3.0 + 0.01 * seed - (arm == "deep"))
    words = [TOY, f"--output={tmp_path / 'runs'}"]
    command.main(words)
    command.main([*words, flag])
    with pytest.raises(SystemExit) as stopped:
        command.main([*words, flag, "--config.optimizer.learning_rate=123"])
    assert stopped.value.code == 2
    assert "has a run of other settings" in capsys.readouterr().err


def test_no_seed_is_added_after_the_hours_or_beyond_the_most(tmp_path, monkeypatch, capsys):
    trained = numbers(monkeypatch, lambda arm, seed: 2.0 + (-1) ** seed * (arm == "deep"))
    words = [TOY, f"--output={tmp_path / 'runs'}", "--until_decided", "--most_seeds=5"]
    command.main([*words, "--hours=0.0000001"])
    assert "are over: 1 claims are not decided" in capsys.readouterr().out
    assert [seed for arm, seed in trained if arm == "deep"] == [0, 1]
    command.main(words)
    assert [seed for arm, seed in trained if arm == "deep"] == [*range(5)]
    assert "| Deep is better. | cannot be told apart |" in capsys.readouterr().out


def test_a_study_whose_baseline_has_not_learned_fails_without_verdicts(
    tmp_path, monkeypatch, capsys
):
    numbers(monkeypatch, lambda arm, seed: 3.0 + 0.01 * seed - (arm == "deep"))
    learned = definition.Learned(arm="shallow", measure="loss", than=2.9, what="of frequencies")
    monkeypatch.setattr(
        definition, "load", lambda name: ("toy", toy_study.get_study(learned=(learned,)))
    )
    with pytest.raises(SystemExit) as stopped:
        command.main(["toy", f"--output={tmp_path / 'runs'}", "--until_decided"])
    assert stopped.value.code == 1
    shown = capsys.readouterr().out
    assert "| `shallow`, loss: **no** | 3.00 |" in shown
    assert "No claim is judged" in shown
    assert "Deep is better" not in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_study_goes_on_and_trains_no_finished_run_again(tmp_path):
    words = [sys.executable, "-m", "t5x_like.study", TOY, f"--output={tmp_path / 'runs'}"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # one device, and quick to compile
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    first = tmp_path / "runs" / "shallow" / "0" / "pretraining" / "metrics.jsonl"
    second = tmp_path / "runs" / "shallow" / "0" / "fine_tuning" / "output.txt"
    process = subprocess.Popen(words, env=environment, cwd=ROOT, start_new_session=True)
    try:
        for _ in range(3000):
            if second.exists():
                break
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = first.stat().st_mtime_ns
    again = subprocess.run(
        [*words, "--processes=2"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert "1/8" in again.stdout
    assert first.stat().st_mtime_ns == before
    assert again.stdout.count("(finished before)") >= 1
    assert "| Deep is better. |" in again.stdout
    done = subprocess.run(
        [*words, "--report"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    stored = json.loads((tmp_path / "runs" / "toy_study.json").read_text())
    assert set(stored["values"]["deep"]["loss"]) == {"0", "1"}
    assert done.returncode == 0
