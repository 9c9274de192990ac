"""A student encoder that is distilled from a teacher."""

from collections.abc import Callable

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import PyTree

from t5x_like.models.blocks.shared import Collected
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs


class Student(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Sanh et al. 2019, section 3: a student encoder and its frozen `teacher`.

    `__call__` runs the student, `compare` both.

    Attributes:
        make_teacher: factory of an `Encoder` whose head predicts masked tokens, as the student's.
        layers: the number of layers of the student.
    """

    make_teacher: Callable[..., nn.Module]
    layers: int

    def setup(self) -> None:
        super().setup()
        self.teacher = self.make_teacher()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The student's outputs, as `Encoder` returns them."""
        if self.is_initializing():  # the teacher's parameters are made by calling it
            self.teacher(batch)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def compare(self, batch: Batch, *, deterministic: bool = True) -> tuple[Outputs, Outputs]:
        """The outputs of the student and the teacher, with `hidden` [B, L, D] of their last layers.

        The teacher has no dropout, and gets no gradient.
        """
        student = _with_hidden(self, batch, deterministic=deterministic)
        teacher = _with_hidden(self.teacher, batch, deterministic=True)
        return student, jax.lax.stop_gradient(teacher)

    def start(self, teacher: PyTree) -> PyTree:
        """The initial parameters: the student has every other layer of the teacher.

        Layers are spread evenly from the first to the last: of 12 layers 0, 2, 4, 7, 9 and 11, as
        in the authors' code. Segment embeddings are left out, and so are the rows of the position
        table before position 0.

        Args:
            teacher: the teacher's parameters, unboxed.

        Raises:
            ValueError: the teacher's parameters have other shapes than the student's.
        """
        boxed = jax.eval_shape(lambda: self.init(jax.random.key(0), self.example_batch()))
        own = nn.unbox(boxed)["params"]
        rows = own["embeddings"]["position"]["embedding"].shape[0]
        embeddings = {k: v for k, v in teacher["embeddings"].items() if k != "token_type"}
        embeddings["position"] = {"embedding": embeddings["position"]["embedding"][-rows:]}
        layers = _thin(teacher["encoder"]["layers"], layers=self.layers)
        params = teacher | {"embeddings": embeddings, "encoder": {"layers": layers}}
        params["teacher"] = teacher
        shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (own, params)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                "a student that begins with layers of its teacher needs parameters of the same "
                "shapes: set model.vocab_size, d_model, d_ff, heads and positions as the "
                "teacher's, and take a teacher whose layers are all alike"
            )
        return params


def _with_hidden(network: Encoder, batch: Batch, *, deterministic: bool) -> Outputs:
    hidden = network.encode(batch, deterministic=deterministic)
    outputs = network.head(hidden, network.table(), batch, deterministic=deterministic)
    return outputs | {"hidden": hidden}


def _thin(stack: PyTree, *, layers: int) -> PyTree:
    """The parameters of every other layer of a stack, scanned or looped."""
    scanned = "block" in stack
    number = len(jax.tree.leaves(stack)[0]) if scanned else len(stack)
    kept = np.round(np.linspace(0, number - 1, layers)).astype(int)
    if scanned:
        return jax.tree.map(lambda leaf: leaf[kept], stack)
    return {f"layer_{n}": stack[f"layer_{layer}"] for n, layer in enumerate(kept)}
