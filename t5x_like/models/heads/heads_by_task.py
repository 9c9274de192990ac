"""Several heads on one encoder, one for each task of a run."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.types import Batch
from t5x_like.names import choose


class Heads(nn.Module):
    """Task-specific heads over a shared encoder: Liu et al. 2019 (MT-DNN), section 3.

    The parameters of the head of task x have the path x. Initialization makes all heads.

    Attributes:
        make_heads: factories of the heads, by the name of their task.
        task: the task whose head runs; None runs all heads on the same batch.
    """

    make_heads: Mapping[str, Callable[..., nn.Module]]
    task: str | None = None

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Float[Array, "V E"],
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> dict[str, Any]:
        """The outputs of the task's head; without a task the outputs of all heads, by task.

        Raises:
            ValueError: there is no head for the task.
        """
        if self.task is not None:
            choose("task", self.task, self.make_heads)
        one = self.task is not None and not self.is_initializing()
        outputs = {
            task: make_head(name=task)(hidden, table, batch, deterministic=deterministic)
            for task, make_head in self.make_heads.items()
            if not one or task == self.task
        }
        return outputs if self.task is None else outputs[self.task]


class PooledHeads(Heads, kw_only=True):  # type: ignore[call-arg]  # an argument of Flax
    """Heads that share a pooler, whose output they read in the place of the first token.

    The pooler has the path `summary`, which no task may have.
    """

    make_pooler: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Float[Array, "V E"],
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> dict[str, Any]:
        """As `Heads`."""
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        hidden = jnp.concatenate([pooled[:, None].astype(hidden.dtype), hidden[:, 1:]], axis=1)
        return super().__call__(hidden, table, batch, deterministic=deterministic)
