"""The command: what it prints and writes, how it ends, and that what is planned is what runs."""

import json
import re
import types
from pathlib import Path

import jax
import ml_collections
import numpy as np
import pytest
from absl import flags

from configs import t5
from t5x_like import config, partitioning, plan
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, chips, compiling, report
from t5x_like.systems import bert, gpt2

KEYS = {
    "system",
    "phase",
    "task",
    "batch",
    "parameters",
    "active_parameters",
    "parameters_by_part",
    "parameter_bytes",
    "optimizer_bytes",
    "flops_per_step",
    "flops_per_step_by_formula",
    "flops_per_step_recomputing",
    "flops_per_token",
    "flops_per_token_by_formula",
}
COMPILED = {
    "topology",
    "slices",
    "devices",
    "mesh",
    "microbatches",
    "remat",
    "memory_per_device",
    "flops_per_step_compiled",
    "flops_ratio",
    "memory_traffic",
    "bytes_per_device",
    "products",
    "collectives",
    "unknown_loops",
    "early_loops",
    "compile_seconds",
    "fits",
    "largest_part",
}
TIMES = {
    "step_seconds",
    "step_seconds_lower_bound",
    "step_seconds_without_overlap",
    "utilization_ceiling",
    "utilization_without_overlap",
    "run",
}
TINY = {
    "vocab_size": 64,
    "positions": 16,
    "layers": 2,
    "d_model": 32,
    "d_ff": 48,
    "heads": 2,
    "dropout": 0.0,
}


def tiny(**mesh):
    settings = config.defaults()
    settings.system = "gpt2"
    settings.model = gpt2.SIZES["small"] | TINY
    settings.data.lengths = {"targets": 16}
    objective = {"objective": "language_modeling", "converter": "decoder"}
    settings.data.update({"batch_size": 8, **objective})
    settings.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 0.01}
    settings.mesh = {"data": -1} | mesh
    return settings


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command: -> (exit status, JSON, standard output, standard error)."""
    assert jax.device_count() == 8  # started, or a test would start it with fewer

    def command(settings: ml_collections.ConfigDict, **given):
        path = tmp_path / "plan.json"
        unset = {"topology": None, "slices": 1, "search": False, "tries": 2, "task": None}
        unset["json"] = str(path)
        values = types.SimpleNamespace(**(unset | given))
        monkeypatch.setattr(flags, "FLAGS", values)
        status = 0
        try:
            plan.main(parse(settings))
        except SystemExit as end:
            status = end.code
        shown = capsys.readouterr()
        found = json.loads(path.read_text()) if path.exists() else None
        return status, found, shown.out, shown.err

    return command


def test_without_a_topology_nothing_is_compiled(run, monkeypatch):
    monkeypatch.setattr(compiling, "compile_step", None)
    status, found, out, _ = run(tiny(model=1024))  # nor is a mesh made
    assert status == 0
    assert found.keys() == KEYS
    assert isinstance(found["parameters"], int)
    assert isinstance(found["active_parameters"], int)
    assert f"{found['parameters']:,}" in out


def test_on_simulated_devices_all_but_times_is_planned(run):
    status, found, out, _ = run(tiny(fsdp=2, model=2), topology="cpu:8")
    assert status == 0
    assert found.keys() == KEYS | COMPILED
    assert found["mesh"] == {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
    assert found["fits"] is None  # nobody knows how much there is
    assert "the memory limit of these devices is unknown" in out
    # Every product of the model is computed, and next to none twice.
    assert 1 <= found["flops_ratio"] < 1.1
    assert {"all-reduce"} <= {one["kind"] for one in found["collectives"]}
    assert all(one["bytes"] > 0 and one["axis"] for one in found["collectives"])
    memory = found["bytes_per_device"]
    # The step counts and the random key are the rest of the state; the batch is int32 and float32.
    batch = 3 * 16 * 4 * 8 // 4
    rest = memory["arguments"] - memory["parameters"] - memory["optimizer"] - batch
    assert 0 <= rest <= 16


def test_a_run_that_generates_while_it_trains_needs_a_copy_of_its_layers(run):
    settings = tiny()
    settings.evaluate.every = 5
    settings.evaluate.measures = {"texts": {"kind": "generation", "every": 10}}
    _, found, out, _ = run(settings, topology="cpu:8")
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 2 * 2 * 32
    assert found["generating_per_device"]["copied_layers"] == 2 * layer * 4
    state = found["generating_per_device"]["state"]
    memory = found["bytes_per_device"]
    assert 0 <= state - memory["parameters"] - memory["optimizer"] <= 16
    assert "while it generates" in out
    settings.evaluate.measures = {"texts": {"kind": "generation"}}  # evaluated afterwards
    settings.data.module = "data/none.py"  # a plan needs no data
    assert "generates" not in run(settings)[1]
    settings.evaluate.measures = {"benchmark": {"every": 10}}
    assert run(settings)[1]["generates"]


def several_tasks():
    settings = tiny(fsdp=2)
    settings.system = "bert"
    sizes = TINY | {"sep_id": 3, "mask_id": 4}
    settings.model = bert.SIZES["base"] | {
        k: v for k, v in sizes.items() if k in bert.SIZES["base"]
    }
    settings.data.update({"converter": "encoder", "lengths": {"inputs": 16}})
    settings.tasks = {
        name: {
            "model": {"head": name, "labels": labels},
            "data": {"objective": name, "batch_size": rows},
        }
        for name, labels, rows in (("classification", 5, 8), ("regression", 1, 16))
    }
    return settings


def test_of_several_tasks_the_largest_batch_is_planned_or_the_named_one(run):
    plans = {name: run(several_tasks(), task=name)[1] for name in (None, "classification")}
    assert [one["task"] for one in plans.values()] == ["regression", "classification"]
    assert [one["batch"]["rows"] for one in plans.values()] == [16, 8]
    # The parameters are those of both heads, of which a step uses one.
    width, heads = TINY["d_model"], {"regression": 1, "classification": 5}
    for one in plans.values():
        absent = sum(outputs for name, outputs in heads.items() if name != one["task"])
        unused = one["parameters"] - one["active_parameters"]
        assert unused == width * (width + 1) + (width + 1) * absent
    _, found, out, _ = run(several_tasks(), task="classification", topology="cpu:8")
    assert found["batch"]["rows"] == 8
    # A head's products are so small that the compiler multiplies them element by element.
    assert 0.95 < found["flops_ratio"] < 1.1
    assert "(task 'classification')" in out
    status, _, _, err = run(several_tasks(), task="regresion")
    assert status == 2
    assert "--task='regresion' does not exist. Did you mean 'regression'" in err


def test_search_compiles_the_likeliest_and_gives_the_best(run):
    status, found, _, err = run(tiny(), topology="cpu:2", search=True, tries=2)
    assert status == 0
    assert len(found["tried"]) == 2
    assert found["mesh"] in [one["mesh"] for one in found["tried"]]
    assert err.count(" ... ") == 2


def test_the_step_planned_is_the_step_trained():
    settings = tiny(fsdp=2, model=2)
    settings.train.microbatches = 2
    fields = batches.batch(parse(settings).data)
    devices = chips.topology("cpu:8").devices()
    programs = compiling.compile_step(
        model_side.build(of_config(settings), devices=devices), fields
    )
    planned = programs.pop("update")
    assert programs == {}
    model = model_side.build(of_config(settings))
    state = model.initial_state()
    batch = model.put({name: np.ones(x.shape, x.dtype) for name, x in fields.items()})
    with partitioning.layout(model.mesh):
        trained = model.train_step.lower(state, batch).compile().as_text()
        after, _ = model.train_step(state, batch)
    assert int(after.step) == 1
    assert compiling.cleaned(planned.text) == compiling.cleaned(trained)
    assert "metadata" not in compiling.cleaned(trained)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topology": "v7:2x2"}, "--topology='v7' does not exist"),
        ({"search": True}, "--search needs --topology"),
        ({"topology": "cpu:3"}, "data.batch_size=8 cannot be cut into"),
        ({"topology": "cpu:8", "search": True, "tries": 0}, "--tries=0 must be 1 or more"),
        ({"slices": 2}, "--slices=2 needs --topology"),
        ({"topology": "v5e:2x2", "slices": 0}, "--slices=0 must be 1 or more"),
        ({"topology": "cpu:8", "slices": 2}, "--slices=2: simulated devices have no slices"),
        ({"topology": "h100:1x8", "slices": 2}, "--slices=2: GPUs have no slices"),
    ],
)
def test_bad_flags_are_one_line_and_status_2(run, given, message):
    status, found, _, err = run(tiny(), **given)
    assert status == 2
    assert found is None
    assert err.splitlines()[-1].startswith("error: ")
    assert message in err


@pytest.mark.parametrize(("topology", "extra"), [("v5e:2x2", "plan"), ("h100:1x8", "plan-gpu")])
def test_without_a_compiler_what_needs_none_is_printed(run, monkeypatch, topology, extra):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    status, found, out, err = run(tiny(), topology=topology)
    assert status == 2
    assert found is None
    assert "parameters" in out
    assert f"pip install -e '.[{extra}]'" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("topology", "devices"), [("v5e:2x2", 4), pytest.param("v4:2x2x1", 4, marks=pytest.mark.slow)]
)
def test_tpus_that_are_not_here(run, monkeypatch, topology, devices):
    settings = tiny(model=2)
    settings.model.dtype = "bfloat16"
    status, found, out, _ = run(settings, topology=topology)
    assert status == 0
    assert found.keys() == KEYS | COMPILED | TIMES
    assert found["fits"] is True
    assert found["devices"] == devices
    assert found["flops_ratio"] >= 1
    assert found["unknown_loops"] == 0
    bounds = found["step_seconds"]
    assert found["step_seconds_lower_bound"] == max(bounds.values()) > 0
    assert found["step_seconds_without_overlap"] == sum(bounds.values())
    assert 0 < found["utilization_ceiling"] <= 1
    # cloud.google.com/tpu/docs/v5e and v4: FLOP/s of a chip in bfloat16.
    peak = {"v5e": 197e12, "v4": 275e12}[topology[: topology.index(":")]]
    seconds = sum(bounds.values())
    share = found["flops_per_step"] / (devices * peak * seconds)
    assert found["utilization_without_overlap"] == pytest.approx(share)
    assert f"; without overlap {share:.1%}\n" in out
    hours = settings.train.steps * seconds / 3600
    assert found["run"]["hours"] == pytest.approx(hours)
    assert found["run"]["chip_hours"] == pytest.approx(hours * devices)
    assert (found["run"]["kwh"] is None) == topology.startswith("v5e")
    assert "fits" in out


def test_what_slices_send_each_other_is_counted_and_bounded(run):
    settings = tiny(model=2)
    settings.model.dtype = "bfloat16"
    status, found, out, _ = run(settings, topology="v5e:2x2", slices=2)
    assert status == 0
    assert (found["slices"], found["devices"]) == (2, 8)
    assert found["mesh"] == {"data": 4, "fsdp": 1, "expert": 1, "model": 2}
    assert "2 slices of v5e:2x2: 8 devices; mesh data 4, model 2;" in out
    sent = {(one["kind"], one["axis"]): one["bytes"] for one in found["collectives"]}
    across = {key: size for key, size in sent.items() if key[1] == "slices"}
    assert across.keys() == {("all-reduce", "slices")}
    # A device exchanges its part of the gradients with the same device of the other slice: of two
    # slices it sends what it has, at most all and at least the half that data leaves it. The arrays
    # are padded to 128 columns, so that these, of 32 and 48, are up to four times as large.
    gradients = found["bytes_per_device"]["parameters"]
    assert gradients / 2 <= sum(across.values()) <= 4 * gradients
    # cloud.google.com/tpu/docs/v5e: 6.4 Tbit/s for the 256 chips of a pod.
    seconds = sum(across.values()) / (6.4e12 / 8 / 256)
    assert found["step_seconds"]["between_slices"] == pytest.approx(seconds)
    assert ", between slices " in out


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "fits"), [(336, True), (352, False)])
def test_the_peak_is_what_libtpu_decides_by(run, rows, fits):
    # By libtpu 0.0.42 352 rows use 15.79 GiB of 15.75. Of 336 rows all temporaries, also those that
    # are not alive at once, are 18.6 GB.
    settings = t5.get_config("small")
    settings.mesh.fsdp = 4
    settings.data.batch_size = rows
    status, found, _, _ = run(settings, topology="v5e:2x2")
    assert (status == 0) is found["fits"] is fits
    if fits:
        peak = found["bytes_per_device"]["peak"] / found["memory_per_device"]
        assert peak == pytest.approx(15.79 / 15.75 * rows / 352, rel=0.01)


def test_what_does_not_fit_ends_with_status_1(run, monkeypatch):
    too_large = "RESOURCE_EXHAUSTED: Ran out of memory on HBM. Largest program allocations: ..."

    def refuse(*_):
        raise compiling.TooLargeError(too_large)

    monkeypatch.setattr(compiling, "compile_step", refuse)
    status, found, out, _ = run(tiny(), topology="cpu:8")
    assert status == 1
    assert found["fits"] is False
    assert "does not fit: RESOURCE_EXHAUSTED: Ran out of memory on HBM. The largest part" in out


def test_a_device_without_limit_has_no_verdict_and_one_with_a_small_one_a_bad_one():
    memory = {"parameters": 1, "optimizer": 2, "arguments": 3, "activations": 4}
    memory |= {"cache": 0, "temporaries": 9, "outputs": 0, "program": 0, "peak": 12}
    found = types.SimpleNamespace(memory=memory)
    assert report.decide(found, None) == {"fits": None, "largest_part": "other temporaries"}
    assert report.decide(found, 11)["fits"] is False
    assert report.decide(found, 12)["fits"] is True
    memory |= {"activations": 0, "cache": 5}
    assert report.decide(found, None)["largest_part"] == "cache"


def test_no_accelerator_is_taken(run):
    run(tiny())
    assert jax.config.jax_platforms == "cpu"


def test_the_docs_have_every_key():
    page = (Path(__file__).resolve().parents[2] / "docs/plans.md").read_text("utf-8")
    first_cells = " ".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    documented = set(re.findall(r"`(\w+)`", first_cells))
    of_some = {"tried", "why", "prepare", "networks_per_device", "kernels"}
    of_some |= {"generates", "generating_per_device"}
    assert documented == KEYS | COMPILED | TIMES | of_some
