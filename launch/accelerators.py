"""The TPU slices of Google Cloud: their names for Cloud TPU and for GKE, and their hosts.

    python3 -m launch.accelerators v5litepod-16     # runtime version, chips, hosts: for tpu_vm.sh

Sources: https://cloud.google.com/tpu/docs/runtimes (software versions),
https://cloud.google.com/tpu/docs/v5e and its sisters v2, v3, v4, v5p, v6e, tpu7x (types and
topologies), https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (GKE's names),
https://github.com/AI-Hypercomputer/xpk, core/system_characteristics.py (all of this together).
`gcloud compute tpus accelerator-types list --zone=ZONE` lists the types in a zone.
"""

import dataclasses
import difflib
import math
import sys


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips joined by a dedicated network, and the machines that hold them.

    Attributes:
        type: Cloud TPU's accelerator type, such as `v5litepod-16`.
        runtime_version: the software that Cloud TPU puts on its machines; "" if only GKE has it.
        topology: how the chips are joined, such as `4x4`.
        chips: the number of chips.
        chips_per_host: chips per machine; each machine runs one process.
        gke_accelerator: GKE's label of the nodes; "" if GKE does not have it.
        machine_type: Compute Engine's name of the machines; "" if GKE does not have it.
    """

    type: str
    runtime_version: str
    topology: str
    chips: int
    chips_per_host: int
    gke_accelerator: str
    machine_type: str

    @property
    def hosts(self) -> int:
        """The number of machines."""
        return self.chips // self.chips_per_host


@dataclasses.dataclass(frozen=True)
class _Generation:
    """The properties that all slices of a generation of chips share."""

    name: str
    named_by: int  # the number in a type's name per chip: it counts TensorCores, if there are two
    runtime_version: str
    gke_accelerator: str
    machine: str
    one_host: int  # maximum chips of a single machine; if there are several, each holds four
    topologies: str

    def slices(self) -> list[Slice]:
        slices = []
        for topology in self.topologies.split():
            chips = math.prod(map(int, topology.split("x")))
            per_host = chips if chips <= self.one_host else 4
            slices.append(
                Slice(
                    type=f"{self.name}-{chips * self.named_by}",
                    runtime_version=self.runtime_version,
                    topology=topology,
                    chips=chips,
                    chips_per_host=per_host,
                    gke_accelerator=self.gke_accelerator,
                    machine_type=f"{self.machine}-{per_host}t" if self.machine else "",
                )
            )
        return slices


_PLANES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 12x16x16 16x16x16"
_V2, _V3 = "4x4 8x8 8x16 16x16", "4x4 4x8 8x8 8x16 16x16 16x32 32x32"
_GENERATIONS = (
    _Generation("v2", 2, "tpu-ubuntu2204-base", "", "", 4, f"2x2 {_V2}"),
    _Generation("v3", 2, "tpu-ubuntu2204-base", "tpu-v3-device", "ct3-hightpu", 4, "2x2"),
    _Generation("v3", 2, "tpu-ubuntu2204-base", "tpu-v3-slice", "ct3p-hightpu", 4, _V3),
    _Generation("v4", 2, "tpu-ubuntu2204-base", "tpu-v4-podslice", "ct4p-hightpu", 4, _CUBES),
    _Generation(
        "v5litepod", 1, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", "ct5lp-hightpu", 8, _PLANES
    ),
    _Generation(
        "v5p", 2, "v2-alpha-tpuv5", "tpu-v5p-slice", "ct5p-hightpu", 4, _CUBES + " 16x16x24"
    ),
    _Generation("v6e", 1, "v2-alpha-tpuv6e", "tpu-v6e-slice", "ct6e-standard", 8, _PLANES),
    _Generation("tpu7x", 2, "", "tpu7x", "tpu7x-standard", 4, _CUBES),
)
SLICES = {one.type: one for generation in _GENERATIONS for one in generation.slices()}


def choose(accelerator_type: str) -> Slice:
    """Return the slice of an accelerator type.

    Raises:
        ValueError: the type does not exist; the message lists the nearest type and its generation.
    """
    if accelerator_type in SLICES:
        return SLICES[accelerator_type]
    # Without t5x_like.names: a machine that only launches runs needs nothing but Python.
    spelled = accelerator_type.replace("v5e", "v5litepod")  # the documentation's name
    near = difflib.get_close_matches(spelled, SLICES, n=1, cutoff=0.0)[0]
    generation = near.split("-")[0]
    allowed = [name for name in SLICES if name.split("-")[0] == generation]
    raise ValueError(
        f"--type={accelerator_type!r} does not exist. Did you mean {near!r}? "
        f"Of {generation} there are: {', '.join(allowed)}"
    )


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        sys.exit()
    try:
        found = choose("".join(sys.argv[1:]))
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    if not found.runtime_version:
        sys.stderr.write(
            f"error: --type={found.type}: Cloud TPU does not have it, but GKE has: python -m "
            "launch.gke\n"
        )
        sys.exit(2)
    print(found.runtime_version, found.chips, found.hosts)
