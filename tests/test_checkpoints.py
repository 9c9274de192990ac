"""Checkpoints: exact on every mesh, and clear about what does not fit or cannot be written."""

import asyncio
import base64
import json
import resource
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from jax.sharding import PartitionSpec as P

from t5x_like import checkpoints
from t5x_like.checkpoints import (
    CheckpointError,
    Checkpoints,
    CheckpointWriteError,
    manifest,
    writing,
)
from tests.saved_states import (
    POSITION,
    abstract_of,
    assert_same,
    make_mesh,
    make_state,
    save_all,
)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with checkpoints of steps 10 and 20, to be copied before it is touched."""
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    save_all(
        folder,
        {10: make_state(seed=10), 20: make_state(seed=20)},
        metadata={"config": {"a": [1, 2]}},
    )
    return folder


@pytest.fixture
def copy(two, tmp_path):
    return shutil.copytree(two, tmp_path / "checkpoints")


def test_gives_back_everything(two):
    with Checkpoints(two) as reader:
        state, position = reader.restore_latest(abstract_of(make_state()))
        assert_same(state, make_state(seed=20))
        assert position == POSITION
        assert_same(reader.restore(abstract_of(make_state()), step=10)[0], make_state(seed=10))
    metadata = checkpoints.read_metadata(two)
    assert metadata["config"] == {"a": [1, 2]}
    assert metadata["versions"]["jax"] == jax.__version__


def test_a_position_may_come_later_and_is_read_where_it_is_looked_up(tmp_path):
    later = Future()
    with Checkpoints(tmp_path) as saver:
        saver.save(1, make_state(), later)
        assert not list(tmp_path.glob("1"))
        later.set_result(POSITION)
        saver.wait()
        _, position = saver.restore_latest(abstract_of(make_state()))
    (tmp_path / "1" / "data" / "1.bin").unlink()
    assert position[11] == POSITION[11]
    assert len(position) == len(POSITION)
    with pytest.raises(FileNotFoundError):
        position[1]


def test_a_position_that_cannot_be_saved_is_the_next_waits_error(tmp_path):
    later = Future()
    later.set_exception(RuntimeError("the data are gone"))
    with Checkpoints(tmp_path) as saver:
        saver.save(1, make_state(), later)
        with pytest.raises(CheckpointWriteError, match=r"step 1 .*the data are gone"):
            saver.wait()


def test_the_positions_of_an_older_checkpoint_are_read(copy):
    folder = copy / "20" / "data"
    for path in folder.iterdir():
        path.unlink()
    for process, shards in enumerate([(0, 1), (11,)]):
        text = {str(n): base64.b64encode(POSITION[n]).decode() for n in shards}
        (folder / f"{process}.json").write_text(json.dumps(text))
    manifest.write(epath.Path(copy / "20"))
    with Checkpoints(copy) as reader:
        assert reader.restore_latest(abstract_of(make_state()))[1] == POSITION


def test_empty_folder_has_nothing_to_restore(tmp_path):
    with Checkpoints(tmp_path / "new" / "folder") as reader:
        assert reader.restore_latest(abstract_of(make_state())) is None


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.adafactor(1e-3, min_dim_size_to_factor=4),
        optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2),
        optax.masked(optax.adam(1e-3), {"decoder": False, "embedding": True, "scale": True}),
        optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    ],
    ids=["sgd", "adafactor", "multi_steps", "masked", "inject_hyperparams"],
)
def test_any_optimizer_state_comes_back_in_kind(optimizer, tmp_path):
    state = make_state(optimizer=optimizer)
    save_all(tmp_path, {1: state})
    with Checkpoints(tmp_path) as reader:
        restored, _ = reader.restore_latest(abstract_of(state))
    assert_same(restored, state)


@pytest.mark.parametrize("spec", [P("a", "b"), P("b", "a"), P(None, ("a", "b")), P()])
@pytest.mark.parametrize("shape", [(4, 2), (1, 8)])
def test_restores_onto_another_mesh_bit_for_bit(shape, spec, tmp_path):
    shardings = jax.tree.map(
        lambda x: x.sharding, abstract_of(make_state(), mesh=make_mesh(2, 4), spec=P("a", "b"))
    )
    state = jax.device_put(make_state(), shardings)
    save_all(tmp_path, {1: state})
    abstract = abstract_of(state, mesh=make_mesh(*shape), spec=spec)
    with Checkpoints(tmp_path) as reader:
        restored, _ = reader.restore_latest(abstract)
    assert_same(restored, state)
    assert restored.params["embedding"].sharding == abstract.params["embedding"].sharding
    assert_same(checkpoints.restore_params(tmp_path, abstract.params)[0], state.params)


def test_parameters_load_alone(copy):
    for item in ("training", "data", "metadata"):
        shutil.rmtree(copy / "20" / item)
    for path in (copy, copy.parent, copy / "20"):
        params, step = checkpoints.restore_params(path)
        assert step == 20
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
        assert_same(params, make_state(seed=20).params)


def test_renamed_checkpoint_knows_its_step(copy):
    (copy / "20").rename(copy.parent / "best")
    params, step = checkpoints.restore_params(copy.parent / "best")
    assert step == 20
    assert_same(params, make_state(seed=20).params)


def test_swapped_checkpoints_are_one_clear_error(copy):
    """A run would go on from step 10 under the name 20, and fail at the save of step 20."""
    (copy / "10").rename(copy / "aside")
    (copy / "20").rename(copy / "10")
    (copy / "aside").rename(copy / "20")
    message = "have been renamed: 10 is of step 20, 20 is of step 10; give each folder the name"
    with Checkpoints(copy) as reader, pytest.raises(CheckpointError, match=message):
        reader.restore_latest(abstract_of(make_state()))
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore_params(copy)
    assert checkpoints.restore_params(copy / "10")[1] == 20  # of one that is named itself


def test_parameters_load_in_another_float_type(two):
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), make_state().params
    )
    params, _ = checkpoints.restore_params(two / "10", abstract)
    assert_same(params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_state(seed=10).params))


def test_keeps_the_newest_and_multiples(tmp_path):
    with Checkpoints(tmp_path, every=2, keep=2, keep_every=6) as saver:
        due = [step for step in range(1, 17) if saver.due(step)]
        assert due == list(range(2, 17, 2))
        for step in due:
            saver.save(step, make_state())
    assert checkpoints.checkpoint_steps(tmp_path) == [6, 12, 14, 16]
    assert not [path for path in tmp_path.iterdir() if not path.name.isdecimal()]


def test_state_may_be_donated_once_save_returns(tmp_path):
    state = make_state(width=4096)
    expected = jax.tree.map(np.array, state)
    overwrite = jax.jit(lambda state: jax.tree.map(lambda x: x * 0 + 7, state), donate_argnums=0)
    with Checkpoints(tmp_path) as saver:
        saver.save(1, state)
        jax.block_until_ready(overwrite(state))
        restored, _ = saver.restore_latest(abstract_of(expected))
    assert_same(restored, expected)


def test_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_all("run/checkpoints", {3: make_state()})
    assert checkpoints.restore_params("run")[1] == 3


def test_save_again_after_close(tmp_path):
    saver = Checkpoints(tmp_path)
    for step in (1, 2):
        saver.save(step, make_state())
        saver.close()
    assert checkpoints.checkpoint_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda params: params | {"scale": jnp.zeros(9)},
            r"has scale as float32\[8\], the model as float32\[9\]",
        ),
        (
            lambda params: params | {"decoder": {"kernel": jnp.zeros((8, 16))}},
            r"has decoder/kernel as float32\[16, 8\], the model as float32\[8, 16\]",
        ),
        (
            lambda params: {"decodr": params["decoder"]} | params,
            r"has no decodr/kernel as the model has; nearest is decoder/kernel",
        ),
        (
            lambda params: {"scale": params["scale"], "embedding": params["embedding"]},
            r"has decoder/kernel, the model has not",
        ),
        (
            lambda params: params | {"scale": jnp.zeros(8, jnp.int32)},
            r"has scale as float32\[8\], the model as int32\[8\]",
        ),
    ],
)
def test_another_model_is_one_clear_error(change, message, two):
    abstract = abstract_of(make_state())
    abstract = abstract.replace(params=abstract_of(change(make_state().params)))
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore_params(two, abstract.params)
    with Checkpoints(two) as reader, pytest.raises(CheckpointError, match=message):
        reader.restore_latest(abstract)


def test_resuming_needs_the_stored_float_type(two):
    state = make_state()
    state = state.replace(params=state.params | {"scale": jnp.zeros(8, jnp.bfloat16)})
    with Checkpoints(two) as reader, pytest.raises(CheckpointError, match="the model as bfloat16"):
        reader.restore_latest(abstract_of(state))


def test_another_optimizer_is_one_clear_error(two):
    abstract = abstract_of(make_state(optimizer=optax.sgd(0.1, momentum=0.9)))
    with Checkpoints(two) as reader, pytest.raises(CheckpointError, match="opt_state/0/trace"):
        reader.restore_latest(abstract)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("checkpoint", "has no checkpoint; nearest is checkpoints"),
        ("checkpoints/18", "has no 18; nearest is 20"),
        ("chekpoints/10", "has no chekpoints; nearest is checkpoints"),
        ("checkpoints/10/data", "contains no finished one"),
        ("other", "contains no finished one"),
        ("file", "contains no finished one"),
        ("file/10", "has no 10"),
    ],
)
def test_no_checkpoint_at_a_path(path, message, copy):
    (copy.parent / "other").mkdir()
    (copy.parent / "file").write_text("")
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore_params(copy.parent / path)


def test_no_checkpoint_of_a_step(two):
    with Checkpoints(two) as reader, pytest.raises(CheckpointError, match="no 11; nearest is 10"):
        reader.restore(abstract_of(make_state()), step=11)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": -1}, "checkpoint.every=-1"),
        ({"keep": 0}, "checkpoint.keep=0"),
        ({"every": 10, "keep_every": 15}, "checkpoint.keep_every=15: .* checkpoint.every=10"),
        ({"keep_every": 15}, "checkpoint.keep_every=15: .* checkpoint.every=0"),
    ],
)
def test_settings_out_of_range(settings, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        Checkpoints(tmp_path, **settings)


def test_folder_that_cannot_be_written_fails_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*file/run"):
        Checkpoints(tmp_path / "file" / "run")


@pytest.fixture
def too_large():
    """A state too large to write: files end at 64 KiB, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield make_state(optimizer=optax.sgd(0.1)).replace(
        params={"embedding": jax.random.normal(jax.random.key(0), (1 << 16,))}
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_failed_write_is_raised_at_the_next_save(tmp_path, too_large):
    with Checkpoints(tmp_path) as saver:
        saver.save(1, make_state())
        saver.save(2, too_large)
        with pytest.raises(CheckpointWriteError, match="the checkpoint of step 2 to"):
            saver.save(3, make_state())
    assert checkpoints.checkpoint_steps(tmp_path) == [1]


def test_failed_write_is_raised_at_the_end(tmp_path, too_large):
    with pytest.raises(CheckpointWriteError, match="step 1"), Checkpoints(tmp_path) as saver:
        saver.save(1, too_large)


def test_failed_write_hides_no_other_error(tmp_path, too_large, caplog):
    with pytest.raises(ZeroDivisionError), Checkpoints(tmp_path) as saver:
        saver.save(1 // (saver.save(1, too_large) or 0), make_state())
    assert "cannot write the checkpoint of step 1" in caplog.text


def test_failed_write_is_reported_once(tmp_path, too_large, caplog):
    """The save that fails in the background fails again where the folder is closed."""
    answers = iter([None, CheckpointWriteError("no space for step 2")])

    def may_write():
        if error := next(answers):
            raise error

    states = {1: too_large, 2: make_state()}
    with pytest.raises(CheckpointWriteError, match="step 2"):
        save_all(tmp_path, states, may_write=may_write)
    assert not caplog.text


def in_small_disk(folder, command):
    """Run a command with a folder that is a disk of 900 kB.

    Where no disk may be mounted, files end at 64 kB.
    """
    mount = f"mount -t tmpfs -o size=900k tmpfs {shlex.quote(str(folder))}"
    words = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mounts = shutil.which("unshare") and not subprocess.run([*words, mount]).returncode
    shell = [*words, f"{mount} && exec"] if mounts else ["sh", "-c", "ulimit -f 128; exec"]
    shell[-1] += f" {shlex.join(command)}"
    return subprocess.run(shell, capture_output=True, text=True)


def test_full_disk_is_one_line_without_the_tracebacks_of_threads(tmp_path):
    program = [sys.executable, "-m", "tests.programs.full_disk", str(tmp_path)]
    done = in_small_disk(tmp_path, program)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("I", "W"))]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: cannot write the checkpoint of step "), done.stderr
    assert "No space left on device" in lines[0] or "File too large" in lines[0]


@pytest.mark.parametrize("raised", [False, True])
def test_only_futures_that_no_python_code_failed_go_unreported(raised, caplog):
    """TensorStore fails the futures that nobody awaits any more; other code raises its errors."""
    writing.leave_out_tracebacks()
    error = OSError("no space")
    if raised:
        with pytest.raises(OSError, match="no space"):
            raise error
    loop = asyncio.new_event_loop()
    loop.create_future().set_exception(error)  # and it is deleted
    loop.close()
    assert ("no space" in caplog.text) == raised


def test_step_that_is_there_is_not_overwritten(copy):
    with Checkpoints(copy) as saver, pytest.raises(CheckpointWriteError, match="20 already exists"):
        saver.save(20, make_state())
