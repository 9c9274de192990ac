"""ELECTRA: Clark et al. 2020, "Pre-training Text Encoders as Discriminators" (arXiv:2003.10555)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, Setting
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.names import choose
from t5x_like.nn.compound_networks import GeneratorAndDiscriminator
from t5x_like.nn.compute import GELU, Batch, Outputs
from t5x_like.nn.encoder_heads import (
    CopyHead,
    Features,
    FirstTokenHead,
    MaskedLMHead,
    Pooler,
    ReplacedTokenHead,
    at_predicted,
    output_layer,
    select_head,
)
from t5x_like.nn.linear import Initializer, Linear
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, ReadPart, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ElectraConfig(bert.DenseEncoderConfig):
    """The settings of a discriminator, and of its generator in pretraining."""

    objective: str = "electra"
    vocab_size: int = 30522
    d_embedding: int
    generator: float
    tied: str = "embeddings"


def _size(
    layers: int, d_model: int, heads: int, *, generator: float, d_embedding: int = 0
) -> ElectraConfig:
    """Return the settings of a column of table 6.

    Args:
        generator: the generator's width, heads and feed-forward width relative to the
            discriminator's.
        d_embedding: the width of the embeddings; 0 for `d_model`.
    """
    return ElectraConfig(
        layers=layers,
        d_embedding=d_embedding or d_model,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        generator=generator,
    )


SIZES: dict[str, ElectraConfig] = {
    "small": _size(12, 256, 4, generator=1 / 4, d_embedding=128),
    "base": _size(12, 768, 12, generator=1 / 3),
    "large": _size(24, 1024, 16, generator=1 / 4),
}

DISCRIMINATOR_OBJECTIVES: dict[str, str] = {  # sections 2 and 3.5: what the discriminator predicts
    "electra": "whether each token was replaced",
    "electra_15": "whether each masked token was replaced",
    "replace_mlm": "masked tokens, as BERT does, with the generator's samples instead of [MASK]",
    "all_tokens_mlm": "every token, by a mixture of copying the input and a softmax",
}

# Heads of a generator and a discriminator that are trained together; see `build`.
TWO_NETWORKS = ("pretraining", "adversarial", "second_stage")

TIED: dict[str, tuple[str, ...]] = {  # the submodules that both networks share (section 3.2)
    "none": (),
    "embeddings": ("embeddings",),
    "all": ("embeddings", "projection", "encoder"),
}


def build(config: ElectraConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "pretraining" for both networks trained together, "adversarial" for
            the same with a generator that is trained to mislead the discriminator, "second_stage"
            for both networks in the second of two stages, "discriminator" for the discriminator,
            which is kept after pretraining, "masked_lm" for the same network with a generator's
            head, or a head of `select_head`; `objective`, used by the first three heads, is one of
            DISCRIMINATOR_OBJECTIVES, and "electra" or "electra_15" for "adversarial";
            `generator` is the generator's size relative to the discriminator's, and `tied` is one
            of TIED.

    Raises:
        ValueError: the head, objective or tying is unknown; the generator's heads do not divide
            its width; the sizes of the networks differ in the second stage or with all weights
            tied; weights are tied in the second stage, in which the generator is frozen; or the
            generator is adversarial to an objective that predicts tokens.
    """
    choose("model.objective", config.objective, DISCRIMINATOR_OBJECTIVES)
    tied = choose("model.tied", config.tied, TIED)
    second = config.head == "second_stage"
    if config.head == "adversarial" and config.objective not in ("electra", "electra_15"):
        raise ValueError(
            "model.head='adversarial' needs a discriminator, model.objective='electra' or "
            f"'electra_15', not {config.objective!r}"
        )
    if config.generator != 1 and (second or config.tied == "all"):
        setting = "head='second_stage'" if second else "tied='all'"
        raise ValueError(
            f"model.{setting} needs a generator of the discriminator's size, model.generator=1, "
            f"not {config.generator}"
        )
    if second and tied:
        raise ValueError(
            f"model.head='second_stage' freezes the generator, so that the discriminator cannot "
            f"share its weights: set model.tied='none', not {config.tied!r}"
        )
    discriminator = {
        "make_embeddings": bert.embeddings(dataclasses.replace(config, d_model=config.d_embedding)),
        "make_head": _head(config),
        **_layers(config),
    }
    if config.head not in TWO_NETWORKS:
        return Encoder(**discriminator)
    return GeneratorAndDiscriminator(
        **discriminator,
        make_generator=functools.partial(
            Encoder,
            make_embeddings=discriminator["make_embeddings"],
            make_head=_generator_head(config),
            **_layers(_smaller(config)),
        ),
        tied=tuple(part for part in tied if f"make_{part}" in discriminator),
        objective=config.objective,
    )


def _generator_head(config: ElectraConfig) -> Callable[..., nn.Module]:
    make_masked_lm = bert.masked_lm(config)
    if config.head != "adversarial":
        return functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm)
    return functools.partial(BaselineHead, make_masked_lm=make_masked_lm, kernel_init=config.init)


def _layers(config: ElectraConfig) -> dict[str, Callable[..., nn.Module]]:
    """Return factories of BERT's layers and, if the embeddings have another width, a projection."""
    layers = {"make_encoder": bert.tower(config)}
    if config.d_embedding == config.d_model:
        return layers
    projection = functools.partial(
        Linear,
        (config.d_model,),
        axes=("embed", "mlp"),
        use_bias=True,
        kernel_init=config.init,
        compute=config.compute,
    )
    return layers | {"make_projection": projection}


def _smaller(config: ElectraConfig) -> ElectraConfig:
    """Return the generator's settings: the same depth, but narrower (section 3.2, table 6)."""
    share = config.generator
    sizes = {name: round(share * config[name]) for name in ("d_model", "d_ff", "heads")}
    if min(sizes.values()) < 1 or sizes["d_model"] % sizes["heads"]:
        raise ValueError(
            f"model.generator={share} makes a generator of d_model={sizes['d_model']} with "
            f"{sizes['heads']} heads: choose one for which the heads divide d_model"
        )
    return dataclasses.replace(config, **sizes)


def _head(config: ElectraConfig) -> Callable[..., nn.Module]:
    parts: dict[str, Any] = {"kernel_init": config.init, "compute": config.compute}
    replaced = functools.partial(ReplacedTokenHead, activation=GELU, **parts)
    make_masked_lm = bert.masked_lm(config)
    masked_lm = functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm)
    copying = functools.partial(CopyHead, make_masked_lm=make_masked_lm, kernel_init=config.init)
    make_pooler = functools.partial(Pooler, activation=GELU, inner_dropout=config.dropout, **parts)
    make_row = functools.partial(
        FirstTokenHead,
        make_pooler=make_pooler,
        kernel_init=config.init,
        dropout=config.dropout,
    )
    predicting = {"replace_mlm": masked_lm, "all_tokens_mlm": copying}
    heads = {
        **dict.fromkeys(TWO_NETWORKS, predicting.get(config.objective, replaced)),
        "discriminator": replaced,
        "masked_lm": masked_lm,
        "features": Features,
    }
    return select_head(
        config, heads, make_pooler=make_pooler, kernel_init=config.init, make_row=make_row
    )


class BaselineHead(MaskedLMHead, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """The head of an adversarial generator: tokens, and the expected reward (appendix F)."""

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
        """Return `logits`, float32 [B, P, V], and `baseline_logits`, float32 [B, P].

        Args:
            batch: may have `predicted_positions` [B, P]; without them P is L.
        """
        outputs = super().__call__(hidden, table, batch, deterministic=deterministic)
        baseline = output_layer(1, self.kernel_init, "baseline")(at_predicted(hidden, batch))
        return outputs | {"baseline_logits": baseline[..., 0]}


def start_second_stage(module: nn.Module, config: ElectraConfig, read: ReadPart) -> PyTree:
    """Read a trained generator, and initialize the discriminator with its weights (section 3.2).

    The discriminator's head is randomly initialized.

    Raises:
        ValueError: the folder does not contain a generator of this size without a discriminator.
    """
    del module, config
    generator = read("generator", system="electra")
    copied = {part: generator[part] for part in TIED["all"] if part in generator}
    return {**copied, "generator": generator}


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    generator: float = 1.0,
    discriminator: float = 50.0,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the weighted sum of the generator's and the discriminator's mean losses (section 2).

    The discriminator reads the text with a token sampled from the generator at each masked
    position; no gradient flows through the sample. Metrics of the discriminator have the prefix
    `discriminator/`; all others are the generator's.

    Args:
        rng: key of dropout and of the samples; None in evaluation, where the key of the samples is
            always the same.
        generator: weight of the mean over masked tokens.
        discriminator: weight of the mean over the discriminator's tokens, lambda in section 2; not
            used by the objectives that predict tokens, whose weight is 1.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens.
    """
    guesses, masked, batch, dropout = _sampled(module, params, batch, rng, predicted=predicted)
    if module.objective == "replace_mlm":
        at_masked = {**batch, "predicted_positions": masked.positions}
        outputs = losses.forward(module, params, at_masked, dropout)
        scale, second = 1.0, masked.cross_entropy(outputs["logits"])
    else:
        outputs = losses.forward(module, params, batch, dropout)
        if module.objective == "all_tokens_mlm":
            scale, second = 1.0, all_tokens_mlm(outputs, batch)
        else:
            scale = discriminator
            second = replaced_tokens(outputs, batch, objective=module.objective)
    first = masked.cross_entropy(guesses["logits"])
    return losses.combine({"generator": (generator, first), "discriminator": (scale, second)})


def adversarial_loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    generator: float = 1.0,
    baseline: float = 1.0,
    discriminator: float = 50.0,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the loss of a discriminator and of a generator that maximizes it (appendix F).

    The reward R of the token sampled at a masked position is the discriminator's cross-entropy
    there. The generator's loss is REINFORCE's -log p(sample) (R - b), without a gradient through R
    and the baseline b = -log sigmoid(w^T h), where h is the generator's state; b is trained by the
    cross-entropy of sigmoid(w^T h) and exp(-R). Metrics are as in `loss`, with the prefixes
    `reinforce/` and `baseline/` for the two terms of the generator.

    Args:
        rng: see `loss`.
        generator, baseline: weights of the means over masked tokens of the generator's two terms.
        discriminator, predicted: see `loss`.

    Raises:
        ValueError: the batch has no masked tokens.
    """
    guesses, masked, batch, dropout = _sampled(module, params, batch, rng, predicted=predicted)
    outputs = losses.forward(module, params, batch, dropout)
    scores = jnp.take_along_axis(outputs["logits"], masked.positions, axis=1)
    sampled = jnp.take_along_axis(batch["encoder_input_tokens"], masked.positions, axis=1)
    correct = jnp.where(sampled == masked.targets, -scores, scores)  # the logit of being right
    reward = jax.lax.stop_gradient(-jax.nn.log_sigmoid(correct))
    expected = guesses["baseline_logits"]
    advantage = reward + jax.lax.stop_gradient(jax.nn.log_sigmoid(expected))
    log_probs = jax.nn.log_softmax(guesses["logits"])
    chosen = jnp.take_along_axis(log_probs, sampled[..., None], axis=-1)[..., 0]
    right = jnp.exp(-reward)
    fit = -right * jax.nn.log_sigmoid(expected) - (1 - right) * jax.nn.log_sigmoid(-expected)
    reinforce = losses.weighted_sum("loss", -chosen * advantage, masked.weights)
    fitted = losses.weighted_sum("cross_entropy", fit, masked.weights)
    second = replaced_tokens(outputs, batch, objective=module.objective)
    return losses.combine(
        {
            # Only its metrics: the generator is not trained to predict the original tokens.
            "generator": (0.0, masked.cross_entropy(guesses["logits"])),
            "reinforce": (generator, reinforce),
            "baseline": (baseline, fitted),
            "discriminator": (discriminator, second),
        }
    )


def _sampled(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None, *, predicted: float
) -> tuple[Outputs, losses.MaskedTokens, dict[str, jax.Array], jax.Array | None]:
    """Run the generator; return its outputs, the masked tokens, the batch with sampled tokens.

    Last is the key of the discriminator's dropout, or None.
    """
    sample = jax.random.key(0)
    dropout: list[jax.Array | None] = [None, None]
    if rng is not None:
        sample, first, second = jax.random.split(rng, 3)
        dropout = [first, second]
    guesses, masked = losses.predict_masked(
        module, params, batch, dropout[0], share=predicted, method="generate"
    )
    return guesses, masked, corrupt(batch, masked, guesses["logits"], sample), dropout[1]


def corrupt(
    batch: Batch,
    masked: losses.MaskedTokens,
    logits: Float[Array, "B P V"],
    rng: jax.Array,
) -> dict[str, jax.Array]:
    """Return the batch with new inputs: the text with sampled tokens at the masked positions."""
    sampled = jax.random.categorical(rng, jax.lax.stop_gradient(logits))
    tokens = jnp.put_along_axis(
        batch["encoder_target_tokens"],
        masked.positions,
        # Masked positions of weight 0 are padding: write the original token there.
        jnp.where(masked.weights > 0, sampled.astype(masked.targets.dtype), masked.targets),
        axis=1,
        inplace=False,
    )
    return {**batch, "encoder_input_tokens": tokens}


def replaced_tokens(outputs: Outputs, batch: Batch, *, objective: str) -> losses.LossSums:
    """Return the loss of predicting which tokens were replaced (section 2).

    A token whose sample equals the original counts as not replaced.
    """
    counted = batch["encoder_segment_ids"] > 0
    if objective == "electra_15":
        counted &= batch["encoder_loss_weights"] > 0
    replaced = batch["encoder_input_tokens"] != batch["encoder_target_tokens"]
    return losses.binary(outputs["logits"], replaced, counted)


def all_tokens_mlm(outputs: Outputs, batch: Batch) -> losses.LossSums:
    """Return the loss of predicting all tokens, with the copy probability D (section 3.5).

    It is -log(D [input = original] + (1 - D) softmax) for each token.
    """
    originals = batch["encoder_target_tokens"]
    copy = outputs["copy_logits"]
    log_probs = jax.nn.log_softmax(outputs["logits"])
    predicted = jnp.take_along_axis(log_probs, originals[..., None], axis=-1)[..., 0]
    predicted += jax.nn.log_sigmoid(-copy)
    same = batch["encoder_input_tokens"] == originals
    either = jnp.logaddexp(jax.nn.log_sigmoid(copy), predicted)
    real = batch["encoder_segment_ids"] > 0
    return losses.weighted_sum("cross_entropy", -jnp.where(same, either, predicted), real)


SYSTEM = System(
    name="electra",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, "dropout_broadcast": True, "tied": "embeddings"},
    tasks={
        "pretraining": Task(loss=loss),
        "adversarial": Task(loss=adversarial_loss),
        "second_stage": Task(loss=loss, start=start_second_stage, start_required=True),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# ELECTRA in Hugging Face's folders.


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in TWO_NETWORKS and settings["objective"] not in ("electra", "electra_15"):
        raise ValueError(
            f"model.objective={settings['objective']!r} trains no discriminator: the encoder "
            "without a head is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    return {}


HUGGING_FACE = HuggingFaceFormat(
    system="electra",
    model_types={"electra": "Electra"},
    defaults=SIZES["base"],
    settings={
        **bert.HUGGING_FACE.settings,
        "embedding_size": Setting("d_embedding", COUNT),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        # Settings of the multiple-choice head.
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_proj_to_labels": False,
        "summary_activation": "gelu",
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_config=_derive_config,
    weights={
        **bert_encoder("electra"),
        **dense("projection", "electra.embeddings_project"),
        **dense("head/transform", "discriminator_predictions.dense"),
        **dense("head/replaced", "discriminator_predictions.dense_prediction"),
        **dense("head/masked_lm/transform", "generator_predictions.dense"),
        **norm("head/masked_lm/norm", "generator_predictions.LayerNorm"),
        "head/masked_lm/output/bias": "generator_lm_head.bias",
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/summary/dense", "sequence_summary.summary"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "electra.embeddings.*",  # a model without a head
        "embeddings_project.*": "electra.embeddings_project.*",
        "encoder.*": "electra.encoder.*",
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",  # a copy
    },
    unused=("electra.embeddings.position_ids", "embeddings.position_ids"),
    exported_as=dict.fromkeys(TWO_NETWORKS, "discriminator"),
    not_exported=("generator",),
)
