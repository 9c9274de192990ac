"""Lays the devices of a mesh as JAX lays the chips of slices, each along libtpu's torus.

    python -m tests.programs.torus v5e:2x4 2 FOLDER

runs the commands in FOLDER/commands.json one after the other, each a list of a module and its
arguments, on processes that have as many simulated devices as the hosts of two slices have chips.
What the commands print goes to the standard output of the first process.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import grain  # noqa: F401 - defines flags, which then are no command's
import jax
import numpy as np

from t5x_like import partitioning
from t5x_like.research.planning import chips
from tests.programs import in_process


def lie_as(topology: str, *, slices: int = 1) -> None:
    """Let meshes of as many devices as the slices have be laid as on the slices."""
    described = chips.topology(topology, slices=slices).devices()

    def played(devices: Sequence[Any]) -> bool:
        return len(devices) == len(described) and devices[0].platform == "cpu"

    def on_slices(create: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def placed(*shapes_and_devices: Any, **options: bool) -> np.ndarray:
            *shapes, devices = shapes_and_devices
            if not played(devices):
                return create(*shapes, devices, **options)
            # Both list the devices of the first process, then of the second.
            own = dict(zip(described, devices, strict=True))
            hosts = {chip.process_index: device.process_index for chip, device in own.items()}
            assert all(hosts[chip.process_index] == own[chip].process_index for chip in described)
            laid = create(*shapes, described, **options)
            return np.vectorize(own.__getitem__, otypes=[object])(laid)

        return placed

    utils = partitioning.mesh_utils
    if slices == 1:
        utils.create_device_mesh = on_slices(utils.create_device_mesh)
    else:
        # It makes the mesh of each slice by itself, of chips that are described.
        utils.create_hybrid_device_mesh = on_slices(utils.create_hybrid_device_mesh)
        partitioning.number_of_slices = lambda devices: slices if played(devices) else 1


def main() -> None:
    topology, slices, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    partitioning.connect_processes()
    lie_as(topology, slices=slices)
    for module, *arguments in json.loads((folder / "commands.json").read_text()):
        done = in_process.run(module, *arguments)
        if jax.process_index() == 0:
            sys.stdout.write(done.out)
        if done.status:
            sys.exit(f"{module}: {done.err}")


if __name__ == "__main__":
    main()
