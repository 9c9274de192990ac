"""Parameters go to devices and back in pieces, and are the same."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import partitioning
from t5x_like.hf.weight_map import pieces
from t5x_like.pretrained import assembled

WEIGHTS = {"layers/{layer}/kernel": ("w.{layer}", "(H K) D -> D H K")}
PATH, SHAPE = "layers/block/kernel", (3, 16, 4, 8)
SPECS = [P(), P(None, "fsdp"), P(None, "fsdp", "model"), P(None, ("fsdp", "model"))]


@pytest.fixture
def array():
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("spec", [None, *SPECS])
@pytest.mark.parametrize("piece", [2**9, 2**11])
def test_a_large_part_is_put_on_its_devices_in_pieces(array, spec, piece, monkeypatch):
    monkeypatch.setattr(assembled, "_MOST_WHOLE", 0)
    monkeypatch.setattr(assembled, "_PIECE", piece)
    read = []

    def tensor(name, index):
        layer = array[int(name.partition(".")[2])]
        found = layer.transpose(1, 2, 0).reshape(32, 16)[index]
        read.append(found.nbytes)
        return found

    mesh = partitioning.make_mesh({"fsdp": 4, "model": 2})
    sharding = None if spec is None else NamedSharding(mesh, spec)
    leaf = jax.ShapeDtypeStruct(SHAPE, np.dtype(np.float32), sharding=sharding)
    parts = pieces(WEIGHTS, {PATH: SHAPE})[PATH]
    found = assembled.assembled(leaf, parts, tensor)
    np.testing.assert_array_equal(found, array)
    assert spec is None or found.sharding == sharding
    assert max(read) <= piece


@pytest.mark.parametrize("spec", SPECS[1:])
@pytest.mark.parametrize("index", [(), (2,)])
def test_parts_of_several_processes_are_gathered_in_pieces(array, spec, index, monkeypatch):
    # Of one process here; benchmarks/folder_memory.py has two.
    monkeypatch.setattr(assembled, "_MOST_GATHERED", 2**12)
    mesh = partitioning.make_mesh({"fsdp": 4, "model": 2})
    part = array[index]
    sharded = jax.device_put(part, NamedSharding(mesh, P(*spec[len(index) :])))
    place = np.zeros_like(part)
    assembled._gather(sharded, place)
    np.testing.assert_array_equal(place, part)
