"""ELECTRA: Clark et al. 2020, "Pre-training Text Encoders as Discriminators" (arXiv:2003.10555)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.models.heads.encoder_heads import (
    Features,
    FirstTokenHead,
    MaskedLMHead,
    Summary,
    select_head,
)
from t5x_like.models.heads.replaced_tokens import CopyHead, ReplacedTokenHead
from t5x_like.models.linear import Linear
from t5x_like.models.networks.encoder import Encoder, forward
from t5x_like.models.networks.generator_discriminator import GeneratorAndDiscriminator
from t5x_like.models.types import Outputs
from t5x_like.names import choose
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int, *, generator: float) -> dict[str, Any]:
    """A column of table 6; `generator` multiplies the width, the heads and the feed-forward."""
    return {
        "head": "pretraining",
        "objective": "electra",
        "labels": 2,
        "vocab_size": 30522,
        "positions": 512,
        "token_types": 2,
        "layers": layers,
        "d_embedding": d_model,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "generator": generator,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "attention": "auto",
        "dtype": "float32",
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    }


SIZES: dict[str, dict[str, Any]] = {
    "small": _size(12, 256, 4, generator=1 / 4) | {"d_embedding": 128},
    "base": _size(12, 768, 12, generator=1 / 3),
    "large": _size(24, 1024, 16, generator=1 / 4),
}

OBJECTIVES: dict[str, str] = {  # sections 2 and 3.5: what the large network says of its input
    "electra": "of every token whether it was replaced",
    "electra_15": "the same, of those that were masked for the generator alone",
    "replace_mlm": "which token was masked, as BERT, where the input has the generator's",
    "all_tokens_mlm": "which token it was, of every token, or that it is the one it reads",
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES.

    `head` is "pretraining" for both networks, "discriminator" for the one that is kept, "masked_lm"
    for one like the generator by itself, or one of models/heads/. `objective` is of pretraining.

    Raises:
        ValueError: no such head or objective, or a generator of no even width.
    """
    choose("model.objective", config["objective"], OBJECTIVES)
    discriminator = {
        "make_embeddings": bert.embeddings({**config, "d_model": config["d_embedding"]}),
        "make_head": _head(config),
        **_layers(config),
    }
    if config["head"] != "pretraining":
        return Encoder(**discriminator)
    return GeneratorAndDiscriminator(
        **discriminator,
        make_generator=functools.partial(
            Encoder,
            make_head=functools.partial(MaskedLMHead, make_masked_lm=bert.masked_lm(config)),
            **_layers(_smaller(config)),
        ),
        objective=config["objective"],
    )


def _layers(config: Mapping[str, Any]) -> dict[str, Callable[..., nn.Module]]:
    """BERT's, behind a map from the embeddings' width where it is not theirs."""
    layers = {"make_encoder": bert.tower(config)}
    if config["d_embedding"] == config["d_model"]:
        return layers
    projection = functools.partial(
        Linear,
        (config["d_model"],),
        axes=("embed", "mlp"),
        use_bias=True,
        kernel_init=bert.INIT,
        dtype=jnp.dtype(config["dtype"]),
    )
    return layers | {"make_projection": projection}


def _smaller(config: Mapping[str, Any]) -> dict[str, Any]:
    """The generator's settings: as deep, and narrower (section 3.2, table 6)."""
    share = config["generator"]
    sizes = {name: round(share * config[name]) for name in ("d_model", "d_ff", "heads")}
    if min(sizes.values()) < 1 or sizes["d_model"] % sizes["heads"]:
        raise ValueError(
            f"model.generator={share} makes a generator of d_model={sizes['d_model']} with "
            f"{sizes['heads']} heads: the one must be a multiple of the other"
        )
    return {**config, **sizes}


def _head(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    parts: dict[str, Any] = {"kernel_init": bert.INIT, "dtype": jnp.dtype(config["dtype"])}
    replaced = functools.partial(ReplacedTokenHead, activation=bert.GELU, **parts)
    make_masked_lm = bert.masked_lm(config)
    masked_lm = functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm)
    copying = functools.partial(CopyHead, make_masked_lm=make_masked_lm, kernel_init=bert.INIT)
    make_summary = functools.partial(
        Summary, activation=bert.GELU, inner_dropout=config["dropout"], **parts
    )
    make_row = functools.partial(
        FirstTokenHead,
        make_summary=make_summary,
        kernel_init=bert.INIT,
        dropout=config["dropout"],
    )
    own = {
        "pretraining": {"replace_mlm": masked_lm, "all_tokens_mlm": copying}.get(
            config["objective"], replaced
        ),
        "discriminator": replaced,
        "masked_lm": masked_lm,
        "features": Features,
    }
    return select_head(
        config, own, make_summary=make_summary, kernel_init=bert.INIT, make_row=make_row
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    generator: float = 1.0,
    discriminator: float = 50.0,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The generator's loss of masked tokens, and the discriminator's of what it reads then.

    Of a place that is masked, the discriminator reads a token drawn from what the generator says
    there; no gradient flows through the draw. Metrics of the discriminator have its name; the
    others are the generator's.

    Args:
        rng: key of dropout and of the draws; None in evaluation, where these are always the same.
        generator: weight of the mean over masked tokens.
        discriminator: weight of the mean over the discriminator's tokens, lambda in section 2; of
            the objectives that predict tokens it is 1.
        predicted: as in `bert.loss`.
    """
    draw = jax.random.key(0)
    dropout: list[jax.Array | None] = [None, None]
    if rng is not None:
        draw, *dropout = jax.random.split(rng, 3)
    places, kept = losses.predicted(batch["encoder_loss_weights"], share=predicted)
    masked = jnp.take_along_axis(batch["encoder_target_tokens"], places, axis=1)
    guesses = generate(module, params, {**batch, "predicted_positions": places}, dropout[0])
    drawn = jax.random.categorical(draw, jax.lax.stop_gradient(guesses)).astype(masked.dtype)
    read = jnp.put_along_axis(
        batch["encoder_target_tokens"],
        places,
        jnp.where(kept > 0, drawn, masked),  # the other places only fill the rows up
        axis=1,
        inplace=False,
    )
    batch = {**batch, "encoder_input_tokens": read}
    if module.objective == "replace_mlm":
        at_places = {**batch, "predicted_positions": places}
        logits = forward(module, params, at_places, dropout[1])["logits"]
        scale, own = 1.0, losses.cross_entropy(logits, masked, kept)
    else:
        outputs = forward(module, params, batch, dropout[1])
        if module.objective == "all_tokens_mlm":
            scale, own = 1.0, copied_or_said(outputs, batch)
        else:
            scale, own = discriminator, told_apart(outputs, batch, objective=module.objective)
    guessed = losses.cross_entropy(guesses, masked, kept)
    return losses.combine({"generator": (generator, guessed), "discriminator": (scale, own)})


def generate(
    module: nn.Module, params: Any, batch: Mapping[str, jax.Array], rng: jax.Array | None
) -> Float[Array, "B P V"]:
    """The generator's logits at the predicted positions."""
    rngs = None if rng is None else {"dropout": rng}
    call = {"deterministic": rng is None, "rngs": rngs, "method": "generate"}
    return module.apply({"params": params}, batch, **call)["logits"]


def told_apart(
    outputs: Outputs, batch: Mapping[str, jax.Array], *, objective: str
) -> losses.LossSums:
    """Whether each token is another than it was (section 2): a draw that is right is no other."""
    counted = batch["encoder_segment_ids"] > 0
    if objective == "electra_15":
        counted &= batch["encoder_loss_weights"] > 0
    replaced = batch["encoder_input_tokens"] != batch["encoder_target_tokens"]
    return losses.binary(outputs["logits"], replaced, counted)


def copied_or_said(outputs: Outputs, batch: Mapping[str, jax.Array]) -> losses.LossSums:
    """-log of D [the token is the one read] + (1 - D) softmax: All-Tokens MLM of section 3.5."""
    originals = batch["encoder_target_tokens"]
    copy = outputs["copy_logits"]
    log_probs = jax.nn.log_softmax(outputs["logits"])
    said = jnp.take_along_axis(log_probs, originals[..., None], axis=-1)[..., 0]
    said += jax.nn.log_sigmoid(-copy)
    same = batch["encoder_input_tokens"] == originals
    each = -jnp.where(same, jnp.logaddexp(jax.nn.log_sigmoid(copy), said), said)
    real = (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
    total, weight = jnp.sum(each * real), jnp.sum(real)
    return total, weight, {"cross_entropy": (jax.lax.stop_gradient(total), weight)}


SYSTEM = System(
    name="electra",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss),
        **ENCODER_TASKS,
    },
)
