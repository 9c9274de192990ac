"""Two processes generate what one does, greedily, by sampling and by beam search.

Their devices lie as on a v4:2x2x2, so that each process has every other row.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.programs import processes

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import flax.linen as nn
import jax
import numpy as np
from t5x_like import partitioning, systems
from t5x_like.pretrained import Pretrained
from tests.programs import torus

partitioning.connect_processes()
torus.lie_as("v4:2x2x2")
sizes = {"vocab_size": 48, "positions": 24, "layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
config = next(iter(systems.find("gpt2").sizes.values())) | sizes
module = systems.build("gpt2", config)
mesh = partitioning.make_mesh({"data": -1})
init = lambda: module.init(jax.random.key(0), module.example_batch())["params"]
axes = nn.get_partition_spec(jax.eval_shape(init))
params = jax.jit(lambda: nn.unbox(init()), out_shardings=partitioning.shardings(mesh, axes))()
model = Pretrained(module, params, system="gpt2", config=config, mesh=mesh)
prompts = np.arange(2, 26).reshape(8, 3)
for settings in ({}, {"num_beams": 2}, {"do_sample": True}):
    found = model.generate(
        prompts, np.ones_like(prompts), max_new_tokens=4, eos_token_id=None, **settings
    )
    print(found.tolist())
"""


def run(devices, **environment):
    """The program in a process of its own, which has so many devices."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_generate_what_one_does():
    runs = [run(1), *(run(4, **one) for one in processes.environments())]
    outputs = [process.communicate(timeout=600) for process in runs]
    assert [process.returncode for process in runs] == [0, 0, 0], outputs
    # Gloo has lines of its own before these.
    alone, *together = (output.splitlines()[-3:] for output, _ in outputs)
    assert together == [alone, alone]
