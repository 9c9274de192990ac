"""Lays the devices of a mesh as JAX lays the chips of a slice, along libtpu's torus.

    python -m tests.programs.torus v5e:4x4 FOLDER

runs the commands in FOLDER/commands.json one after the other, each a list of a module and its
arguments, on processes that have as many simulated devices as the hosts of the slice have chips.
What the commands print goes to the standard output of the first process.
"""

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import grain  # noqa: F401 - defines flags, which then are no command's
import jax
import numpy as np

from t5x_like import partitioning
from t5x_like.planning import chips
from tests.programs import in_process


def lie_as(topology: str) -> None:
    """Let meshes of as many devices as the slice has be laid as on the slice."""
    create = partitioning.mesh_utils.create_device_mesh
    described = chips.topology(topology).devices()

    def placed(shape: tuple[int, ...], devices: Sequence[Any], **options: bool) -> np.ndarray:
        if len(devices) != len(described) or devices[0].platform != "cpu":
            return create(shape, devices, **options)
        # Both list the devices of the first process, then of the second.
        own = dict(zip(described, devices, strict=True))
        hosts = {chip.process_index: device.process_index for chip, device in own.items()}
        assert all(hosts[chip.process_index] == own[chip].process_index for chip in described)
        return np.vectorize(own.__getitem__, otypes=[object])(create(shape, described, **options))

    partitioning.mesh_utils.create_device_mesh = placed


def main() -> None:
    topology, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    partitioning.connect_processes()
    lie_as(topology)
    for module, *arguments in json.loads((folder / "commands.json").read_text()):
        done = in_process.run(module, *arguments)
        if jax.process_index() == 0:
            sys.stdout.write(done.out)
        if done.status:
            sys.exit(f"{module}: {done.err}")


if __name__ == "__main__":
    main()
