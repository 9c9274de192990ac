"""Heads of an encoder: masked LM, classes, numbers, tags, answers, multiple choice.

The call of a head is `head(hidden [B, L, D], table [V, E], batch, deterministic=) -> outputs`;
`table` is the token embedding table.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.names import check_type, choose
from t5x_like.nn.compute import Activation, Batch, Compute, Outputs
from t5x_like.nn.embeddings import TiedHead
from t5x_like.nn.linear import Initializer, Linear, replicate_last_axis


def output_layer(outputs: int, kernel_init: Initializer, name: str) -> nn.Module:
    """Make a linear layer to a few logits, in float32 for every model.dtype, as it is cheap."""
    return Linear(
        (outputs,), axes=("embed", "classes"), use_bias=True, kernel_init=kernel_init, name=name
    )


# ---- Several heads: one for each task of a run.


class Heads(nn.Module):
    """Task-specific heads over a shared encoder: Liu et al. 2019 (MT-DNN), section 3.

    The parameters of the head of task x are at the path x. Initialization creates all heads.

    Attributes:
        make_heads: {name of the task: factory of its head}.
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
        """Return the outputs of the task's head; without a task, {task: outputs} of all heads.

        Raises:
            ValueError: there is no head for the task.
        """
        if self.task is not None:
            choose("task", self.task, self.make_heads)
        only_task = self.task is not None and not self.is_initializing()
        outputs = {
            task: make_head(name=task)(hidden, table, batch, deterministic=deterministic)
            for task, make_head in self.make_heads.items()
            if not only_task or task == self.task
        }
        return outputs if self.task is None else outputs[self.task]


class PooledHeads(Heads, kw_only=True):  # type: ignore[call-arg]  # an argument of Flax
    """Heads that share a pooler, whose output replaces the first token's hidden state.

    The pooler's parameters are at the path `summary`, so no task may have this name.
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
        """Return the outputs, see `Heads`."""
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        hidden = jnp.concatenate([pooled[:, None].astype(hidden.dtype), hidden[:, 1:]], axis=1)
        return super().__call__(hidden, table, batch, deterministic=deterministic)


# ---- ELECTRA's heads: whether each token was replaced, and the original token.


class ReplacedTokenHead(nn.Module):
    """Replaced token detection: a dense layer and one logit per token (Clark et al. 2020).

    Attributes:
        make_norm: factory of a norm: the dense layer then reads norm(token + first token), as in
            the code of He et al. 2021. None: it reads the token.
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
        """Return `logits`, float32 [B, L], of each token having been replaced."""
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
        logits = output_layer(1, self.kernel_init, "replaced")(
            self.activation(replicate_last_axis(x))
        )
        return {"logits": logits[..., 0]}


class CopyHead(nn.Module):
    """Prediction of every original token, and of whether the input is a copy (section 3.5)."""

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
        """Return `logits`, float32 [B, L, V], and `copy_logits`, float32 [B, L]."""
        copy = output_layer(1, self.kernel_init, "copy")(hidden)[..., 0]
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch) | {"copy_logits": copy}


# ---- Heads of one task.


def at_predicted(hidden: Float[Array, "B L D"], batch: Batch) -> Float[Array, "B P D"]:
    """Return the hidden states at the batch's `predicted_positions` [B, P], or all without it."""
    if "predicted_positions" not in batch:
        return hidden
    return jnp.take_along_axis(hidden, batch["predicted_positions"][..., None], axis=1)


def transform_tokens(
    x: Float[Array, "B L D"],
    features: int,
    *,
    make_norm: Callable[..., nn.Module],
    activation: Activation,
    kernel_init: Initializer,
    compute: Compute,
) -> Float[Array, "B L E"]:
    """Apply the dense layer and the norm before an output layer, as modules of the caller.

    Args:
        features: E, the width of the embedding table.
    """
    # The output axis is named "mlp", not "embed": a kernel may not have one axis name twice.
    x = Linear(
        (features,),
        axes=("embed", "mlp"),
        use_bias=True,
        kernel_init=kernel_init,
        compute=compute,
        name="transform",
    )(x)
    return make_norm(name="norm")(activation(replicate_last_axis(x)))


class MaskedLM(nn.Module):
    """Logits of tokens: a dense layer, a norm and the tied embeddings (Devlin et al. 2018).

    If the batch has `predicted_positions` [B, P], logits are computed only there: six of seven
    positions have no loss, and the projection to the vocabulary costs as much as several layers.
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
        """Return `logits`, float32 [B, L, V] or [B, P, V]."""
        hidden = at_predicted(hidden, batch)
        x = transform_tokens(
            hidden,
            table.shape[1],
            make_norm=self.make_norm,
            activation=self.activation,
            kernel_init=self.kernel_init,
            compute=self.compute,
        )
        return {"logits": TiedHead(use_bias=True, name="output")(x, table)}


class Pooler(nn.Module):
    """A pooler: a dense layer on the first token (Devlin et al. 2018, section 3.1).

    Attributes:
        inner_dropout: rate before the dense layer; the heads apply another after the pooler.
    """

    activation: Activation
    kernel_init: Initializer
    inner_dropout: float = 0.0
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B D"]:
        """Return the pooled output."""
        first = nn.Dropout(self.inner_dropout)(hidden[:, 0], deterministic)
        x = Linear(
            (hidden.shape[-1],),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="dense",
        )(first)
        return self.activation(replicate_last_axis(x))


class Pretraining(nn.Module):
    """Pretraining on masked tokens and on a class of each row: next sentence or sentence order.

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
        """Return `logits` of tokens, and `row_logits` [B, classes]."""
        outputs = self.make_masked_lm(name="masked_lm")(hidden, table, batch)
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        pooled = nn.Dropout(self.dropout)(pooled, deterministic)
        output = output_layer(self.classes, self.kernel_init, "row")
        return outputs | {"row_logits": output(pooled)}


class MaskedLMHead(nn.Module):
    """Masked language modelling, without a class of the row."""

    make_masked_lm: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits` of tokens."""
        return self.make_masked_lm(name="masked_lm")(hidden, table, batch)


class SequenceHead(nn.Module):
    """Prediction of each row's class (or number, with one output) from the pooled output."""

    make_pooler: Callable[..., nn.Module]
    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, outputs]."""
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        pooled = nn.Dropout(self.dropout)(pooled, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(pooled)}


class FirstTokenHead(nn.Module):
    """Prediction of each row's class or number from the first token, by a separate pooler.

    The code of RoBERTa (Liu et al. 2019) and ELECTRA (Clark et al. 2020) has this head.
    """

    make_pooler: Callable[..., nn.Module]
    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, outputs]."""
        first = self.make_pooler(name="first")(hidden, deterministic=deterministic)
        first = nn.Dropout(self.dropout)(first, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(first)}


class LastTokenHead(FirstTokenHead):
    """Prediction of a class or number from the last token (Lewis et al. 2019, section 3.1)."""

    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, outputs]."""
        state = _last_state(hidden, batch)
        return super().__call__(state, table, batch, deterministic=deterministic)


class MultipleChoiceHead(nn.Module):
    """Prediction of the right row among an example's C rows (Devlin et al. 2018, section 4.4).

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
        """Return `logits`, float32 [B, C]; -1e9 for padding rows.

        Args:
            batch: fields [B, C, L], or [B, L] for one row per example.
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
        """Return `logits`, float32 [B, C]; -1e9 for padding rows."""
        state = _last_state(hidden, batch)
        return super().__call__(state, table, batch, deterministic=deterministic)


def _last_state(hidden: Float[Array, "R L D"], batch: Batch) -> Float[Array, "R 1 D"]:
    """Return the hidden state of each row's last token that is not padding."""
    real = jnp.reshape(batch["encoder_segment_ids"] > 0, hidden.shape[:2])
    last = hidden.shape[1] - 1 - jnp.argmax(real[:, ::-1], axis=1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)


class TokenHead(nn.Module):
    """Prediction of a tag for each token."""

    outputs: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, L, outputs]."""
        hidden = nn.Dropout(self.dropout)(hidden, deterministic)
        return {"logits": output_layer(self.outputs, self.kernel_init, "tagger")(hidden)}


class AnswerHead(nn.Module):
    """Prediction of the start and the end of an answer (Devlin et al. 2018, section 4.2)."""

    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `start_logits` and `end_logits`, float32 [B, L]."""
        logits = output_layer(2, self.kernel_init, "answer")(hidden)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class HeadOverLSTM(nn.Module):
    """A head that reads a BiLSTM over the hidden states: Devlin et al. 2018, sections 5.1 and 5.3.

    Attributes:
        make_head: factory of the head, whose parameters are under `over`.
        make_lstm: factory of a `BiLSTM`.
    """

    make_head: Callable[..., nn.Module]
    make_lstm: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return the outputs of the head."""
        real = jnp.reshape(batch["encoder_segment_ids"] > 0, hidden.shape[:2])
        states = self.make_lstm(name="lstm")(hidden, real, deterministic=deterministic)
        return self.make_head(name="over")(states, table, batch, deterministic=deterministic)


class Features(nn.Module):
    """The hidden states as features, and the pooled output if there is a pooler."""

    make_pooler: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `hidden` [B, L, D], and `summary` [B, D], the pooled output."""
        if self.make_pooler is None:
            return {"hidden": hidden}
        pooled = self.make_pooler(name="summary")(hidden, deterministic=deterministic)
        return {"hidden": hidden, "summary": pooled}


def select_head(
    config: Mapping[str, Any],
    system_heads: Mapping[str, Callable[..., nn.Module]],
    *,
    make_pooler: Callable[..., nn.Module],
    kernel_init: Initializer,
    make_row: Callable[..., nn.Module] | None = None,
    of_classes: Mapping[str, Callable[..., nn.Module]] | None = None,
    make_several: Callable[..., nn.Module] = Heads,
    make_lstm: Callable[..., nn.Module] | None = None,
) -> Callable[..., nn.Module]:
    """Return the factory of the head that `model.head` names, or of `Heads` if it names several.

    Args:
        config: `head`, `labels` (the number of classes or tags) and `dropout`. `head` is the name
            of a head, or {name of a task: its `head`, `labels` and `dropout`}.
        system_heads: {name: factory} of the system's own heads, added to the heads for labelled
            text and `features`; a head of the same name replaces the default.
        make_pooler: factory of the pooler.
        make_row: factory of the head that predicts `outputs` numbers for each row; None for
            `SequenceHead` on the pooler's output.
        of_classes: {name: factory} of the system's own heads that predict one of `labels` classes.
        make_several: factory of the heads of several tasks: `Heads` or a subclass.
        make_lstm: factory of a `BiLSTM` over the hidden states, which the heads read; None for
            none.

    Raises:
        ValueError: a head or setting is unknown, `labels` is too small for the head, or `dropout`
            is invalid or set for a head without dropout.
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
            **system_heads,
            **{name: functools.partial(make, labels=labels) for name, make in of_classes.items()},
        }
        if head in ("classification", "tagging", *of_classes) and labels < 2:
            raise ValueError(f"{setting}labels={labels}: the head {head!r} needs 2 or more labels")
        return choose(f"{setting}head", head, heads)

    if isinstance(config["head"], str):
        make_head = select(config["head"], config["labels"], setting="model.")
        return _over_lstm(make_head, make_lstm)
    heads = {}
    for task, settings in config["head"].items():
        where = f"model.head.{task}"
        check_type(where, settings, Mapping)
        for name in settings:
            choose(f"setting of {where}", name, dict.fromkeys(("head", "labels", "dropout")))
        if "head" not in settings:
            raise ValueError(f"{where} lacks head: name the head of this task")
        labels = settings.get("labels", config["labels"])
        heads[task] = select(settings["head"], labels, setting=f"{where}.")
        if "dropout" in settings:
            heads[task] = _with_dropout(heads[task], settings["dropout"], where=where)
        heads[task] = _over_lstm(heads[task], make_lstm)
    return functools.partial(make_several, make_heads=heads)


def _over_lstm(
    make_head: Callable[..., nn.Module], make_lstm: Callable[..., nn.Module] | None
) -> Callable[..., nn.Module]:
    if make_lstm is None:
        return make_head
    return functools.partial(HeadOverLSTM, make_head=make_head, make_lstm=make_lstm)


def _with_dropout(
    make_head: Callable[..., nn.Module], rate: Any, *, where: str
) -> Callable[..., nn.Module]:
    """Return the factory of a head with a dropout rate that differs from the network's."""
    if not hasattr(getattr(make_head, "func", make_head), "dropout"):
        raise ValueError(f"{where}.dropout={rate!r}: this head has no dropout; leave it out")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"{where}.dropout={rate!r} must be a number from 0 to below 1")
    return functools.partial(make_head, dropout=rate)
