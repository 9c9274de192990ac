"""TinyBERT: Jiao et al. 2019, "TinyBERT: Distilling BERT for Natural ..." (arXiv:1909.10351)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from t5x_like import losses, systems
from t5x_like.losses.distillation import DISTILLED
from t5x_like.names import choose
from t5x_like.nn.blocks import Collected
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.encoder_heads import Features, Pooler, select_head
from t5x_like.nn.linear import Linear
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, ReadPart, System, Task, adaptation

# g(m): layer m of a student with M layers learns from layer g(m) of a teacher with N layers
# (section 4.6, table 4). The arguments are m, M, N.
LAYER_MAPS: dict[str, Callable[[int, int, int], int]] = {
    "uniform": lambda m, student, teacher: m * teacher // student,
    "top": lambda m, student, teacher: m + teacher - student,
    "bottom": lambda m, student, teacher: m,
}
STARTS: dict[str, str] = {  # how a student starts whose teacher is in another folder
    "folder": "the student in the folder `initialize`",
    "random": "random weights",
}
# The heads of task distillation. A number has no distribution to learn from, so that the head
# "regression" learns only from the teacher's layers.
HEADS = (*DISTILLED, "regression")
_OF_LAYERS = ("attention", "hidden", "embedding")
# The default settings of the loss: the first step of task distillation.
_DEFAULTS = {
    **dict.fromkeys(_OF_LAYERS, 1.0),
    **dict.fromkeys(("prediction", "labels"), 0.0),
    "temperature": 1.0,
}


def student_of(
    system: str, teacher: Mapping[str, Any], *, layers: int, d_model: int, d_ff: int
) -> dict[str, Any]:
    """Return the settings of a student for general distillation (section 4.2).

    Args:
        system: the system of the teacher.
        teacher: the settings of the teacher.
        layers, d_model, d_ff: the sizes of the student.
    """
    names = ("vocab_size", "positions", "heads", "dropout", *systems.COMPUTATION)
    return {
        "head": "pretraining",
        "labels": 2,
        "token_types": teacher.get("token_types") or 1,
        "layers": layers,
        "d_model": d_model,
        "d_ff": d_ff,
        "dropout_broadcast": False,
        "layer_map": "uniform",
        "start": "folder",
        **{name: teacher[name] for name in names},
        "teacher": {"system": system, **teacher, "head": "features"},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TinyBertConfig(bert.DenseEncoderConfig):
    """The settings of a student; `teacher` has the `system` of the teacher and its settings."""

    layer_map: str
    start: str
    teacher: Mapping[str, Any]


def _size(layers: int, d_model: int, d_ff: int) -> TinyBertConfig:
    student = student_of("bert", bert.SIZES["base"], layers=layers, d_model=d_model, d_ff=d_ff)
    return TinyBertConfig(**student)


SIZES: dict[str, TinyBertConfig] = {"4l": _size(4, 312, 1200), "6l": _size(6, 768, 3072)}


# ---- A student encoder that is compared with a teacher layer by layer.


_ALL = ("hidden_states", "attention_scores")


class LayerStudent(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Jiao et al. 2019, section 3.1: a student of M layers and its frozen `teacher`.

    `__call__` runs the student, `compare` runs both.

    Attributes:
        make_teacher: factory of an `Encoder`.
        make_hidden_map, make_embedding_map: factories of W_h and W_e, the linear maps from the
            student's width to the teacher's; they are used only in `compare`.
        teacher_layers: g(1), ..., g(M): the layer of the teacher, counted from 1, that each layer
            of the student learns from.
    """

    make_teacher: Callable[..., nn.Module]
    make_hidden_map: Callable[..., nn.Module]
    make_embedding_map: Callable[..., nn.Module]
    teacher_layers: tuple[int, ...]

    def setup(self) -> None:
        super().setup()
        self.teacher = self.make_teacher()
        self.hidden_map = self.make_hidden_map()
        self.embedding_map = self.make_embedding_map()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """Return the outputs of the student, see `Encoder`."""
        if self.is_initializing():  # Flax creates the parameters of a submodule when it is called
            self.teacher(batch)
            embedded = self.embed(batch)
            self.hidden_map(embedded)
            self.embedding_map(embedded)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def compare(
        self, batch: Batch, *, deterministic: bool = True, layers: bool = True
    ) -> tuple[Outputs, Outputs]:
        """Return the outputs of the student and of the teacher, with `layers` also of their layers.

        The teacher has no dropout and gets no gradient.

        Args:
            layers: whether to add to the outputs of the heads: `embeddings` [B, L, D], the input of
                the first layer; `hidden_states` [M, B, L, D], the outputs of the compared layers,
                both in the teacher's width; `attention_scores` [M, B, H, L, L], the scores of the
                compared layers before the softmax.
        """
        call: Any = self  # the type of the result depends on `collect`
        if not layers:
            student = call(batch, deterministic=deterministic)
            return student, jax.lax.stop_gradient(self.teacher(batch))
        every = tuple(range(1, len(self.teacher_layers) + 1))
        student = _with_layers(call(batch, deterministic=deterministic, collect=_ALL), every)
        teacher = _with_layers(self.teacher(batch, collect=_ALL), self.teacher_layers)
        student["embeddings"] = self.embedding_map(student["embeddings"])
        student["hidden_states"] = self.hidden_map(student["hidden_states"])
        return student, jax.lax.stop_gradient(teacher)


def _with_layers(called: Any, layers: tuple[int, ...]) -> Outputs:
    """Add to the outputs of a call the input of layer 1 and the outputs and scores of some layers.

    Args:
        called: the outputs of an `Encoder`, and the arrays that it collected.
        layers: the layers to return, counted from 1.
    """
    outputs, collected = called
    encoder, numbers = collected["encoder"], jnp.array(layers)
    return {
        **outputs,
        "embeddings": encoder.hidden_states[0],
        "hidden_states": encoder.hidden_states[numbers],
        "attention_scores": encoder.attention_scores[numbers - 1],
    }


def build(config: TinyBertConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: a BERT, with or without its teacher.

    Args:
        config: its `head` is "pretraining", for general distillation, "features", or a head of
            `select_head`. If `teacher` has a `folder`, the student learns from the fine-tuned
            teacher in it, and `head` must be the teacher's head, one of HEADS.

    Raises:
        ValueError: the head, layer map or start is unknown, the system or a setting of the
            teacher does not exist, or the student cannot be compared with the teacher.
    """
    choose("model.layer_map", config.layer_map, LAYER_MAPS)
    choose("model.start", config.start, STARTS)
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    heads: dict[str, Callable[..., nn.Module]] = {
        "pretraining": functools.partial(Features, make_pooler=make_pooler)
    }
    student: dict[str, Callable[..., nn.Module]] = {
        "make_embeddings": bert.embeddings(config),
        "make_encoder": bert.tower(config),
        "make_head": select_head(config, heads, make_pooler=make_pooler, kernel_init=config.init),
    }
    if config.head != "pretraining" and "folder" not in config.teacher:
        return Encoder(**student)
    compared = ("layers", "heads", "vocab_size", "positions", "d_model")
    settings = systems.inside(config, "teacher", needs=("system", *compared))
    _check_teacher(config)
    system = settings.pop("system")
    # W_h and W_e of equations 8 and 9: two matrices without bias; all layers share W_h.
    make_map = functools.partial(
        Linear,
        (settings["d_model"],),
        axes=("embed", "mlp"),
        kernel_init=config.init,
        compute=config.compute,
    )
    return LayerStudent(
        **student,
        # A factory, since Flax puts the parameters of a module under the module that creates it.
        make_teacher=functools.partial(systems.build, system, settings),
        make_hidden_map=make_map,
        make_embedding_map=make_map,
        teacher_layers=_teacher_layers(config),
    )


def _teacher_layers(config: TinyBertConfig) -> tuple[int, ...]:
    """Return g(1), ..., g(M), see LAYER_MAPS."""
    layers, of_teacher = config.layers, config.teacher["layers"]
    layer_of = LAYER_MAPS[config.layer_map]
    return tuple(layer_of(m, layers, of_teacher) for m in range(1, layers + 1))


def _check_teacher(config: TinyBertConfig) -> None:
    teacher, layers = config.teacher, config.layers
    folder = f".folder={teacher['folder']}" if "folder" in teacher else ""
    where = f"the teacher (model.teacher{folder})"
    of_teacher = teacher["layers"]
    if layers > of_teacher:
        raise ValueError(
            f"model.layers={layers}: {where} has {of_teacher} layers, and a student at most as many"
        )
    if config.layer_map == "uniform" and of_teacher % layers:
        divisors = ", ".join(str(n) for n in range(1, of_teacher + 1) if of_teacher % n == 0)
        raise ValueError(
            f"model.layers={layers} does not divide the {of_teacher} layers of {where}: choose one "
            f"of {divisors}, or model.layer_map='top' or 'bottom'"
        )
    reasons = {
        "heads": "attention scores are compared head by head",
        "vocab_size": "both read the same tokens",
    }
    if config.head != "pretraining":
        reasons |= _check_head(config)
    for setting, reason in reasons.items():
        if teacher[setting] != config[setting]:
            raise ValueError(
                f"model.{setting}={config[setting]!r}: {where} has {teacher[setting]!r}, and they "
                f"must be equal, since {reason}"
            )
    if teacher["positions"] < config.positions:
        raise ValueError(
            f"model.positions={config.positions}: {where} has only {teacher['positions']}, and "
            "reads the same rows: set model.positions to at most as many"
        )


def _check_head(config: TinyBertConfig) -> dict[str, str]:
    """Return {setting that a fine-tuned teacher and its student must share: the reason}."""
    if config.head not in HEADS:
        raise ValueError(
            f"model.head={config.head!r}: a student learns from a fine-tuned teacher "
            f"(model.teacher.folder) under {', '.join(HEADS)}"
        )
    reason = "the teacher was to be fine-tuned on the student's task"
    with_labels = config.head in ("classification", "tagging")
    return {"head": reason, **({"labels": reason} if with_labels else {})}


def start(module: Any, config: TinyBertConfig, read: ReadPart) -> PyTree:
    """Read the teacher, and the student unless it is randomly initialized.

    In general distillation the folder that the run starts from has the teacher, and the student is
    randomly initialized. In task distillation the teacher has another folder, and the student is
    read from the folder that the run starts from, or randomly initialized if `config.start` is
    "random". A network without a teacher is read like any other.

    Raises:
        ValueError: the teacher's folder has another system, or lacks parameters of its network.
    """
    if not isinstance(module, LayerStudent):
        return read.others()
    teacher = config.teacher
    teacher_params = read("teacher", system=teacher["system"], folder=teacher.get("folder", ""))
    if "folder" not in teacher or config.start == "random":
        return {"teacher": teacher_params}
    return {**read.others("teacher"), "teacher": teacher_params}


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    attention: float = 1.0,
    hidden: float = 1.0,
    embedding: float = 1.0,
) -> losses.LossSums:
    """Return the loss of general distillation: attention, hidden states, embeddings (section 3.2).

    The losses are averaged over tokens, or pairs of tokens, that are not padding, and summed over
    layers.

    Args:
        rng: key of the student's dropout; None in evaluation. The teacher has no dropout.
        attention, hidden, embedding: the weights (equation 11). A loss of weight 0 is not computed.

    Raises:
        ValueError: all weights are 0.
    """
    student, teacher = losses.forward(module, params, batch, rng, method="compare")
    weights = dict(zip(_OF_LAYERS, (attention, hidden, embedding), strict=True))
    return _combine(_of_layers(student, teacher, batch, weights), weights)


def task_loss(
    head: str,
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    attention: float | None = None,
    hidden: float | None = None,
    embedding: float | None = None,
    prediction: float | None = None,
    labels: float | None = None,
    temperature: float | None = None,
) -> losses.LossSums:
    """Return the loss of task distillation (section 3.2); without a teacher, of the labels.

    The first step has the weights 1 for `attention`, `hidden` and `embedding`, which are the
    defaults; the second step has 0 for these and 1 for `prediction`, or 1 for `labels` if the
    target is a number (as in the authors' code). A loss of weight 0 is not computed, except that
    the second step always reports the metrics of the labels.

    Args:
        head: one of HEADS.
        rng: key of the student's dropout; None in evaluation. The teacher has no dropout.
        attention, hidden, embedding, prediction, labels: the weights.
        temperature: the temperature of both softmaxes (equation 10), by default 1.

    Raises:
        ValueError: a setting is given without a teacher, all weights are 0, the temperature is not
            above 0, or `prediction` is set for a head that predicts a number.
    """
    settings = {
        "attention": attention,
        "hidden": hidden,
        "embedding": embedding,
        "prediction": prediction,
        "labels": labels,
        "temperature": temperature,
    }
    has_teacher = isinstance(module, LayerStudent)
    weights = losses.distillation.settings(settings, _DEFAULTS, has_teacher=has_teacher)
    if not has_teacher:
        return losses.fine_tuning.loss(head, module, params, batch, rng)
    softness = weights.pop("temperature")
    with_layers = any(weights[name] for name in _OF_LAYERS)
    student, teacher = losses.forward(
        module, params, batch, rng, method="compare", layers=with_layers
    )
    terms = _of_layers(student, teacher, batch, weights) if with_layers else {}
    if weights["prediction"]:
        terms["prediction"] = _of_predictions(head, student, teacher, batch, softness)
    if weights["prediction"] or weights["labels"]:
        terms["labels"] = losses.fine_tuning.OF_OUTPUTS[head](student, batch)
    return _combine(terms, weights)


def _of_layers(
    student: Outputs, teacher: Outputs, batch: Batch, weights: Mapping[str, float]
) -> dict[str, losses.LossSums]:
    """Return the layer losses whose weight is not 0 (equations 7 to 9)."""
    segments = batch["encoder_segment_ids"]
    real = segments > 0
    terms = {}
    if weights["hidden"]:
        terms["hidden"] = losses.distillation.hidden_states(
            student["hidden_states"], teacher["hidden_states"], real
        )
    if weights["attention"]:
        terms["attention"] = losses.distillation.attention_scores(
            student["attention_scores"],
            teacher["attention_scores"],
            real[:, :, None] & (segments[:, :, None] == segments[:, None]),
        )
    if weights["embedding"]:
        terms["embedding"] = losses.distillation.hidden_states(
            student["embeddings"][None], teacher["embeddings"][None], real
        )
    return terms


def _of_predictions(
    head: str, student: Outputs, teacher: Outputs, batch: Batch, temperature: float
) -> losses.LossSums:
    """Return the loss of the predictions (equation 10)."""
    if head not in DISTILLED:
        raise ValueError(
            f"loss.prediction: the head {head!r} predicts no distribution to compare; in its place "
            "the second step has loss.labels=1.0"
        )
    return losses.distillation.soft_cross_entropy(
        losses.distillation.distributions(head, student, batch),
        losses.distillation.distributions(head, teacher, batch),
        losses.distillation.distribution_weights(head, batch),
        temperature=temperature,
    )


def _combine(terms: Mapping[str, losses.LossSums], weights: Mapping[str, float]) -> losses.LossSums:
    """Return the weighted sum of the terms; their metrics are named <term>/<name>."""
    if not terms:
        settings = ", ".join(f"loss.{name}" for name in weights)
        raise ValueError(f"{settings} are all 0: set one of them above 0")
    total, weight, _ = losses.combine({name: (weights[name], term) for name, term in terms.items()})
    metrics = {
        f"{name}/{key}": value
        for name, (*_, term_metrics) in terms.items()
        for key, value in term_metrics.items()
    }
    return total, weight, metrics


def _distilled(head: str) -> Task:
    return dataclasses.replace(
        ENCODER_TASKS[head], loss=functools.partial(task_loss, head), start=start
    )


SYSTEM = System(
    name="tinybert",
    sizes=SIZES,
    build=build,
    older_defaults=EARLIER_INIT,
    adapt=functools.partial(adaptation, new=("hidden_map/", "embedding_map/")),
    tasks={
        "pretraining": Task(loss=loss, start=start, start_required=True),
        **ENCODER_TASKS,
        **{head: _distilled(head) for head in HEADS},
    },
)


# TinyBERT in Hugging Face's folders, where it is a small BERT, without its teacher.

HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="tinybert",
    on_request=True,
    defaults=SIZES["4l"],
    exported_only={},
    exported_as={"pretraining": "features"},
    not_exported=("teacher", "hidden_map", "embedding_map"),
)
