"""ELMo: Peters et al. 2018, "Deep contextualized word representations" (arXiv:1802.05365)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from t5x_like import losses
from t5x_like.losses import fine_tuning, sampled_softmax
from t5x_like.models.blocks.projected_lstm import StackedLSTM, State
from t5x_like.models.embeddings.character_cnn import CharacterCNN
from t5x_like.models.heads.layer_mix import select_mix
from t5x_like.models.heads.word_heads import BothDirections, TextClassifier, WordsHead, WordTagger
from t5x_like.models.networks.bidirectional_lm import PLACES, BidirectionalLM, TaskOverLM
from t5x_like.models.types import Batch
from t5x_like.names import choose
from t5x_like.systems.system import System, Task

# Section 3.4 and the options of the released models: width in characters, number of filters.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
LONGEST = 50  # characters of a word, with the marks around them


def _size(cell: int, d_model: int, highways: int) -> dict[str, Any]:
    return {
        "head": "language_modeling",
        "labels": 2,
        "vocab_size": 793471,
        "filters": FILTERS,
        "highways": highways,
        "layers": 2,
        "cell": cell,
        "d_model": d_model,
        "cell_clip": 3.0,
        "projection_clip": 3.0,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "elmo": "input",
        "mix": "all",
        "mix_norm": False,
        "mix_dropout": 0.5,
        "task_width": 200,
        "task_layers": 1,
        "dtype": "float32",
    }


SIZES: dict[str, dict[str, Any]] = {
    "original": _size(4096, 512, 2),
    "medium": _size(2048, 256, 1),
    "small": _size(1024, 128, 1),
}
NEW_PARAMETERS = ("mix_", "task_lstm/")


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES (sections 3.1 to 3.4).

    Args:
        config: its `head` is "language_modeling"; "features" for the states of all layers; or for a
            task "tagging" or "classification". A task includes ELMo at the place `elmo`, one of
            PLACES, and mixes the layers that `mix` names (`models.heads.layer_mix.LAYERS`).

    Raises:
        ValueError: no such head, place or mix, filters that are wider than a word, or too few
            labels.
    """
    head = choose("model.head", config["head"], _heads(config))
    choose("model.elmo", config["elmo"], dict.fromkeys(PLACES))
    make_mix = select_mix(config["mix"], norm=config["mix_norm"], dropout=config["mix_dropout"])
    model = _language_model(config) | {"make_head": head}
    if config["head"] in ("language_modeling", "features"):
        return BidirectionalLM(**model)
    if config["labels"] < 2:
        raise ValueError(
            f"model.labels={config['labels']}: the head {config['head']!r} needs 2 or more labels"
        )
    make_task_lstm = functools.partial(
        StackedLSTM,
        layers=config["task_layers"],
        cell=config["task_width"],
        features=None,
        dropout=config["mix_dropout"],
        dropout_broadcast=config["dropout_broadcast"],
        dtype=jnp.dtype(config["dtype"]),
    )
    return TaskOverLM(
        **model, make_mix=make_mix, make_task_lstm=make_task_lstm, places=config["elmo"]
    )


def _language_model(config: Mapping[str, Any]) -> dict[str, Callable[..., nn.Module]]:
    """The parts of the bidirectional language model but its head (section 3.4)."""
    dtype = jnp.dtype(config["dtype"])
    make_words = functools.partial(
        CharacterCNN,
        filters=_check_filters(config["filters"]),
        highways=config["highways"],
        features=config["d_model"],
        dtype=dtype,
    )
    make_lstm = functools.partial(
        StackedLSTM,
        layers=config["layers"],
        cell=config["cell"],
        features=config["d_model"],
        cell_clip=config["cell_clip"],
        projection_clip=config["projection_clip"],
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
        dtype=dtype,
    )
    return {"make_words": make_words, "make_lstm": make_lstm}


def _check_filters(filters: Any) -> tuple[tuple[int, int], ...]:
    pairs = tuple(tuple(one) for one in filters)
    if not pairs or any(len(one) != 2 or min(one) < 1 or one[0] > LONGEST for one in pairs):
        raise ValueError(
            f"model.filters={pairs!r} must be pairs of a width, 1 to {LONGEST} characters, and a "
            "number of filters, 1 or more"
        )
    return pairs


def _heads(config: Mapping[str, Any]) -> dict[str, Callable[..., nn.Module]]:
    output = {"outputs": config["labels"], "kernel_init": nn.initializers.xavier_uniform()}
    return {
        "language_modeling": functools.partial(
            BothDirections,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            dropout=config["dropout"],
        ),
        "features": WordsHead,
        "tagging": functools.partial(WordTagger, **output),
        "classification": functools.partial(TextClassifier, **output),
    }


def first_state(module: BidirectionalLM, batch: Batch) -> State:
    """The state before the first batch (the authors' code keeps it from batch to batch)."""
    return module.first_state(len(batch["encoder_segment_ids"]))


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: State,
    sampled: int = 8192,
) -> tuple[losses.LossSums, State]:
    """The mean of the cross-entropies of both directions (section 3.1).

    Args:
        batch: the fields that `BidirectionalLM.read_on` reads, the words that follow in each
            stream, `encoder_target_tokens` and `encoder_backward_targets` [B, T], and
            `encoder_loss_weights`.
        rng: key of dropout and of the sampled words; None in evaluation, over all words.
        carry: the state after the batch before.
        sampled: words that are drawn for each direction in training, among which the right one is
            to be found; 0 for all words.
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
    found = {}
    for number, name in enumerate(("target_tokens", "backward_targets")):
        inputs = outputs["hidden"][number], batch[f"encoder_{name}"], weights, *softmax
        if rng is None or not sampled:
            found[name] = sampled_softmax.full(*inputs)
        else:
            key = jax.random.fold_in(rng, number + 1)
            found[name] = sampled_softmax.sampled(key, *inputs, number=sampled)
    forward, backward = found.values()
    total, weight, metrics = jax.tree.map(lambda a, b: (a + b) / 2, forward, backward)
    for name, (_, _, own) in zip(("forward", "backward"), found.values(), strict=True):
        metrics[f"{name}/cross_entropy"] = own["cross_entropy"]
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
    """The loss of a head, and `mix_decay` times the squares of the weights of the layers.

    Section 3.3: the more of it, the nearer the mix is to the mean of the layers.

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
    new_parameters=NEW_PARAMETERS,
    tasks={
        "language_modeling": Task(loss=loss, carry=first_state),
        "tagging": Task(
            loss=functools.partial(task_loss, "tagging"),
            prediction="word_tags",
            measures=("predictions",),
        ),
        "classification": Task(
            loss=functools.partial(task_loss, "classification"),
            prediction="text_class",
            measures=("predictions",),
        ),
    },
)
