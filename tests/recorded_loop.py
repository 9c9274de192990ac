"""A training loop over numbers, whose writer and saver keep what they get."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t5x_like.training import metrics as metrics_lib
from t5x_like.training.loop import Log, StepCost, fit


@flax.struct.dataclass
class State:
    """As much of a train state as the loop looks at."""

    step: Array
    params: dict[str, Array]


class Numbers:
    """Batches 1.0, 2.0, ... of one task; the position is the number of batches read."""

    def __init__(self, *, end=None):
        self.read, self._end = 0, end

    def __iter__(self):
        return self

    def __next__(self):
        if self.read == self._end:
            raise StopIteration
        self.read += 1
        return "", np.float32(self.read)

    def state(self):
        return {0: str(self.read).encode()}


class Recorder:
    """A writer and a saver that keep their arguments, in order."""

    def __init__(self, *, every=0):
        self.events, self.scalars, self.images, self.saved = [], {}, {}, {}
        self._every = every

    def write_scalars(self, step, scalars):
        self.events.append(("write", step))
        self.scalars.setdefault(step, {}).update(scalars)

    def write_images(self, step, images):
        self.images |= {(step, name): image for name, image in images.items()}

    def flush(self):
        self.events.append(("flush",))

    def due(self, step):
        return bool(self._every) and step % self._every == 0

    def save(self, step, state, data_state):
        assert step not in self.saved
        self.events.append(("save", step))
        position = data_state.result()
        self.saved[step] = (float(state.params["w"]), position and position[0])

    def wait(self):
        self.events.append(("wait",))


@jax.jit
def step_on(state, batch):
    """Adds the batch to the weight; the loss is the weight, and step s has weight s."""
    weight = state.params["w"] + batch
    step = state.step + 1
    metrics = {"loss": (weight * step, step.astype(jnp.float32))}
    return State(step=step, params={"w": weight}), metrics_lib.from_sums(metrics)


def start(step=0):
    return State(step=jnp.int32(step), params={"w": jnp.float32(0)})


def fit_recorded(
    recorder, *, steps=10, every=4, batches=None, train_step=step_on, hooks=(), **others
):
    recorder.batches = Numbers() if batches is None else batches
    log = Log(recorder, every=every, cost={"": StepCost(tokens=100, examples=2)}, hooks=hooks)
    settings = {"checkpoints": recorder, "put": jnp.asarray} | others
    state = settings.pop("state", start())
    return fit(
        state,
        train_steps={"": train_step},
        batches=recorder.batches,
        steps=steps,
        log=log,
        **settings,
    )
