"""The table of TPU slices."""

import subprocess
import sys
from pathlib import Path

import pytest

from launch import accelerators
from launch.accelerators import SLICES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "hosts", "machine_type"),
    [  # from the pages of Cloud TPU and GKE
        ("v2-8", "2x2", 1, ""),  # GKE does not have v2
        ("v2-512", "16x16", 64, ""),
        ("v3-8", "2x2", 1, "ct3-hightpu-4t"),
        ("v3-32", "4x4", 4, "ct3p-hightpu-4t"),
        ("v3-2048", "32x32", 256, "ct3p-hightpu-4t"),
        ("tpu7x-8", "2x2x1", 1, "tpu7x-standard-4t"),
        ("tpu7x-128", "4x4x4", 16, "tpu7x-standard-4t"),
        ("v4-8", "2x2x1", 1, "ct4p-hightpu-4t"),
        ("v4-64", "2x4x4", 8, "ct4p-hightpu-4t"),
        ("v5litepod-1", "1x1", 1, "ct5lp-hightpu-1t"),
        ("v5litepod-8", "2x4", 1, "ct5lp-hightpu-8t"),
        ("v5litepod-16", "4x4", 4, "ct5lp-hightpu-4t"),
        ("v5litepod-256", "16x16", 64, "ct5lp-hightpu-4t"),
        ("v5p-128", "4x4x4", 16, "ct5p-hightpu-4t"),
        ("v5p-12288", "16x16x24", 1536, "ct5p-hightpu-4t"),
        ("v6e-32", "4x8", 8, "ct6e-standard-4t"),
    ],
)
def test_slices_are_as_documented(accelerator_type, topology, hosts, machine_type):
    one = accelerators.choose(accelerator_type)
    assert (one.topology, one.hosts, one.machine_type) == (topology, hosts, machine_type)


def test_the_hosts_hold_all_chips():
    assert all(one.hosts * one.chips_per_host == one.chips for one in SLICES.values())


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("v5e-16", "v5litepod-16"), ("v5p-130", "v5p-1"), ("v6e16", "v6e-16"), ("", "v")],
)
def test_an_unknown_type_is_an_error_with_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=f"'{wrong}' does not exist. Did you mean '{near}"):
        accelerators.choose(wrong)


def test_the_table_needs_nothing_installed():
    # -S and -I: without site-packages, as on a machine that only launches.
    program = "import sys; sys.path.insert(0, '.'); import launch.accelerators"
    subprocess.run([sys.executable, "-S", "-I", "-c", program], cwd=ROOT, check=True)
