"""SpanBERT: Joshi et al. 2020, "Improving Pre-training by ... Spans" (arXiv:1907.10529)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.hf.record import Settings
from t5x_like.nn.compute import GELU, Activation, Batch, Compute, Outputs
from t5x_like.nn.embeddings import TiedHead
from t5x_like.nn.linear import Initializer, Linear, replicate_last_axis
from t5x_like.systems import bert
from t5x_like.systems.system import ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SpanBertConfig(bert.BertConfig):
    """The settings of a SpanBERT; the value of `span_places` is from the authors' code."""

    span_places: int = 15


# BERT's sizes (section 4.2) with its cased vocabulary.
SIZES: dict[str, SpanBertConfig] = {
    name: size.to(SpanBertConfig, vocab_size=28996) for name, size in bert.SIZES.items()
}

_PLACE_FEATURES = 200  # width of the position embeddings in a span (section 4.2)


# ---- SpanBERT's head: predict masked tokens from their states, and from the span's boundaries.


class SpanBoundary(nn.Module):
    """Predict the tokens of a span from the states beside it (Joshi et al. 2020, section 3.2).

    For token n of a span, with x_l and x_r the states to the left and right of the span, and p_n
    the embedding of position n in the span:

        h = norm(f(W1 [x_l; x_r; p_n]));   y = norm(f(W2 h));   logits = E y + b

    Attributes:
        places: the number of position embeddings. The logits of tokens further from the span's left
            end are meaningless.
        features: the width of p_n.
        activation: f.
    """

    make_norm: Callable[..., nn.Module]
    places: int
    features: int
    activation: Activation
    kernel_init: Initializer
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], table: Float[Array, "V D"], batch: Batch
    ) -> Outputs:
        """Return `boundary_logits`, float32 [B, L, V], and `boundary_known`, bool [B, L].

        The logits are meaningless if `boundary_known` is False.

        Args:
            batch: `encoder_span_left`, `encoder_span_right` [B, L]: the indices of x_l and x_r in
                the row, 0 for a token outside of spans. With `predicted_positions` [B, P] only
                these tokens are predicted, and the outputs have P instead of L.
        """
        left, right = batch["encoder_span_left"], batch["encoder_span_right"]
        at = jnp.broadcast_to(jnp.arange(left.shape[1]), left.shape)
        if "predicted_positions" in batch:
            at = batch["predicted_positions"]
            left, right = (jnp.take_along_axis(x, at, axis=1) for x in (left, right))
        offset = at - left - 1
        known = (right > 0) & (offset < self.places)
        ends = [jnp.take_along_axis(hidden, x[..., None], axis=1) for x in (left, right)]
        x = jnp.concatenate([*ends, self._place_vectors(jnp.where(known, offset, 0))], axis=-1)
        x = self._layer(x, hidden.shape[-1], ("boundary", "mlp"), "first")
        x = self._layer(x, table.shape[1], ("embed", "mlp"), "second")
        logits = TiedHead(use_bias=True, name="output")(x, table)
        return {"boundary_logits": logits, "boundary_known": known}

    def _place_vectors(self, offset: Array) -> Array:
        init = nn.with_logical_partitioning(self.kernel_init, ("positions", "boundary"))
        vectors = self.param("place", init, (self.places, self.features))
        # Multiply by one-hot vectors, since the backward pass of a gather is a slow scatter.
        dtype = self.compute.dtype
        return nn.one_hot(offset, self.places, dtype=dtype) @ vectors.astype(dtype)

    def _layer(self, x: Array, width: int, axes: tuple[str, str], name: str) -> Array:
        x = Linear(
            (width,),
            axes=axes,
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name=name,
        )(x)
        return self.make_norm(name=f"{name}_norm")(self.activation(replicate_last_axis(x)))


class SpanPretraining(nn.Module):
    """Predict masked tokens from their own states, and from the boundaries of their spans.

    Attributes:
        make_masked_lm: factory of the `MaskedLM` of nn/encoder_heads.py.
        make_boundary: factory of `SpanBoundary`.
    """

    make_masked_lm: Callable[..., nn.Module]
    make_boundary: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`; if the batch has spans, also the outputs of `SpanBoundary`."""
        outputs = self.make_masked_lm(name="masked_lm")(hidden, table, batch)
        if self.is_initializing():  # the shapes of the weights do not depend on the spans
            none = jnp.zeros_like(batch["encoder_input_tokens"])
            batch = {"encoder_span_left": none, "encoder_span_right": none} | dict(batch)
        if "encoder_span_left" in batch:
            outputs |= self.make_boundary(name="boundary")(hidden, table, batch)
        return outputs


def build(config: SpanBertConfig) -> nn.Module:
    """Build BERT's network, whose head "pretraining" has the span boundary objective (section 3.2).

    Args:
        config: `span_places` is the number of position embeddings for the tokens of a span; further
            tokens of a span are predicted only from their own states.

    Raises:
        ValueError: the head is unknown.
    """
    heads = bert.pretraining_heads(config)
    # Pretraining predicts no sentence pairs, so nothing trains the pooler before fine-tuning.
    heads["pretraining"] = functools.partial(
        SpanPretraining,
        make_masked_lm=bert.masked_lm(config),
        make_boundary=functools.partial(
            SpanBoundary,
            make_norm=functools.partial(bert.NORM, compute=config.compute),
            places=config.span_places,
            features=_PLACE_FEATURES,
            activation=GELU,
            kernel_init=config.init,
            compute=config.compute,
        ),
    )
    return bert.network(config, heads)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the sum of two mean losses over masked tokens (section 3.2, equation 2).

    The tokens are predicted from their own states, and from the boundaries of their spans.

    Args:
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no spans.
    """
    if "encoder_span_left" not in batch:
        raise ValueError(
            "model.head='pretraining' of spanbert predicts masked spans, and the batch has none: "
            "set data.objective='spanbert', or model.head='masked_lm'"
        )
    outputs, masked = losses.predict_masked(module, params, batch, rng, share=predicted)
    boundary = masked.cross_entropy(outputs["boundary_logits"], where=outputs["boundary_known"])
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "span_boundary": (1.0, boundary),
        }
    )


SYSTEM = System(
    name="spanbert",
    sizes=SIZES,
    build=build,
    older_defaults=bert.OLDER_DEFAULTS,
    adapt=bert.SYSTEM.adapt,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# SpanBERT in Hugging Face's folders, where it is a BERT.
# The folders published as SpanBERT have model_type "bert". They are read as the system `bert`
# unless `spanbert` is requested, and a SpanBERT is saved as such a folder.


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no SpanBERT with model.head='pretraining': load the model with "
            "from_pretrained(folder, head='masked_lm') and save that, with its head"
        )
    return {}


HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="spanbert",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
)
