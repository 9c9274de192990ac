"""DistilBERT: Sanh et al. 2019, "DistilBERT, a distilled version of BERT" (arXiv:1910.01108)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import PyTree

from t5x_like import losses, systems
from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.losses.distillation import DISTILLED
from t5x_like.names import choose
from t5x_like.nn.blocks import Collected
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.encoder_heads import Features, MaskedLMHead, Pooler, select_head
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    AttentionConfig,
    DropoutConfig,
    InitConfig,
    ReadPart,
    System,
    Task,
)

STARTS: dict[str, str] = {  # initializations of the student (section 3; last row of table 4)
    "teacher": "every other layer of the teacher, its embeddings and its head",
    "random": "random weights",
}


def student_of(system: str, teacher: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a student with half the layers of its teacher (section 3).

    Args:
        system: the system of the teacher.
        teacher: the settings of the teacher.
    """
    names = ("vocab_size", "positions", "d_model", "d_ff", "heads", "dropout", *systems.COMPUTATION)
    return {
        "head": "pretraining",
        "labels": 2,
        "layers": max(1, teacher["layers"] // 2),
        "dropout_broadcast": False,
        **EARLIER_INIT,
        "start": "teacher",
        **{name: teacher[name] for name in names},
        "teacher": {"system": system, **teacher, "head": "masked_lm"},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DistilBertConfig(InitConfig, DropoutConfig, AttentionConfig):
    """The settings of a student; `teacher` has the `system` of the teacher and its settings."""

    head: str | Mapping[str, Any] = "pretraining"
    labels: int
    layers: int
    start: str
    positions: int
    d_model: int
    d_ff: int
    heads: int
    teacher: Mapping[str, Any]


SIZES: dict[str, DistilBertConfig] = {
    "base": DistilBertConfig(**student_of("bert", bert.SIZES["base"]))
}


# ---- A student encoder that is distilled from a teacher.


class Student(Encoder, kw_only=True):  # type: ignore[call-arg]
    """Sanh et al. 2019, section 3: a student encoder and its frozen `teacher`.

    `__call__` runs the student, `compare` runs both.

    Attributes:
        make_teacher: factory of an `Encoder` with the same kind of head as the student.
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
        """Return the outputs of the student, see `Encoder`."""
        if self.is_initializing():  # Flax creates the teacher's parameters when it is called
            self.teacher(batch)
        return super().__call__(batch, deterministic=deterministic, collect=collect)

    def compare(self, batch: Batch, *, deterministic: bool = True) -> tuple[Outputs, Outputs]:
        """Return the outputs of student and teacher, with `hidden` [B, L, D] of their last layers.

        The teacher has no dropout and gets no gradient.
        """
        student = _with_hidden(self, batch, deterministic=deterministic)
        teacher = _with_hidden(self.teacher, batch, deterministic=True)
        return student, jax.lax.stop_gradient(teacher)

    def start(self, teacher: PyTree) -> PyTree:
        """Return the initial parameters: the student has every other layer of the teacher.

        The layers are spread evenly from the first to the last: 0, 2, 4, 7, 9 and 11 of 12 layers,
        as in the authors' code. The student has no segment embeddings, and no rows of the position
        table before position 0.

        Args:
            teacher: the teacher's parameters, unboxed.

        Raises:
            ValueError: the teacher's parameters have other shapes than the student's.
        """
        boxed = jax.eval_shape(lambda: self.init(jax.random.key(0), self.example_batch()))
        wanted = nn.unbox(boxed)["params"]
        rows = wanted["embeddings"]["position"]["embedding"].shape[0]
        embeddings = {k: v for k, v in teacher["embeddings"].items() if k != "token_type"}
        embeddings["position"] = {"embedding": embeddings["position"]["embedding"][-rows:]}
        layers = _thin(teacher["encoder"]["layers"], layers=self.layers)
        params = teacher | {"embeddings": embeddings, "encoder": {"layers": layers}}
        params["teacher"] = teacher
        shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (wanted, params)]
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
    """Return the parameters of `layers` evenly spread layers of a stack, scanned or unrolled."""
    scanned = "block" in stack
    number = len(jax.tree.leaves(stack)[0]) if scanned else len(stack)
    chosen = np.round(np.linspace(0, number - 1, layers)).astype(int)
    if scanned:
        return jax.tree.map(lambda leaf: leaf[chosen], stack)
    return {f"layer_{n}": stack[f"layer_{layer}"] for n, layer in enumerate(chosen)}


def build(config: DistilBertConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BERT without segments and pooler.

    Args:
        config: its `head` is "pretraining", for the student with its teacher; "masked_lm"; or a
            head of `select_head`. If `teacher` has a `folder`, the student learns from the
            fine-tuned teacher in it, and `head` must be the teacher's head, one of DISTILLED.

    Raises:
        ValueError: the head or start is unknown, the system or a setting of the teacher does not
            exist, or a fine-tuned teacher has another head, vocabulary size or number of labels.
    """
    choose("model.start", config.start, STARTS)
    fine_tuned = config.head != "pretraining" and "folder" in config.teacher
    if fine_tuned:
        _check_fine_tuned(config)
    masked_lm = functools.partial(MaskedLMHead, make_masked_lm=bert.masked_lm(config))
    make_pooler = functools.partial(
        Pooler, activation=nn.relu, kernel_init=config.init, compute=config.compute
    )
    heads: dict[str, Callable[..., nn.Module]] = {
        "pretraining": masked_lm,
        "masked_lm": masked_lm,
        "features": Features,
    }
    encoder = config.to(bert.DenseEncoderConfig, token_types=0)
    student: dict[str, Callable[..., nn.Module]] = {
        "make_embeddings": functools.partial(bert.embeddings(encoder), make_token_types=None),
        "make_encoder": bert.tower(encoder),
        "make_head": select_head(config, heads, make_pooler=make_pooler, kernel_init=config.init),
    }
    if config.head != "pretraining" and not fine_tuned:
        return Encoder(**student)
    settings = systems.inside(config, "teacher", needs=("system",))
    system = settings.pop("system")
    # A factory, since Flax puts the parameters of a module under the module that creates it.
    make_teacher = functools.partial(systems.build, system, settings)
    return Student(**student, make_teacher=make_teacher, layers=config.layers)


def _check_fine_tuned(config: DistilBertConfig) -> None:
    teacher, head = config.teacher, config.head
    if head not in DISTILLED:
        raise ValueError(
            f"model.head={head!r}: a student learns from a fine-tuned teacher "
            f"(model.teacher.folder) under {', '.join(DISTILLED)}"
        )
    same = ("head", "vocab_size", *(("labels",) if head != "question_answering" else ()))
    for setting in same:
        if teacher[setting] != config[setting]:
            raise ValueError(
                f"the teacher in model.teacher.folder={teacher['folder']!r} has {setting} "
                f"{teacher[setting]!r}, and the student {config[setting]!r}: they must be the same"
            )


def start(module: Any, config: DistilBertConfig, read: ReadPart) -> PyTree:
    """Read the teacher and, unless `start` is "random", initialize the student from its layers.

    Raises:
        ValueError: see `Student.start`.
    """
    teacher = read("teacher", system=config.teacher["system"])
    if config.start == "random":
        return {"teacher": teacher}
    return jax.jit(module.start)(teacher)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    masked_lm: float = 2.0,
    soft_targets: float = 5.0,
    cosine: float = 1.0,
    temperature: float = 2.0,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the weighted sum of three mean losses (section 2).

    Two are averaged over masked tokens: the cross-entropy, and the divergence from the teacher's
    distribution. The third is averaged over all tokens: the cosine distance between the outputs of
    the last layers.

    Args:
        rng: key of the student's dropout; None in evaluation.
        masked_lm, soft_targets, cosine: the weights.
        temperature: the temperature of both softmaxes in the divergence.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or the temperature is not above 0.
    """
    (student, teacher), masked = losses.predict_masked(
        module, params, batch, rng, share=predicted, method="compare"
    )
    divergence = losses.distillation.soft_targets(
        student["logits"], teacher["logits"], masked.weights, temperature=temperature
    )
    real = batch["encoder_segment_ids"] > 0
    distance = losses.distillation.cosine(student["hidden"], teacher["hidden"], real)
    return losses.combine(
        {
            "masked_lm": (masked_lm, masked.cross_entropy(student["logits"])),
            "soft_targets": (soft_targets, divergence),
            "cosine": (cosine, distance),
        }
    )


def start_fine_tuning(module: Any, config: DistilBertConfig, read: ReadPart) -> PyTree:
    """Read the student from the folder of the run, and its fine-tuned teacher if it has one.

    Raises:
        ValueError: the teacher's folder has another system, or lacks parameters of its network.
    """
    del module
    teacher = config.teacher
    if "folder" not in teacher:
        return read.others()
    read_teacher = read("teacher", system=teacher["system"], folder=teacher["folder"])
    return {**read.others("teacher"), "teacher": read_teacher}


def fine_tuning_loss(
    head: str,
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    labels: float | None = None,
    soft_targets: float | None = None,
    temperature: float | None = None,
) -> losses.LossSums:
    """Return the loss of the labels, plus the divergence from a teacher (section 4.1, table 2).

    Without a teacher it is only the loss of the labels. The divergence is
    `losses.distillation.soft_targets`, averaged over the rows of a classifier or the words of a
    tagger; for an answer, over its first and last token, whose distributions are over the row's
    positions. The weights and the temperature are by default 0.5, 0.5 and 2, as in the authors'
    code.

    Args:
        head: one of DISTILLED.
        rng: key of the student's dropout; None in evaluation.
        labels, soft_targets: the weights.
        temperature: the temperature of both softmaxes in the divergence.

    Raises:
        ValueError: a weight or a temperature is given without a teacher, or the temperature is not
            above 0.
    """
    settings = {"labels": labels, "soft_targets": soft_targets, "temperature": temperature}
    defaults = {"labels": 0.5, "soft_targets": 0.5, "temperature": 2.0}
    has_teacher = isinstance(module, Student)
    chosen = losses.distillation.settings(settings, defaults, has_teacher=has_teacher)
    if not has_teacher:
        return losses.fine_tuning.loss(head, module, params, batch, rng)
    student, teacher = losses.forward(module, params, batch, rng, method="compare")
    divergence = losses.distillation.soft_targets(
        losses.distillation.distributions(head, student, batch),
        losses.distillation.distributions(head, teacher, batch),
        losses.distillation.distribution_weights(head, batch),
        temperature=chosen["temperature"],
    )
    of_labels = losses.fine_tuning.OF_OUTPUTS[head](student, batch)
    return losses.combine(
        {
            "labels": (chosen["labels"], of_labels),
            "soft_targets": (chosen["soft_targets"], divergence),
        }
    )


def _distilled(head: str) -> Task:
    return dataclasses.replace(
        ENCODER_TASKS[head],
        loss=functools.partial(fine_tuning_loss, head),
        start=start_fine_tuning,
    )


SYSTEM = System(
    name="distilbert",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, "dropout_broadcast": True, "start": "teacher"},
    tasks={
        "pretraining": Task(
            loss=loss, prediction="masked_tokens", start=start, start_required=True
        ),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
        **{head: _distilled(head) for head in DISTILLED},
    },
)


# DistilBERT in Hugging Face's folders.

_LAYER, _OURS = "distilbert.transformer.layer.{layer}", "encoder/layers/{layer}"


HUGGING_FACE = HuggingFaceFormat(
    system="distilbert",
    model_types={"distilbert": "DistilBert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "n_layers": Setting("layers", LAYERS),
        "dim": Setting("d_model", COUNT),
        "hidden_dim": Setting("d_ff", COUNT),
        "n_heads": Setting("heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        # Only affects the initialization: the folder has a position table in either case.
        "sinusoidal_pos_embds": Setting("", FLAG, default=False),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
    },
    other_names={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    fixed={"activation": "gelu", "tie_word_embeddings": True},
    multiples={"dim": "n_heads"},
    weights={
        "embeddings/token/embedding": "distilbert.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": "distilbert.embeddings.position_embeddings.weight",
        **norm("embeddings/norm", "distilbert.embeddings.LayerNorm"),
        **attention(
            f"{_OURS}/self_attention",
            *(f"{_LAYER}.attention.{name}_lin" for name in ("q", "k", "v", "out")),
        ),
        **norm(f"{_OURS}/self_attention_norm", f"{_LAYER}.sa_layer_norm"),
        **dense(f"{_OURS}/feed_forward/wi", f"{_LAYER}.ffn.lin1"),
        **dense(f"{_OURS}/feed_forward/wo", f"{_LAYER}.ffn.lin2"),
        **norm(f"{_OURS}/feed_forward_norm", f"{_LAYER}.output_layer_norm"),
        **dense("head/masked_lm/transform", "vocab_transform"),
        **norm("head/masked_lm/norm", "vocab_layer_norm"),
        "head/masked_lm/output/bias": "vocab_projector.bias",
        **dense("head/summary/dense", "pre_classifier"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "distilbert.embeddings.*",  # a model without a head
        "transformer.*": "distilbert.transformer.*",
        "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("distilbert.embeddings.position_ids", "embeddings.position_ids"),
    exported_as={"pretraining": "masked_lm"},
    not_exported=("teacher",),
)
