"""Checkpoints that a disk damaged are reported, and never read."""

import collections
import json
import pathlib
import re
import shutil

import pytest
from etils import epath

from t5x_like import checkpoints, config
from t5x_like.checkpoints import Checkpoints, DamagedCheckpointError, manifest
from t5x_like.experiment import model_side
from t5x_like.experiment.run import Run
from t5x_like.pretrained import from_pretrained
from tests.programs import tiny_writer
from tests.saved_states import (
    POSITION,
    abstract_of,
    assert_same,
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


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path):
    path.write_bytes(b"")


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _files_of_each_kind(folder):
    """One file of each kind: the long random names of data files count as one kind."""
    kinds = collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            kinds[re.sub("[0-9a-f]{32}", "*", name)].append((path.stat().st_size, name))
    return [max(names)[1] for names in kinds.values()]


@pytest.mark.parametrize(
    "harm",
    [
        _flip,
        pathlib.Path.unlink,
        *(pytest.param(harm, marks=pytest.mark.slow) for harm in (_cut, _empty)),
    ],
)
def test_damaged_newest_is_reported_and_the_one_before_used(harm, two, tmp_path, caplog):
    names = _files_of_each_kind(two / "20")
    assert len(names) > 15
    for number, name in enumerate(names):
        folder = shutil.copytree(two, tmp_path / str(number))
        harm(folder / "20" / name)
        caplog.clear()
        with Checkpoints(folder) as reader:
            state, position = reader.restore_latest(abstract_of(make_state()))
        assert position == POSITION
        if "/" not in name and name != manifest.NAME:  # Orbax's marker files, which hold no data
            assert_same(state, make_state(seed=20))
            continue
        assert_same(state, make_state(seed=10))
        [report] = [record.getMessage() for record in caplog.records]
        assert f"{folder}/20 is damaged: {name}" in report
        assert sorted(path.name for path in folder.iterdir()) == ["10", "20.damaged"]


def test_every_file_is_watched(copy):
    folder = epath.Path(copy / "20")
    names = [path for path in pathlib.Path(folder).rglob("*/*") if path.is_file()]
    assert manifest.damage(folder) is None
    for path in names:
        whole = path.read_bytes()
        for harm in (_cut, _empty, _flip):
            harm(path)
            assert str(path.relative_to(folder)) in manifest.damage(folder)
            path.write_bytes(whole)
    assert manifest.damage(folder) is None


def test_what_a_process_has_summed_is_not_read_again(copy, monkeypatch):
    folder, own = epath.Path(copy / "20"), "params/ocdbt.process_0/"
    before = json.loads((folder / manifest.NAME).read_text().splitlines()[0])
    manifest.sum_own(folder, process=0, written=[own])
    read, measure = [], manifest._measure

    def watched(path):
        read.append(str(path.relative_to(folder)))
        return measure(path)

    monkeypatch.setattr(manifest, "_measure", watched)
    manifest.write(folder)
    again = json.loads((folder / manifest.NAME).read_text().splitlines()[0])
    assert again == before
    mine = {name for name in before if name.startswith(own)}
    assert mine
    assert sorted(read) == sorted(before.keys() - mine)
    assert not list(folder.glob("sums*"))


@pytest.mark.parametrize("leftover", ["30", "30.orbax-checkpoint-tmp"])
def test_half_written_newest_is_reported_and_the_one_before_used(leftover, copy, caplog):
    shutil.copytree(copy / "20" / "params", copy / leftover / "params")
    with Checkpoints(copy) as saver:
        state, _ = saver.restore_latest(abstract_of(make_state()))
        assert_same(state, make_state(seed=20))
        [report] = [record.getMessage() for record in caplog.records]
        assert str(copy / leftover) in report
        saver.save(30, make_state(seed=30))
        assert_same(saver.restore_latest(abstract_of(make_state()))[0], make_state(seed=30))
    assert not list(copy.glob("*tmp"))


def test_damaged_step_can_be_saved_again_and_damaged_again(copy):
    with Checkpoints(copy) as saver:
        for seed in (21, 22):
            _flip(copy / "20" / "params" / "manifest.ocdbt")
            assert_same(saver.restore_latest(abstract_of(make_state()))[0], make_state(seed=10))
            saver.save(20, make_state(seed=seed))
            assert_same(saver.restore_latest(abstract_of(make_state()))[0], make_state(seed=seed))


def test_does_not_begin_anew_when_all_are_damaged(copy):
    for step in ("10", "20"):
        (copy / step / manifest.NAME).unlink()
    with Checkpoints(copy) as reader:
        for _ in range(2):  # asking again does not help
            with pytest.raises(DamagedCheckpointError, match="10 is damaged: manifest"):
                reader.restore_latest(abstract_of(make_state()))


def test_damaged_checkpoint_asked_for_by_name_is_an_error(copy):
    _cut(copy / "20" / "params" / "_METADATA")
    with pytest.raises(DamagedCheckpointError, match="20 is damaged: params/_METADATA has"):
        checkpoints.restore_params(copy / "20")
    with (
        Checkpoints(copy) as reader,
        pytest.raises(DamagedCheckpointError, match="20 is damaged: params/_METADATA has"),
    ):
        reader.restore(abstract_of(make_state()), step=20)
    assert checkpoints.restore_params(copy)[1] == 10


def test_damaged_parameters_of_a_run_are_not_read_under_their_step(tmp_path):
    """Else the numbers of older parameters would be reported as those of the newest step."""
    made = tiny_writer.settings("gpt2")
    run = tiny_writer.write(tmp_path / "run", made)
    folder, settings = run / "checkpoints", config.parse(made)
    metadata = {"config": config.to_dict(settings), "data_shards": 1}
    state = model_side.build(Run(settings)).initial_state()
    with Checkpoints(folder, every=1, metadata=metadata) as saver:
        saver.save(2, state, None)
    from_pretrained(run)
    _flip(max((folder / "2" / "params").rglob("*"), key=lambda path: path.stat().st_size))
    with pytest.raises(DamagedCheckpointError, match=r"of step 2 are damaged: .* of step 1, name"):
        from_pretrained(run)
    from_pretrained(folder / "1")
