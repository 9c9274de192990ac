"""LoRA in runs: it starts from the model, trains A and B alone, resumes, shards, and is merged."""

import json
import pathlib
import shutil

import flax.traverse_util
import jax
import numpy as np
import pytest

from t5x_like import checkpoints, config, convert, evaluate, partitioning, train
from t5x_like.checkpoints import Checkpoints, reading
from t5x_like.config import parse
from t5x_like.experiment import data_side, model_side, reporting
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from tests.programs import command_flags, tiny_t5

STEPS = 4
EIGHT = {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
ONE = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}


def settings(folder):
    made = tiny_t5.get_config(str(folder))
    made.model.dtype = "float32"
    made.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": 0.01,
        "weight_decay": 0.1,
    }
    return made


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a T5's run of no step."""
    folder = tmp_path_factory.mktemp("base")
    made = settings(folder)
    made.mesh = ONE
    metadata = {"config": config.to_dict(parse(made)), "data_shards": 2}
    model = model_side.build(of_config(made), devices=jax.devices()[:1])
    with Checkpoints(folder / "run" / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, model.initial_state(seed=3), None)
    return folder / "run"


def adapted(folder, base, **lora):
    """The settings of a run in `folder` that trains LoRA matrices beside the kernels of `base`."""
    made = settings(folder)
    made.initialize = str(base)
    made.lora = {**made.lora, "rank": 3, "alpha": 12.0, **lora}
    made.mesh = EIGHT
    return made


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    """The settings of a finished run on eight devices."""
    made = adapted(tmp_path_factory.mktemp("lora"), base)
    train.main(parse(made))
    return made


def parameters(workdir, step=None):
    folder = pathlib.Path(workdir) / "checkpoints"
    params, _ = checkpoints.restore_params(folder / str(step) if step else folder)
    return flax.traverse_util.flatten_dict(params, sep="/")


def steps_on_one_device(made, *, steps):
    """The losses of a run's first steps."""
    alone = made.copy_and_resolve_references()
    alone.mesh = ONE
    run = of_config(alone)
    model = model_side.build(run, devices=jax.devices()[:1])
    inputs = data_side.build(run.parts[0], model.mesh, shards=made.data.shards)
    state, losses = model.initial_state(), []
    batches = train._batches(run.parts, {"": inputs}, step=0, seed=made.train.seed)
    with partitioning.layout(model.mesh):
        for _ in range(steps):
            _, batch = next(batches)
            state, metrics = model.train_step(state, model.put(batch))
            losses.append(float(metrics["loss"].compute()))
    return losses


@pytest.fixture(scope="module")
def alone(finished):
    """The losses of the same steps on one device."""
    return steps_on_one_device(finished, steps=STEPS)


def test_the_first_loss_is_the_model_s(finished, alone):
    plain = finished.copy_and_resolve_references()
    plain.lora = {**plain.lora, "rank": 0, "alpha": 16.0}
    assert steps_on_one_device(plain, steps=1) == alone[:1]
    assert len(set(alone)) == STEPS


def test_eight_devices_compute_what_one_does(finished, alone):
    log = reporting.read_log(pathlib.Path(finished.workdir))["train/loss"]
    # Float32 sums in another order, through as many updates.
    np.testing.assert_allclose(list(log.values()), alone, rtol=2e-5)


def test_only_the_matrices_of_attention_are_trained(base, finished):
    before, after = parameters(base), parameters(finished.workdir)
    matrices = {path for path in after if path.rpartition("/")[2] in ("lora_a", "lora_b")}
    assert after.keys() - before.keys() == matrices
    for path, array in before.items():
        np.testing.assert_array_equal(after[path], array)
    layers = {path.rpartition("/")[0] for path in matrices}
    names = ("query", "key", "value", "out")
    attentions = ("encoder", "self"), ("decoder", "self"), ("decoder", "cross")
    assert layers == {
        f"{tower}/layers/block/{kind}_attention/{name}"
        for tower, kind in attentions
        for name in names
    }
    assert all(np.any(after[path] != 0) for path in matrices)
    assert after["encoder/layers/block/self_attention/query/lora_a"].shape == (1, 32, 3)
    assert after["encoder/layers/block/self_attention/query/lora_b"].shape == (1, 3, 2, 8)
    assert after["encoder/layers/block/self_attention/out/lora_a"].shape == (1, 2, 8, 3)
    # The optimizer has two moments for the matrices, and nothing for the kernels.
    folder = reading.newest_intact(pathlib.Path(finished.workdir) / "checkpoints")
    rest = reading._restore_arrays(folder / reading.TRAINING, None, cast=False)
    moments = [leaf.size for leaf in jax.tree.leaves(rest["opt_state"]) if leaf.ndim]
    assert sum(moments) == 2 * sum(after[path].size for path in matrices)


def test_a_run_resumes_bit_for_bit(finished, tmp_path):
    shutil.copytree(finished.workdir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(STEPS))
    again = finished.copy_and_resolve_references()
    again.workdir = str(tmp_path / "run")
    train.main(parse(again))
    found, expected = parameters(again.workdir), parameters(finished.workdir)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array)


def test_loading_a_run_adds_the_products_to_the_kernels(finished):
    stored, merged = parameters(finished.workdir), from_pretrained(finished.workdir).params
    merged = flax.traverse_util.flatten_dict(merged, sep="/")
    assert merged.keys() == {path for path in stored if "lora" not in path}
    # W + (alpha / rank) A B, with the axes of heads written out.
    for path, equation in {
        "decoder/layers/block/cross_attention/key": "ndr,nrhk->ndhk",
        "decoder/layers/block/self_attention/out": "nhkr,nrd->nhkd",
    }.items():
        a, b = (stored[f"{path}/lora_{name}"] for name in "ab")
        expected = stored[f"{path}/kernel"] + 12.0 / 3 * np.einsum(equation, a, b)
        np.testing.assert_allclose(merged[f"{path}/kernel"], expected, rtol=1e-6, atol=1e-7)
        assert np.abs(expected - stored[f"{path}/kernel"]).max() > 1e-3


def test_evaluate_measures_the_held_out_loss_of_training(finished, monkeypatch):
    command_flags.give(monkeypatch)
    evaluate.main(parse(finished))
    measured = json.loads((pathlib.Path(finished.workdir) / "evaluation.json").read_text())
    log = reporting.read_log(pathlib.Path(finished.workdir))
    # x W + (x A) B in training, x (W + A B) here.
    np.testing.assert_allclose(
        measured["tasks"]["text_files"]["loss"], log["text_files/loss"][STEPS], rtol=1e-5
    )


def test_a_converted_folder_has_the_merged_kernels(finished, tmp_path):
    convert.convert(pathlib.Path(finished.workdir), tmp_path / "hf", form="hf", dtype="float32")
    found, expected = from_pretrained(tmp_path / "hf"), from_pretrained(finished.workdir)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_a_run_goes_on_from_another_s_matrices_or_merges_them(finished, tmp_path):
    def initial(**lora):
        made = adapted(tmp_path, finished.workdir, **lora)
        made.mesh = ONE
        state = model_side.build(of_config(made), devices=jax.devices()[:1]).initial_state()
        return flax.traverse_util.flatten_dict(jax.device_get(state.params), sep="/")

    stored = parameters(finished.workdir)
    found = initial()
    for path, array in stored.items():
        np.testing.assert_array_equal(found[path], array)
    # Layers without matrices in the new run have the product in their kernels.
    merged = flax.traverse_util.flatten_dict(from_pretrained(finished.workdir).params, sep="/")
    found = initial(targets=("encoder",))
    for path in (
        "encoder/layers/block/self_attention/query/",
        "encoder/layers/block/feed_forward/wo/",
    ):
        assert f"{path}lora_a" in found
    query = "encoder/layers/block/self_attention/query"
    np.testing.assert_array_equal(found[f"{query}/kernel"], stored[f"{query}/kernel"])
    np.testing.assert_array_equal(found[f"{query}/lora_b"], stored[f"{query}/lora_b"])
    np.testing.assert_array_equal(found["encoder/layers/block/feed_forward/wo/lora_b"], 0)
    key = "decoder/layers/block/cross_attention/key"
    assert f"{key}/lora_a" not in found
    np.testing.assert_array_equal(found[f"{key}/kernel"], merged[f"{key}/kernel"])
    with pytest.raises(
        ValueError, match=r"lora.alpha=6.0: .* has LoRA matrices with lora.alpha=12"
    ):
        initial(alpha=6.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lora": {"targets": ("qeury",)}},
            r"lora.targets has 'qeury', but no linear layer has this name. Did you mean 'query'\? "
            r"The linear layers are decoder/layers/block/cross_attention/key, .* \(\d+ in all\)",
        ),
        (
            {"lora": {"rank": 0}},
            "lora.alpha=12.0 has no effect with lora.rank=0: set lora.rank to 1 or more",
        ),
        ({"lora": {"rank": -1}}, "lora.rank=-1 must be 0 or more"),
        ({"lora": {"alpha": 0.0}}, "lora.alpha=0.0 must be above 0"),
        ({"lora": {"targets": ()}}, r"lora.targets=\(\) must be names of linear layers"),
    ],
)
def test_a_mistake_is_one_line_before_training(base, tmp_path, changes, message):
    made = adapted(tmp_path, base)
    made.update({key: value for key, value in changes.items() if key != "lora"})
    made.lora.update(changes.get("lora", {}))
    with pytest.raises(ValueError, match=message) as raised:
        model_side.build(of_config(made)).initial_state()
    assert "\n" not in str(raised.value)


def test_a_run_without_lora_does_not_resume_with_it(base, finished, tmp_path, capsys):
    plain = settings(tmp_path)
    shutil.copytree(base, plain.workdir)
    made = adapted(tmp_path, base)
    with pytest.raises(SystemExit) as raised:
        train.main(parse(made))
    assert raised.value.code == 2
    assert "lora.rank=3: the run in workdir=" in capsys.readouterr().err


@pytest.fixture(scope="module")
def exported(base, finished, tmp_path_factory):
    """The folder of an adapter for PEFT, beside its base for Hugging Face."""
    folder = tmp_path_factory.mktemp("exported")
    convert.convert(base, folder / "base", form="hf", dtype="float32")
    run = pathlib.Path(finished.workdir)
    convert.convert(run, folder / "adapter", form="peft", dtype="float32")
    path = folder / "adapter" / "adapter_config.json"
    written = json.loads(path.read_text()) | {"base_model_name_or_path": str(folder / "base")}
    path.write_text(json.dumps(written))
    return folder / "adapter"


def test_a_written_adapter_and_its_base_are_the_merged_model(exported, finished):
    found, expected = from_pretrained(exported), from_pretrained(finished.workdir)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        found.params,
        expected.params,
    )


def test_a_run_goes_on_from_an_adapter_s_matrices(exported, finished, tmp_path):
    made = adapted(tmp_path, exported)
    made.mesh = ONE
    state = model_side.build(of_config(made), devices=jax.devices()[:1]).initial_state()
    found = flax.traverse_util.flatten_dict(jax.device_get(state.params), sep="/")
    stored = parameters(finished.workdir)
    assert found.keys() == stored.keys()
    for path, array in stored.items():
        np.testing.assert_array_equal(found[path], array)
