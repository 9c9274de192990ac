"""Heads of an encoder: masked LM, classes, numbers, tags, answers, multiple choice.

A head is called `head(hidden [B, L, D], table [V, E], batch, deterministic=) -> outputs`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.compute import Compute
from t5x_like.models.embeddings.token_embeddings import TiedHead
from t5x_like.models.linear import Initializer, Linear, keep_whole
from t5x_like.models.types import Activation, Batch, Outputs
from t5x_like.names import choose


def output_layer(outputs: int, kernel_init: Initializer, name: str) -> nn.Module:
    """A linear layer to a few logits, in float32 for every model.dtype: it costs nothing."""
    return Linear(
        (outputs,), axes=("embed", "classes"), use_bias=True, kernel_init=kernel_init, name=name
    )


# ---- Several heads, one for each task of a run.


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


# ---- ELECTRA's heads: whether each token was replaced, and which token it was.


class ReplacedTokenHead(nn.Module):
    """Replaced token detection: a dense layer and one logit per token (Clark et al. 2020).

    Attributes:
        make_norm: factory of a norm: the dense layer then gets norm(token + first token), as in the
            code of He et al. 2021. None: it gets the token.
    """

    activation: Activation
    kernel_init: Initializer
    make_norm: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L], that each token was replaced."""
        if self.make_norm is not None:
            hidden = self.make_norm(name="norm")(hidden + hidden[:, :1])
        x = Linear(
            (hidden.shape[-1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="transform",
        )(hidden)
        logits = output_layer(1, self.kernel_init, "replaced")(self.activation(keep_whole(x)))
        return {"logits": logits[..., 0]}


class CopyHead(nn.Module):
    """Predict every token, or that it is a copy of the input token (section 3.5)."""

    make_masked_lm: Callable[..., nn.Module]
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L, V], and `copy_logits`, float32 [B, L]."""
        copy = output_layer(1, self.kernel_init, "copy")(hidden)[..., 0]
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch) | {"copy_logits": copy}


# ---- Heads of one task.


class MaskedLM(nn.Module):
    """Logits of tokens: a dense layer, a norm and the tied embeddings (Devlin et al. 2018).

    With `predicted_positions` [B, P] in the batch only those positions are computed: six of seven
    positions have no loss, and the map to the vocabulary costs as much as several layers.
    """

    make_norm: Callable[..., nn.Module]
    activation: Activation
    kernel_init: Initializer
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Float[Array, "V E"],
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, L, V] or [B, P, V]."""
        if "predicted_positions" in batch:
            places = batch["predicted_positions"][..., None]
            hidden = jnp.take_along_axis(hidden, places, axis=1)
        # The new axis is "mlp", which is sharded over `model`: no axis may be named twice.
        x = Linear(
            (table.shape[1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="transform",
        )(hidden)
        x = self.make_norm(name="norm")(self.activation(keep_whole(x)))
        return {"logits": TiedHead(use_bias=True, name="output")(x, table)}


class Pooler(nn.Module):
    """A pooler: a dense layer on the first token (Devlin et al. 2018, section 3.1).

    Attributes:
        inner_dropout: rate before the dense layer; the heads have their own after it.
    """

    activation: Activation
    kernel_init: Initializer
    inner_dropout: float = 0.0
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B D"]:
        """The pooled output."""
        first = nn.Dropout(self.inner_dropout)(hidden[:, 0], deterministic)
        x = Linear(
            (hidden.shape[-1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="dense",
        )(first)
        return self.activation(keep_whole(x))


class Pretraining(nn.Module):
    """Pretraining on masked tokens and on a class of the row: next sentence or sentence order.

    Attributes:
        classes: the number of classes of a row.
        dropout: rate for the pooled output.
    """

    make_masked_lm: Callable[..., nn.Module]
    make_pooler: Callable[..., nn.Module]
    classes: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits` of tokens, and `row_logits` [B, classes]."""
        outputs = self.make_masked_lm(name="masked_lm")(hidden, table, batch)
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        pooled = nn.Dropout(self.dropout)(pooled, deterministic)
        output = output_layer(self.classes, self.kernel_init, "row")
        return outputs | {"row_logits": output(pooled)}


class MaskedLMHead(nn.Module):
    """Masked language modelling alone."""

    make_masked_lm: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits` of tokens."""
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch)


class SequenceHead(nn.Module):
    """Predict a class, or with one output a number, for each row from the pooled output."""

    make_pooler: Callable[..., nn.Module]
    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, outputs]."""
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        pooled = nn.Dropout(self.dropout)(pooled, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(pooled)}


class FirstTokenHead(nn.Module):
    """Predict a class, or a number, for each row from its first token, with a pooler of its own.

    RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020) have this head in their code.
    """

    make_pooler: Callable[..., nn.Module]
    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, outputs]."""
        first = self.make_pooler(name="first")(hidden, deterministic=deterministic)
        first = nn.Dropout(self.dropout)(first, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(first)}


class LastTokenHead(FirstTokenHead):
    """Predict a class, or a number, from the last token (Lewis et al. 2019, section 3.1)."""

    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, outputs]."""
        state = _last_state(hidden, batch)
        return super().__call__(state, table, batch, deterministic=deterministic)


class MultipleChoiceHead(nn.Module):
    """Predict which of the C rows of an example is right (Devlin et al. 2018, section 4.4).

    The score of a row is the dot product of its pooled output with a vector.
    """

    make_pooler: Callable[..., nn.Module]
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "BC L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """`logits`, float32 [B, C]; -1e9 for rows of padding.

        Args:
            batch: its fields are [B, C, L], or [B, L] for one row an example.
        """
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        pooled = nn.Dropout(self.dropout)(pooled, deterministic)
        scores = output_layer(1, self.kernel_init, "choice")(pooled)
        real = jnp.any(batch["encoder_segment_ids"] > 0, axis=-1)
        real = real if real.ndim == 2 else real[:, None]
        return {"logits": jnp.where(real, scores.reshape(real.shape), -1e9)}


class LastTokenChoiceHead(MultipleChoiceHead):
    """Multiple choice from the last token of each row."""

    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, C]; -1e9 for rows of padding."""
        state = _last_state(hidden, batch)
        return super().__call__(state, table, batch, deterministic=deterministic)


def _last_state(hidden: Float[Array, "R L D"], batch: Batch) -> Float[Array, "R 1 D"]:
    """The hidden state of the last token of each row that is not padding."""
    real = jnp.reshape(batch["encoder_segment_ids"] > 0, hidden.shape[:2])
    last = hidden.shape[1] - 1 - jnp.argmax(real[:, ::-1], axis=1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)


class TokenHead(nn.Module):
    """Predict a tag for each token."""

    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, L, outputs]."""
        hidden = nn.Dropout(self.dropout)(hidden, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "tagger")(hidden)}


class AnswerHead(nn.Module):
    """Predict the start and the end of an answer (Devlin et al. 2018, section 4.2)."""

    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`start_logits` and `end_logits`, float32 [B, L]."""
        logits = output_layer(2, self.kernel_init, "answer")(hidden)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class Features(nn.Module):
    """The hidden states as features, and the pooled output where there is a pooler."""

    make_pooler: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`hidden` [B, L, D], and `summary` [B, D], the pooled output."""
        if self.make_pooler is None:
            return {"hidden": hidden}
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        return {"hidden": hidden, "summary": pooled}


def select_head(
    config: Mapping[str, Any],
    own: Mapping[str, Callable[..., nn.Module]],
    *,
    make_pooler: Callable[..., nn.Module],
    kernel_init: Initializer,
    make_row: Callable[..., nn.Module] | None = None,
    of_classes: Mapping[str, Callable[..., nn.Module]] | None = None,
    make_several: Callable[..., nn.Module] = Heads,
) -> Callable[..., nn.Module]:
    """The factory of the head that `model.head` names, or of `Heads` where it names several.

    Args:
        config: with `head`, `labels` (classes or tags) and `dropout`. `head` is the name of a head,
            or a mapping from the names of tasks to their `head`, `labels` and `dropout`.
        own: the system's own heads by name. The heads for labelled text and `features` are added
            where the system does not replace them.
        make_pooler: factory of the pooler, which `features` returns.
        make_row: factory of the head that predicts `outputs` numbers for each row; None for
            `SequenceHead` on the pooler's output.
        of_classes: the system's own heads that predict one of `labels` classes, by name.
        make_several: factory of the heads of several tasks, `Heads` or a subclass.

    Raises:
        ValueError: an unknown head or setting, too few `labels` for the head, or a head without
            dropout that has one set.
    """
    output = {"kernel_init": kernel_init, "dropout": config["dropout"]}
    row = make_row or functools.partial(SequenceHead, make_pooler=make_pooler, **output)
    of_classes = of_classes or {}

    def select(head: str, labels: int, *, setting: str) -> Callable[..., nn.Module]:
        heads: dict[str, Callable[..., nn.Module]] = {
            "classification": functools.partial(row, outputs=labels),
            "regression": functools.partial(row, outputs=1),
            "tagging": functools.partial(TokenHead, outputs=labels, **output),
            "question_answering": functools.partial(AnswerHead, kernel_init=kernel_init),
            "multiple_choice": functools.partial(
                MultipleChoiceHead, make_pooler=make_pooler, **output
            ),
            "features": functools.partial(Features, make_pooler=make_pooler),
            **own,
            **{name: functools.partial(make, labels=labels) for name, make in of_classes.items()},
        }
        if head in ("classification", "tagging", *of_classes) and labels < 2:
            raise ValueError(f"{setting}labels={labels}: the head {head!r} needs 2 or more labels")
        return choose(f"{setting}head", head, heads)

    if isinstance(config["head"], str):
        return select(config["head"], config["labels"], setting="model.")
    heads = {}
    for task, settings in config["head"].items():
        where = f"model.head.{task}"
        for name in settings:
            choose(f"setting of {where}", name, dict.fromkeys(("head", "labels", "dropout")))
        if "head" not in settings:
            raise ValueError(f"{where} lacks head: name the head of this task")
        labels = settings.get("labels", config["labels"])
        heads[task] = select(settings["head"], labels, setting=f"{where}.")
        if "dropout" in settings:
            heads[task] = _with_dropout(heads[task], settings["dropout"], where=where)
    return functools.partial(make_several, make_heads=heads)


def _with_dropout(
    make_head: Callable[..., nn.Module], rate: Any, *, where: str
) -> Callable[..., nn.Module]:
    """The factory of a head with another rate of dropout than the rest of the network."""
    if not hasattr(getattr(make_head, "func", make_head), "dropout"):
        raise ValueError(f"{where}.dropout={rate!r}: this head has no dropout; leave it out")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"{where}.dropout={rate!r} must be a number from 0 to below 1")
    return functools.partial(make_head, dropout=rate)
