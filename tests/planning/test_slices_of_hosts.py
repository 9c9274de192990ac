"""Every slice and layout of the pages can start, by libtpu's descriptions of the devices.

libtpu knows which process holds a device, and JAX lays a mesh along the torus: the rows that a
process then holds are neither contiguous nor in the order of the processes.
"""

import dataclasses
import math
import operator
import pathlib
import re

import numpy as np
import pytest
from jax.experimental import mesh_utils

from configs import plans
from launch.accelerators import SLICES
from t5x_like import config, partitioning
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import chips, report

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
NAMED = {
    name
    for page in PAGES
    for name in re.findall(r"\b(?:v[2-6][ep]?|tpu7x):\d+(?:x\d+)+", page.read_text("utf-8"))
}
# Those of Google Cloud: Cloud TPU's name of a v5e is v5litepod.
OF_HOSTS = {
    f"{one.type.split('-')[0].replace('litepod', 'e')}:{one.topology}"
    for one in SLICES.values()
    if one.hosts > 1
}
LAYOUTS = [
    {"data": -1},
    {"data": 1, "fsdp": -1},
    {"data": -1, "model": 2},
    {"data": -1, "fsdp": 2, "model": 2},
    {"data": 1, "fsdp": -1, "model": 4},
    {"data": -1, "expert": 2, "model": 2},
    {"data": 1, "fsdp": -1, "model": 8},
]


def rows_by_jax(mesh, batch_size):
    """The rows of a batch that the devices of each process hold, by JAX's sharding."""
    held = {}
    indices = partitioning.batch_sharding(mesh).devices_indices_map((batch_size,))
    for device, (span,) in indices.items():
        held.setdefault(device.process_index, set()).update(range(*span.indices(batch_size)))
    return held


def check(mesh):
    """All processes read their devices' rows, and together each row once for each slice."""
    batch_size = 3 * partitioning.batch_parts(mesh.shape)
    slices = partitioning.batch_slices(mesh)
    held = rows_by_jax(mesh, batch_size)
    assert slices.keys() == held.keys()
    for process, own in slices.items():
        assert own.rows(batch_size).tolist() == sorted(held[process])
    distinct = {own.index: own.rows(batch_size).tolist() for own in slices.values()}
    assert sorted(row for rows in distinct.values() for row in rows) == list(range(batch_size))
    assert sorted(distinct) == list(range(next(iter(slices.values())).number))


@pytest.mark.parametrize("name", sorted(NAMED | OF_HOSTS))
def test_every_slice_of_the_pages_and_of_google_cloud_starts_with_every_layout(name):
    devices = chips.topology(name).devices()
    for layout in LAYOUTS:
        sizes = [size for size in layout.values() if size != -1]
        if len(devices) % np.prod(sizes) == 0:
            check(partitioning.make_mesh(layout, devices=devices))


@pytest.mark.parametrize("name", plans.TOPOLOGIES)
def test_every_kept_plan_starts(name):
    settings, topology = plans.get_config(name), chips.topology(plans.TOPOLOGIES[name])
    check(partitioning.make_mesh(settings.mesh.to_dict(), devices=topology.devices()))
    report.check_layout(of_config(settings), topology)


def test_a_ring_through_four_hosts_gives_a_process_rows_that_are_not_contiguous():
    """The first example of docs/launching.md; the numbers are of libtpu 0.0.42 and JAX 0.10.2."""
    mesh = partitioning.make_mesh({"data": -1}, devices=chips.topology("v5e:4x4").devices())
    blocks = {process: own.blocks for process, own in partitioning.batch_slices(mesh).items()}
    assert blocks[0] == (0, 1, 6, 15)
    assert len(blocks) == 4


def test_a_process_reads_the_shards_of_its_rows():
    mesh = partitioning.make_mesh({"data": -1}, devices=chips.topology("v5e:4x4").devices())
    own = partitioning.batch_slices(mesh)[0]
    assert own.rows(32).tolist() == [0, 1, 2, 3, 12, 13, 30, 31]
    batch = {"tokens": np.arange(64).reshape(32, 2)}
    np.testing.assert_array_equal(own.of(batch)["tokens"][:, 0] // 2, own.rows(32))


@pytest.mark.parametrize("name", ["v5e:4x4", "v4:2x2x4", "v6e:2x4", "v3:2x2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_several_slices_only_data_crosses_the_network(name, layout):
    """The slice of a device is libtpu's: of two slices of v5e:4x4, 16 devices belong to each."""
    devices = chips.topology(name, slices=2).devices()
    numbers = [device.slice_index for device in devices]
    assert sorted(set(numbers)) == [0, 1]
    sizes = layout | {"data": 2 if layout["data"] == 1 else layout["data"]}
    if math.prod(abs(size) for size in layout.values()) > len(devices) // 2:
        return
    mesh = partitioning.make_mesh(sizes, devices=devices)
    groups = mesh.devices.reshape(mesh.shape["data"], -1)
    of_groups = [{device.slice_index for device in group} for group in groups]
    assert of_groups == [{0}] * (len(groups) // 2) + [{1}] * (len(groups) // 2)
    check(mesh)
    # Within a slice, a mesh of slices is arranged as the mesh of that slice.
    within = dict(mesh.shape) | {"data": mesh.shape["data"] // 2}
    alone = partitioning.make_mesh(within, devices=chips.topology(name).devices())
    place = operator.attrgetter("coords", "core_on_chip")
    first = mesh.devices[: within["data"]].flat
    assert [place(device) for device in first] == [place(device) for device in alone.devices.flat]


@pytest.mark.parametrize(
    "layout", [{"data": 1, "fsdp": -1}, {"fsdp": 32}, {"data": -1, "model": 32}, {"expert": 32}]
)
def test_a_mesh_whose_other_axes_cross_slices_is_refused(layout):
    message = r"2 slices of 16, and only data may cross.*set mesh\.data to a multiple of 2"
    with pytest.raises(ValueError, match=message):
        partitioning.make_mesh(layout, devices=chips.topology("v5e:4x4", slices=2).devices())
    with pytest.raises(ValueError, match=message):  # the same from the numbers, without libtpu
        partitioning.mesh_sizes(layout, number=32, slices=2)


def test_a_plan_of_slices_is_refused_as_the_run_is():
    settings = settings_of()
    settings.mesh.update(data=1, fsdp=32)
    with pytest.raises(ValueError, match="only data may cross"):
        report.check_layout(of_config(settings), chips.topology("v5e:4x4", slices=2))
    settings.mesh.update(data=2, fsdp=16)
    report.check_layout(of_config(settings), chips.topology("v5e:4x4", slices=2))


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Enough of a GPU for a mesh."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"


def test_a_mesh_of_gpus_is_jaxs_hybrid_mesh_of_their_hosts():
    """A host's GPUs have a slice_index, but other axes may cross hosts, as over InfiniBand."""
    gpus = [Gpu(number, number // 8, number // 8) for number in range(32)]
    assert partitioning.number_of_slices(gpus) == 1
    mesh = partitioning.make_mesh({"data": -1, "fsdp": 2, "model": 4}, devices=gpus[::-1])
    hybrid = mesh_utils.create_hybrid_device_mesh(
        (1, 2, 1, 4), (4, 1, 1, 1), gpus, process_is_granule=True
    )
    assert mesh.devices.tolist() == hybrid.tolist()
    assert partitioning.make_mesh({"data": 1, "fsdp": -1}, devices=gpus).shape["fsdp"] == 32


def settings_of(**data):
    found = config.defaults()
    found.data.update({"batch_size": 64} | data)
    return found


def test_a_plan_whose_processes_cannot_share_the_data_is_refused_as_the_run_is():
    with pytest.raises(ValueError, match=r"data\.shards=6 cannot be divided among 4 batch slices"):
        report.check_layout(of_config(settings_of(shards=6)), chips.topology("v5e:4x4"))
    with pytest.raises(ValueError, match=r"data\.shards=12 does not divide data\.batch_size=64"):
        report.check_layout(of_config(settings_of(shards=12)), chips.topology("v5e:4x4"))
    report.check_layout(of_config(settings_of(shards=8)), chips.topology("v5e:4x4"))


def test_a_plan_of_a_phase_whose_batch_the_mesh_does_not_divide_is_refused():
    settings = settings_of()
    settings.train.phases = ("long", "short")
    settings.phases = {"long": {"steps": 10}, "short": {"steps": 10, "batch_size": 24}}
    settings.train.steps = 20
    with pytest.raises(ValueError, match=r"data\.batch_size=24 cannot be cut into"):
        report.check_layout(of_config(settings), chips.topology("v5e:4x4"))
