"""MT-DNN: Liu et al. 2019, "Multi-Task Deep Neural Networks for ..." (arXiv:1901.11504)."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like import losses
from t5x_like.hf.record import Settings
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.encoder_heads import (
    MultipleChoiceHead,
    PooledHeads,
    Pooler,
    output_layer,
    select_head,
)
from t5x_like.nn.linear import Initializer, Linear, replicate_last_axis
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MtDnnConfig(bert.DenseEncoderConfig):
    """The settings of BERT's encoder, and of the stochastic answer network."""

    answer_steps: int = 5
    prediction_dropout: float = 0.1


SIZES: dict[str, MtDnnConfig] = {
    name: size.to(MtDnnConfig, head="classification") for name, size in bert.SIZES.items()
}

_PADDING = -1e9  # the score of a row of padding, which is not a candidate


class RelevanceHead(MultipleChoiceHead):
    """Predict each candidate's relevance for a question, from 0 to 1 (section 3, equation 5)."""

    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, C]: the relevance; -1e9 for rows of padding."""
        scores = super().__call__(hidden, table, batch, deterministic=deterministic)["logits"]
        return {"logits": jnp.where(scores > _PADDING, nn.sigmoid(scores), _PADDING)}


class FirstState(nn.Module):
    """Return the first token's state, which `PooledHeads` has replaced by the pooler's output."""

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B D"]:
        """Return the hidden state of the first token."""
        return hidden[:, 0]


# ---- The stochastic answer network: predict the class of a pair of texts in several steps.


class GatedUnit(nn.Module):
    """A gated recurrent unit (Cho et al. 2014), with both biases of PyTorch's GRUCell."""

    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: Float[Array, "B D"], state: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """Return the next state."""
        axes, size = ("embed", "gates", "mlp"), (3, x.shape[-1])
        of_input, of_state = (
            replicate_last_axis(
                Linear(size, axes=axes, use_bias=True, kernel_init=self.kernel_init, name=name)(y)
            )
            for name, y in (("input", x), ("state", state))
        )
        reset, update = (nn.sigmoid(of_input[:, gate] + of_state[:, gate]) for gate in range(2))
        new = nn.tanh(of_input[:, 2] + reset * of_state[:, 2])
        return (1 - update) * new + update * state


class StochasticAnswer(nn.Module):
    """Predict the class of a premise and a hypothesis (Liu et al. 2019, MT-DNN, section 3).

    With P and H the states of the tokens of premise and hypothesis, the first state is a weighted
    sum of H,

        s = sum_j a_j H_j,   a = softmax(w H_j).

    Each of `steps` steps reads P, predicts p, and then updates the state:

        x = sum_j b_j P_j,   b = softmax(s W P_j)
        p = softmax(V [s; x; |s - x|; s * x]),   s = GRU(x, s)

    The predicted probabilities are the mean of p over the steps. In training each step is left out
    of the mean with the probability `prediction_dropout`, except for one step drawn at random.

    Attributes:
        labels: the number of classes, C.
        steps: the number of steps, K.
        prediction_dropout: the rate at which steps are left out of the mean in training.
        dropout: the dropout rate of the tokens' states, and of the output layer's input.
    """

    labels: int
    steps: int
    prediction_dropout: float
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        table: Array,
        batch: Batch,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Return `logits`, float32 [B, C]: the logarithm of the mean probabilities.

        They are NaN for a row in which one of the two texts is missing, except a row of padding.

        Args:
            hidden: the states of all tokens; the first token belongs to neither text.
            batch: its `encoder_token_types` are 0 for the premise, and 1 for the hypothesis.
        """
        real = batch["encoder_segment_ids"] > 0
        is_second = batch.get("encoder_token_types", jnp.zeros_like(real)) > 0
        text = real.at[:, 0].set(False)
        premise, hypothesis = text & ~is_second, text & is_second
        drop = nn.Dropout(self.dropout, deterministic=deterministic)
        hidden = drop(hidden.astype(jnp.float32))
        state = _attend(self._linear(1, "classes", "query")(hidden)[..., 0], hypothesis, hidden)
        bilinear = self._linear(hidden.shape[-1], "mlp", "bilinear")
        unit = GatedUnit(kernel_init=self.kernel_init, name="unit")
        output = output_layer(self.labels, self.kernel_init, "classifier")
        read, steps = state, []
        for step in range(self.steps):
            state = unit(read, state) if step else state
            scores = jnp.einsum("bd,bld->bl", replicate_last_axis(bilinear(state)), hidden)
            read = _attend(scores, premise, hidden)
            both = [state, read, jnp.abs(state - read), state * read]
            joined = replicate_last_axis(jnp.concatenate(both, axis=-1))
            steps.append(nn.log_softmax(output(drop(joined))))
        logits = self._mean(jnp.stack(steps, axis=1), deterministic=deterministic)
        both_there = jnp.any(premise, axis=1) & jnp.any(hypothesis, axis=1)
        return {"logits": jnp.where((both_there | ~real[:, 0])[:, None], logits, jnp.nan)}

    def _linear(self, size: int, axis: str, name: str) -> Linear:
        return Linear((size,), axes=("embed", axis), kernel_init=self.kernel_init, name=name)

    def _mean(self, logs: Float[Array, "B K C"], *, deterministic: bool) -> Float[Array, "B C"]:
        """Return the logarithm of the mean probabilities, in training over the steps kept."""
        counted = jnp.ones(logs.shape[:2], bool)
        if not deterministic and self.prediction_dropout:
            counted = kept_steps(
                self.make_rng("dropout"), counted.shape, rate=self.prediction_dropout
            )
        total = nn.logsumexp(jnp.where(counted[..., None], logs, -jnp.inf), axis=1)
        return total - jnp.log(jnp.sum(counted, axis=1, keepdims=True))


def kept_steps(key: Array, shape: tuple[int, ...], *, rate: float) -> Bool[Array, "B K"]:
    """Return which steps of each row are kept: a random step, and others at the rate 1 - rate."""
    of_steps, of_certain = jax.random.split(key)
    certain = jax.random.randint(of_certain, shape[:1], 0, shape[1])
    return jax.random.bernoulli(of_steps, 1 - rate, shape) | jax.nn.one_hot(
        certain, shape[1], dtype=bool
    )


def _attend(
    scores: Float[Array, "B L"], mask: Bool[Array, "B L"], states: Float[Array, "B L D"]
) -> Float[Array, "B D"]:
    """Return the mean of the states in the mask, weighted by the softmax of their scores."""
    # The mask of a row of padding is empty, and the gradient of a softmax over nothing is NaN.
    allowed = mask | ~jnp.any(mask, axis=1, keepdims=True)
    weights = nn.softmax(jnp.where(allowed, scores, -jnp.inf))
    return jnp.einsum("bl,bld->bd", weights, states)


def build(config: MtDnnConfig) -> nn.Module:
    """Build BERT's encoder and pooler, which all tasks share, and a head for each task (section 3).

    Args:
        config: its `head` is "pair_classification" (the stochastic answer network), "ranking", a
            head of `select_head`, or for several tasks a mapping; `answer_steps` and
            `prediction_dropout` are the `steps` and `prediction_dropout` of `StochasticAnswer`.

    Raises:
        ValueError: the head is unknown, a task has the name of the pooler, `summary`, or
            `answer_steps` is below 1.
    """
    if config.answer_steps < 1:
        raise ValueError(f"model.answer_steps={config.answer_steps} must be 1 or more steps")
    if "summary" in config.head and not isinstance(config.head, str):
        raise ValueError(
            "tasks has the name 'summary', which the shared pooler's parameters have: choose "
            "another name"
        )
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    several = functools.partial(PooledHeads, make_pooler=make_pooler)
    output = {"kernel_init": config.init, "dropout": config.dropout}
    make_first = make_pooler if isinstance(config.head, str) else FirstState
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_head=select_head(
            config,
            {"ranking": functools.partial(RelevanceHead, make_pooler=make_first, **output)},
            make_pooler=make_first,
            kernel_init=config.init,
            of_classes={
                "pair_classification": functools.partial(
                    StochasticAnswer,
                    steps=config.answer_steps,
                    prediction_dropout=config.prediction_dropout,
                    **output,
                )
            },
            make_several=several,
        ),
    )


def ranking_loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None, *, gamma: float = 1.0
) -> losses.LossSums:
    """Return the cross-entropy of a question's relevant candidate (section 3.1, equation 8).

    Args:
        rng: key of dropout; None in evaluation.
        gamma: a factor of the relevance before the softmax over candidates.
    """
    outputs = losses.forward(module, params, batch, rng)
    return losses.fine_tuning.multiple_choice({"logits": gamma * outputs["logits"]}, batch)


SYSTEM = System(
    name="mt_dnn",
    sizes=SIZES,
    build=build,
    older_defaults=EARLIER_INIT,
    tasks={
        **ENCODER_TASKS,
        "pair_classification": Task(
            loss=functools.partial(losses.fine_tuning.loss, "classification"),
            prediction="pair_classes",
            measures=("predictions",),
            objective="pair_classification",
        ),
        "ranking": Task(loss=ranking_loss, prediction="encoder_choices", measures=("predictions",)),
    },
)


# MT-DNN in Hugging Face's folders, where its shared encoder and pooler are a BERT.


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("pair_classification", "ranking"):
        raise ValueError(
            f"model.head={settings['head']!r}: Hugging Face has no such head: the encoder "
            "without it is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    return {}


HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="mt_dnn",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
    exported_only={},
)
