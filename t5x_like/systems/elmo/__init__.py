"""ELMo: Peters et al. 2018, "Deep contextualized word representations" (arXiv:1802.05365)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, PyTree

from t5x_like import losses
from t5x_like.losses import fine_tuning
from t5x_like.losses.sums import LossSums
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.names import choose
from t5x_like.nn.compute import Batch
from t5x_like.nn.lstm import LSTMState
from t5x_like.systems.elmo.character_cnn import CharacterCNN
from t5x_like.systems.elmo.network import (
    PLACES,
    BidirectionalLM,
    BothDirections,
    ChainedWordTagger,
    StackedLSTM,
    TaskOverLM,
    TextClassifier,
    WordsHead,
    WordSpans,
    WordTagger,
    select_mix,
    to_vocabulary,
)
from t5x_like.systems.system import DropoutConfig, ModelConfig, System, Task, adaptation

# (width in characters, number of filters): section 3.4 and the options of the released models.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
LONGEST = 50  # the most characters of a word, including the marks at its beginning and end


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ElmoConfig(DropoutConfig, ModelConfig):
    """The settings of an ELMo, and of a task's network on top of it."""

    head: str = "language_modeling"
    labels: int = 2
    vocab_size: int = 793471
    filters: Sequence[tuple[int, int]] = FILTERS
    highways: int
    layers: int = 2
    cell: int
    d_model: int
    cell_clip: float = 3.0
    projection_clip: float = 3.0
    elmo: str = "input"
    mix: str = "all"
    mix_norm: bool = False
    mix_dropout: float = 0.5
    task_width: int = 200
    task_layers: int = 1


def _size(cell: int, d_model: int, highways: int) -> ElmoConfig:
    return ElmoConfig(cell=cell, d_model=d_model, highways=highways)


SIZES: dict[str, ElmoConfig] = {
    "original": _size(4096, 512, 2),
    "medium": _size(2048, 256, 1),
    "small": _size(1024, 128, 1),
}


def build(config: ElmoConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (sections 3.1 to 3.4).

    Args:
        config: its `head` is "language_modeling"; "features", to output hidden states; or, for a
            task, "tagging", "chained_tagging", "classification" or "question_answering". A task
            includes ELMo at `elmo`, one of PLACES, and mixes the layers that `mix` names
            (`elmo.network.LAYERS`).

    Raises:
        ValueError: the head, place or mix is unknown, a filter is not a pair of a width from 1 to
            LONGEST and a number from 1, or a task has fewer than 2 labels.
    """
    head = choose("model.head", config.head, _heads(config))
    choose("model.elmo", config.elmo, dict.fromkeys(PLACES))
    make_mix = select_mix(config.mix, norm=config.mix_norm, dropout=config.mix_dropout)
    model = _language_model(config) | {"make_head": head}
    if config.head in ("language_modeling", "features"):
        return BidirectionalLM(**model)
    if config.labels < 2 and config.head != "question_answering":
        raise ValueError(
            f"model.labels={config.labels}: the head {config.head!r} needs 2 or more labels"
        )
    make_task_lstm = functools.partial(
        StackedLSTM,
        layers=config.task_layers,
        cell=config.task_width,
        features=None,
        compute=dataclasses.replace(config.compute, dropout=config.mix_dropout),
    )
    return TaskOverLM(**model, make_mix=make_mix, make_task_lstm=make_task_lstm, places=config.elmo)


def _language_model(config: ElmoConfig) -> dict[str, Callable[..., nn.Module]]:
    """Return the factories of the bidirectional language model, without its head (section 3.4)."""
    make_words = functools.partial(
        CharacterCNN,
        filters=_check_filters(config.filters),
        highways=config.highways,
        features=config.d_model,
        compute=config.compute,
    )
    make_lstm = functools.partial(
        StackedLSTM,
        layers=config.layers,
        cell=config.cell,
        features=config.d_model,
        cell_clip=config.cell_clip,
        projection_clip=config.projection_clip,
        compute=config.compute,
    )
    return {"make_words": make_words, "make_lstm": make_lstm}


def _check_filters(filters: Any) -> tuple[tuple[int, int], ...]:
    pairs = tuple(tuple(pair) for pair in filters)
    if not pairs or any(len(pair) != 2 or min(pair) < 1 or pair[0] > LONGEST for pair in pairs):
        raise ValueError(
            f"model.filters={pairs!r} must be pairs of a width, 1 to {LONGEST} characters, and a "
            "number of filters, 1 or more"
        )
    return pairs


def _heads(config: ElmoConfig) -> dict[str, Callable[..., nn.Module]]:
    init = nn.initializers.xavier_uniform()
    output = {"outputs": config.labels, "kernel_init": init}
    return {
        "language_modeling": functools.partial(
            BothDirections,
            vocab_size=config.vocab_size,
            features=config.d_model,
            dropout=config.dropout,
        ),
        "features": WordsHead,
        "tagging": functools.partial(WordTagger, **output),
        "chained_tagging": functools.partial(ChainedWordTagger, **output),
        "classification": functools.partial(TextClassifier, **output),
        "question_answering": functools.partial(WordSpans, kernel_init=init),
    }


# ---- The softmax over a large vocabulary: over sampled words, or over all words step by step.


_NEVER = -1e9  # the logit of a drawn word that is the target, and so not a negative example


def draw(
    key: PRNGKeyArray, *, vocabulary: int, number: int
) -> tuple[Int[Array, " S"], Float[Array, ""]]:
    """Draw distinct words from a vocabulary sorted by frequency, frequent words more often.

    Word k of V has the share p_k = log((k + 2) / (k + 1)) / log(V + 1) (Zipf's law). Words arrive
    at random times with the rates p_k, and the first `number` words to arrive are drawn. The
    distribution is the same as if words were drawn one by one and repeats were left out.

    Returns:
        The `number` words, and the time t at which the next word arrives. Word k arrives before t
        with the probability 1 - exp(-p_k t). An unbiased estimate of a sum over the vocabulary is
        the sum over the drawn words, each divided by this probability.

    Raises:
        ValueError: `number` is not from 1 to V - 1.
    """
    if not 0 < number < vocabulary:
        raise ValueError(
            f"loss.sampled={number} must be below model.vocab_size={vocabulary}, or 0 for the "
            "softmax over all words"
        )
    times = jax.random.exponential(key, (vocabulary,)) / _share(jnp.arange(vocabulary), vocabulary)
    earliest, words = jax.lax.top_k(-times, number + 1)
    return words[:number], -earliest[number]


def _share(words: Int[Array, "*n"], vocabulary: int) -> Float[Array, "*n"]:
    return jnp.log1p(1 / (words + 1)) / jnp.log(vocabulary + 1.0)


def log_expected(
    words: Int[Array, "*n"], time: Float[Array, ""], *, vocabulary: int
) -> Float[Array, "*n"]:
    """Return the logarithm of the probability that a word arrives before `time`, see `draw`."""
    return jnp.log(-jnp.expm1(-_share(words, vocabulary) * time))


def sampled_softmax(
    key: PRNGKeyArray,
    hidden: Float[Array, "*batch P"],
    targets: Int[Array, "*batch"],
    weights: Num[Array, "*batch"],
    kernel: Float[Array, "V P"],
    bias: Float[Array, " V"],
    *,
    number: int,
) -> LossSums:
    """Return an estimate of the cross-entropy, with a softmax over the target and sampled words.

    Jean et al. 2015: each logit is reduced by the logarithm of the probability that its word is
    drawn, so that the sum of exponentials estimates the sum over the vocabulary. The same `number`
    words are used for all targets; for a target that is among them, the drawn word is left out.

    Returns:
        See `losses.cross_entropy`, which it estimates.

    Raises:
        ValueError: `number` is not from 1 to V - 1.
    """
    vocabulary = kernel.shape[0]
    words, time = draw(key, vocabulary=vocabulary, number=number)

    def offsets(ids: Array) -> Array:
        return jnp.take(bias, ids).astype(jnp.float32) - log_expected(
            ids, time, vocabulary=vocabulary
        )

    others = to_vocabulary(hidden, jnp.take(kernel, words, axis=0), offsets(words))
    others = jnp.where(words == targets[..., None], _NEVER, others)
    target_rows = jnp.take(kernel, targets, axis=0).astype(jnp.float32)
    right = jnp.sum(hidden.astype(jnp.float32) * target_rows, axis=-1) + offsets(targets)
    logits = jnp.concatenate([right[..., None], others], axis=-1)
    return cross_entropy(logits, jnp.zeros_like(targets), weights)


def full_softmax(
    hidden: Float[Array, "B T P"],
    targets: Int[Array, "B T"],
    weights: Num[Array, "B T"],
    kernel: Float[Array, "V P"],
    bias: Float[Array, " V"],
) -> LossSums:
    """Return the cross-entropy over all V words, keeping the logits of one of T steps at a time."""

    @jax.checkpoint
    def step(x: Array, target: Array, weight: Array) -> LossSums:
        return cross_entropy(to_vocabulary(x, kernel, bias), target, weight)

    xs = tuple(jnp.moveaxis(array, 1, 0) for array in (hidden, targets, weights))
    _, sums = jax.lax.scan(lambda _, now: (None, step(*now)), None, xs)
    return jax.tree.map(jnp.sum, sums)


def first_state(module: BidirectionalLM, batch: Batch) -> LSTMState:
    """Return the state before the first batch.

    As in the authors' code, every later batch starts from the state after the preceding batch.
    """
    return module.first_state(len(batch["encoder_segment_ids"]))


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: LSTMState,
    sampled: int = 8192,
) -> tuple[losses.LossSums, LSTMState]:
    """Return the mean of the cross-entropies of both directions (section 3.1).

    Args:
        batch: the fields that `BidirectionalLM.read_on` reads; the next word of each stream,
            `encoder_target_tokens` and `encoder_backward_targets` [B, T]; and
            `encoder_loss_weights`.
        rng: key of dropout and of the sampled words; None in evaluation, where the softmax is over
            all words.
        carry: the state after the preceding batch.
        sampled: the number of words that are drawn for the softmax of each direction in training; 0
            for a softmax over all words.

    Returns:
        The loss, with the metrics of the mean and the cross-entropy of each direction, and the
        state after the batch.
    """
    outputs, carry = module.apply(
        {"params": params},
        batch,
        carry,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        method="read_on",
    )
    softmax = outputs["kernel"], outputs["bias"]
    weights = batch["encoder_loss_weights"]
    sums = {}
    for number, name in enumerate(("target_tokens", "backward_targets")):
        inputs = outputs["hidden"][number], batch[f"encoder_{name}"], weights, *softmax
        if rng is None or not sampled:
            sums[name] = full_softmax(*inputs)
        else:
            key = jax.random.fold_in(rng, number + 1)
            sums[name] = sampled_softmax(key, *inputs, number=sampled)
    forward, backward = sums.values()
    total, weight, metrics = jax.tree.map(lambda a, b: (a + b) / 2, forward, backward)
    for name, (_, _, values) in zip(("forward", "backward"), sums.values(), strict=True):
        metrics[f"{name}/cross_entropy"] = values["cross_entropy"]
    return (total, weight, metrics), carry


def task_loss(
    head: str,
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    mix_decay: float = 0.001,
) -> losses.LossSums:
    """Return the loss of a head plus `mix_decay` times the sum of the squared mixing weights.

    Section 3.3: the larger `mix_decay`, the closer the mix is to the mean of the layers.

    Raises:
        ValueError: `mix_decay` is negative.
    """
    if mix_decay < 0:
        raise ValueError(f"loss.mix_decay={mix_decay} must be 0 or more")
    total, weight, metrics = fine_tuning.loss(head, module, params, batch, rng)
    mixes: list[PyTree] = [params[name] for name in params if name.startswith("mix_")]
    squares = sum((jnp.sum(jnp.square(mix["weights"])) for mix in mixes), jnp.zeros(()))
    return total + weight * mix_decay * squares, weight, metrics


SYSTEM = System(
    name="elmo",
    sizes=SIZES,
    build=build,
    adapt=functools.partial(adaptation, new=("mix_", "task_lstm/")),
    tasks={
        "language_modeling": Task(loss=loss, carry=first_state),
        "tagging": Task(
            loss=functools.partial(task_loss, "tagging"),
            prediction="word_tags",
            measures=("predictions",),
        ),
        "chained_tagging": Task(
            loss=functools.partial(task_loss, "chained_tagging"),
            prediction="chained_word_tags",
            measures=("predictions",),
        ),
        "classification": Task(
            loss=functools.partial(task_loss, "classification"),
            prediction="text_class",
            measures=("predictions",),
        ),
        "question_answering": Task(
            loss=functools.partial(task_loss, "question_answering"),
            prediction="word_answers",
            measures=("squad",),
        ),
    },
)
