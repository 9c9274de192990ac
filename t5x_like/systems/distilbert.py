"""DistilBERT: Sanh et al. 2019, "DistilBERT, a distilled version of BERT" (arXiv:1910.01108)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from t5x_like import losses, systems
from t5x_like.losses import distillation
from t5x_like.models.heads.encoder_heads import Features, MaskedLMHead, Summary, select_head
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.networks.student import Student
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import ReadPart, System, Task

# What a teacher computes with follows its student; the rest of its settings is its own.
_FOLLOWED = ("dtype", "loop", "remat", "attention", "embedding_lookup")


def student_of(system: str, teacher: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a student of half the layers (section 3), its teacher's among them.

    Args:
        system, teacher: of the teacher: a module of t5x_like.systems, the settings of its `build`.
    """
    kept = ("vocab_size", "positions", "d_model", "d_ff", "heads", "dropout", *_FOLLOWED)
    return {
        "head": "pretraining",
        "labels": 2,
        "layers": max(1, teacher["layers"] // 2),
        "dropout_broadcast": False,
        **{name: teacher[name] for name in kept},
        "teacher": {"system": system, **teacher, "head": "masked_lm"},
    }


SIZES: dict[str, dict[str, Any]] = {"base": student_of("bert", bert.SIZES["base"])}


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES: BERT's without segments and pooler.

    `head` is "pretraining" for the student with its teacher, or without it "masked_lm" or one of
    models/heads/.
    """
    dtype = jnp.dtype(config["dtype"])
    masked_lm = functools.partial(MaskedLMHead, make_masked_lm=bert.masked_lm(config))
    make_summary = functools.partial(
        Summary, activation=nn.relu, kernel_init=bert.INIT, dtype=dtype
    )
    own: dict[str, Callable[..., nn.Module]] = {
        "pretraining": masked_lm,
        "masked_lm": masked_lm,
        "features": Features,
    }
    student: dict[str, Callable[..., nn.Module]] = {
        "make_embeddings": functools.partial(
            bert.embeddings({**config, "token_types": 0}), make_token_types=None
        ),
        "make_encoder": bert.tower(config),
        "make_head": select_head(config, own, make_summary=make_summary, kernel_init=bert.INIT),
    }
    if config["head"] != "pretraining":
        return Encoder(**student)
    settings = config["teacher"] | {name: config[name] for name in _FOLLOWED}
    system = settings.pop("system")
    # Made anew by each call, inside the student, where a module finds its parameters.
    make_teacher = functools.partial(systems.build, system, settings)
    return Student(**student, make_teacher=make_teacher, layers=config["layers"])


def start(module: Any, config: Mapping[str, Any], read: ReadPart) -> PyTree:
    """The parameters to begin with: the teacher's, and those of a part of its layers (section 3).

    Raises:
        ValueError: see `Student.start`.
    """
    return jax.jit(module.start)(read("teacher", system=config["teacher"]["system"]))


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    masked_lm: float = 2.0,
    soft_targets: float = 5.0,
    cosine: float = 1.0,
    temperature: float = 2.0,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Three means, weighted and summed (section 2).

    Of the masked tokens, how unlikely they were and how far the student is from what the teacher
    says of them; of all tokens, the angle between the two last layers.

    Args:
        rng: key of the student's dropout; None in evaluation.
        masked_lm, soft_targets, cosine: the weights.
        temperature: of the softmaxes of what both say.
        predicted: as in `bert.loss`.
    """
    places, kept = losses.predicted(batch["encoder_loss_weights"], share=predicted)
    student, teacher = module.apply(
        {"params": params},
        {**batch, "predicted_positions": places},
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        method="compare",
    )
    targets = jnp.take_along_axis(batch["encoder_target_tokens"], places, axis=1)
    said = losses.cross_entropy(student["logits"], targets, kept)
    softly = distillation.soft_targets(
        student["logits"], teacher["logits"], kept, temperature=temperature
    )
    real = batch["encoder_segment_ids"] > 0
    angle = distillation.cosine(student["hidden"], teacher["hidden"], real)
    return losses.combine(
        {
            "masked_lm": (masked_lm, said),
            "soft_targets": (soft_targets, softly),
            "cosine": (cosine, angle),
        }
    )


SYSTEM = System(
    name="distilbert",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(
            loss=loss, prediction="masked_tokens", start=start, start_required=True
        ),
        **ENCODER_TASKS,
    },
)
