"""Chinchilla: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models".

The network is Gopher's; the paper changes its size and the length of training.
"""

from t5x_like.systems import gopher
from t5x_like.systems.system import System, Task

# The 70b is from table 4; the others are the networks of table A9 whose compute is in table A4.
SIZES: dict[str, gopher.GopherConfig] = {
    "74m": gopher.size(10, 640, heads=10, head_width=64),
    "306m": gopher.size(20, 1024, heads=16, head_width=64),
    "552m": gopher.size(24, 1280, heads=10, head_width=128),
    "1.1b": gopher.size(26, 1792, heads=14, head_width=128),
    "1.6b": gopher.size(28, 2048, heads=16, head_width=128),
    "6.8b": gopher.size(40, 3584, heads=28, head_width=128),
    "70b": gopher.size(80, 8192, heads=64, head_width=128),
}

build = gopher.build
loss = gopher.loss


SYSTEM = System(
    name="chinchilla",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
