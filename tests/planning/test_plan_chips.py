"""Names of slices, and what links a chip has in them."""

import importlib.metadata
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from t5x_like.research.planning import chips, compiling
from t5x_like.research.planning.chips import CHIPS, GPUS
from t5x_like.research.planning.collectives import Collective


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v4p:2x2x1", r"--topology='v4p' does not exist\. Did you mean 'v4'"),
        ("v5e", r"--topology='v5e' is not a chip and a shape: write for example v4:12x16x16"),
        ("v5e:4x", r"--topology='v5e:4x' is not a chip and a shape"),
        ("v5e:0x4", r"--topology='v5e:0x4' is not a chip and a shape"),
        ("v4:4x4", r"the shape for v4 has 3 sides, as v4:4x4x4"),
        ("v5e:4x4x4", r"the shape for v5e has 2 sides, as v5e:4x4"),
        ("cpu:2x4", r"the shape for cpu has 1 side, as cpu:8"),
        ("h100:8", r"the shape for h100 has 2 sides, as h100:1x8, hosts and the GPUs of each"),
        ("cpu:9", r"cpu:9: JAX has already started with 8 CPU devices"),
    ],
)
def test_a_bad_name_is_one_clear_error(name, message):
    assert len(jax.devices()) == 8  # so JAX has started
    with pytest.raises(ValueError, match=message):
        chips.topology(name).devices()


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(chips.NoCompilerError, match=r"pip install -e '\.\[plan\]'"):
        chips.topology("v4:2x2x1").devices()


def test_without_the_plugin_for_cuda_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(chips.NoCompilerError, match=r"pip install -e '\.\[plan-gpu\]'"):
        chips.topology("h100:1x8").devices()


def test_a_gpu_has_the_share_of_its_memory_that_jax_takes(monkeypatch):
    # docs.jax.dev, "GPU memory allocation": 75%, or what these settings say.
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    chip = chips.topology("h100:1x8").chip
    assert chip.memory == 0.75 * 84_942_979_072
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert chip.memory == 0.5 * 84_942_979_072
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.95")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION")
    assert chip.memory == 0.95 * 84_942_979_072


@pytest.mark.parametrize("name", GPUS)
def test_gpus_have_published_peaks_and_a_host_of_them_is_no_slice(name):
    assert GPUS[name].peak_flops > 1e14
    topology = chips.topology(f"{name}:4x8")
    assert (topology.number, topology.links, topology.crosses_network) == (32, (1,), True)
    assert not chips.topology(f"{name}:1x8").crosses_network
    with pytest.raises(ValueError, match=f"name their hosts, as --topology={name}:2x8"):
        chips.topology(f"{name}:1x8", slices=2)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("v4:4x4x4", (2, 2, 2)),
        ("v4:12x16x16", (2, 2, 2)),
        ("v4:2x4x4", (1, 1, 1)),  # no whole cubes: nothing is joined
        ("v4:2x2x1", (1, 1, 0)),
        ("v5e:16x16", (2, 2)),
        ("v5e:8x16", (1, 2)),
        ("v3:32x32", (2, 2)),
        ("v3:4x4", (1, 1)),
        ("v2:16x16", (2, 2)),  # a pod
        ("tpu7x:4x4x8", (2, 2, 2)),
    ],
)
def test_ends_are_joined_where_the_slice_is_large_enough(name, links):
    assert chips.topology(name).links == links


def exchange(sent, *dimensions):
    return Collective("all-gather", ("fsdp",), 1, sent, 0, 0, dimensions)


def seconds(name, *found):
    return compiling.interconnect_seconds(list(found), chips.topology(name))


def test_exchanges_along_other_dimensions_go_on_together():
    link = CHIPS["v4"].link_bandwidth
    alone = seconds("v4:4x4x4", exchange(10**9, 0))
    assert alone == 10**9 / (2 * link)
    assert seconds("v4:4x4x4", exchange(10**9, 0), exchange(10**9, 1)) == alone
    assert seconds("v4:4x4x4", exchange(10**9, 0), exchange(10**9, 0)) == 2 * alone
    # What lies along both is more than either has links for.
    both = seconds("v4:4x4x4", exchange(10**9, 0), exchange(5 * 10**9, 0, 1))
    assert both == 6 * 10**9 / (4 * link)


def test_the_cores_of_a_chip_share_its_links():
    assert seconds("v3:4x4", exchange(10**9, 0)) == 2 * 10**9 / CHIPS["v3"].link_bandwidth


@pytest.mark.parametrize("generation", CHIPS)
def test_memory_is_what_the_compiler_has(generation):
    topology = chips.topology(f"{generation}:{'x'.join('221'[: CHIPS[generation].dimensions])}")
    here = jax.sharding.SingleDeviceSharding(topology.devices()[0])
    too_much = jax.ShapeDtypeStruct((2**35,), jnp.float32, sharding=here)
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.jit(jnp.sin).lower(too_much).compile()
    [available] = re.findall(r"exceeds available HBM \(([\d.]+)G\)", str(error.value))
    # The table is by libtpu 0.0.50. The earlier one leaves 0.01 GiB more of three chips.
    earlier = importlib.metadata.version("libtpu").startswith("0.0.42")
    more = 0.01 if earlier and generation in ("v5p", "v6e", "tpu7x") else 0.0
    assert float(available) == round(CHIPS[generation].memory / 2**30 + more, 2)


def test_a_libtpu_without_a_tpu_prints_nothing_for_those_who_do_not_plan():
    program = "import t5x_like, jax; print(jax.default_backend())"
    env = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert "libtpu" not in done.stderr
