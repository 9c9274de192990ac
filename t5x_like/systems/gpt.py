"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.cache import LayerCache
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import Collected, PostNormBlock, Shared
from t5x_like.nn.compute import GELU_TANH, Batch, Compute, Outputs, make_dropout
from t5x_like.nn.embeddings import AddPositions, LearnedPositions, TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import output_layer
from t5x_like.nn.linear import MLP, Initializer, LayerNorm, Linear
from t5x_like.nn.lstm import LSTMState, ProjectedLSTM
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import gpt2
from t5x_like.systems.system import (
    Adaptation,
    AttentionConfig,
    DropoutConfig,
    System,
    Task,
    adaptation,
    head_width,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GptConfig(DropoutConfig, AttentionConfig):
    """The settings of a GPT (section 4.1).

    For fine-tuning the embedding table has `added_tokens` rows after its `vocab_size` rows.

    Attributes:
        lstm: the units of the LSTM instead of the Transformer (section 5); 0 for the Transformer.
            `layers`, `d_ff`, `heads` and `positions` then must keep their defaults.
    """

    vocab_size: int = 40478
    lstm: int = 0
    added_tokens: int = 0
    positions: int = 512
    layers: int = 12
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    head: str = "language_modeling"
    labels: int = 2


# `lstm` is the ablation of table 5.
SIZES: dict[str, GptConfig] = {"base": GptConfig(), "lstm": GptConfig(lstm=2048)}

INIT = nn.initializers.normal(0.02)
loss = autoregressive.loss


# ---- Heads of a decoder for labelled text: predict a class, a number, or one of several answers.


class ClassHead(nn.Module):
    """Predict a class from the sum of the states of an example's rows (two texts: both orders).

    Attributes:
        labels: the number of classes; 1 to predict a number, which is the logit.
    """

    labels: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B labels"]:
        """Return float32 logits; rows that are not `real` are left out of the sum."""
        state = jnp.sum(jnp.where(real[..., None], states, 0.0), axis=1)
        state = nn.Dropout(self.dropout)(state, deterministic)
        return output_layer(self.labels, self.kernel_init, "classifier")(state)


class ChoiceHead(nn.Module):
    """Multiple choice: one logit for each row of an example; padding rows get -1e9."""

    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B C"]:
        """Return float32 logits."""
        # One mask for all rows of an example, since their logits are compared.
        states = nn.Dropout(self.dropout, broadcast_dims=(1,))(states, deterministic)
        logits = output_layer(1, self.kernel_init, "classifier")(states)[..., 0]
        return jnp.where(real, logits, -1e9)


# ---- A decoder-only network with a classification head on the last token: GPT on labelled text.


class DecoderClassifier(Decoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Radford et al. 2018, section 3.2: a head on the state of the last token predicts the label.

    An example is C rows of L tokens, padded on the right (section 3.3): one row for a text, one for
    each order of two texts, or one for each answer to choose from. `prefill` and `extend` run the
    language model.

    Attributes:
        make_label_head: factory of `head(states [B, C, D], real [B, C], deterministic=) -> logits`.
    """

    make_label_head: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.head = self.make_label_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """Return `logits` of the next tokens, float32 [B, C, L, V], and `label_logits`.

        Args:
            batch: `decoder_input_tokens` and `decoder_segment_ids` [B, C, L], 0 on padding.
            collect: as in `Decoder`; the collected arrays have B * C rows.

        Returns:
            The outputs, where `label_logits` is [B, labels] or, for multiple choice, [B, C]; with
            `collect` also {"decoder": the collected arrays}.
        """
        tokens, segments = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        examples, rows, length = tokens.shape
        # Padding is at the end, so that under the causal mask no token attends to it.
        shared = Shared(
            mask=AttentionMask(visibility="causal"),
            positions=jnp.broadcast_to(jnp.arange(length), (examples * rows, length)),
            deterministic=deterministic,
            collect=collect,
        )
        x = self.token_embedder(tokens.reshape(examples * rows, length))
        x, collected = self.decoder(x, shared)
        logits = self.lm_head(x, self.token_embedder.embedding)
        sizes = jnp.sum(segments > 0, axis=2)
        last = jnp.maximum(sizes - 1, 0).reshape(-1, 1, 1)
        states = jnp.take_along_axis(x, last, axis=1).reshape(examples, rows, -1)
        outputs = {
            "logits": logits.reshape(*tokens.shape, -1),
            "label_logits": self.head(states, sizes > 0, deterministic=deterministic),
        }
        return (outputs, {"decoder": collected}) if collect else outputs

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros whose examples have one row, to shape the parameters."""
        tokens = jnp.zeros((batch, 1, length), jnp.int32)
        return {"decoder_input_tokens": tokens, "decoder_segment_ids": tokens + 1}


# ---- An LSTM instead of the Transformer's layers: the ablation of section 5.


@flax.struct.dataclass
class LSTMCache(LayerCache):
    """The state after the tokens so far, which takes the place of keys and values."""

    own: LSTMState  # type: ignore[assignment]  # [B, C] and [B, C], not keys and values

    def repeat(self, times: int) -> "LSTMCache":
        """Repeat each row `times` times."""
        return LSTMCache(own=jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), self.own))

    def reorder(self, rows: Int[Array, " B"]) -> "LSTMCache":
        """Select rows."""
        return LSTMCache(own=jax.tree.map(lambda x: x[rows], self.own))

    def from_slots(self, slots: Int[Array, "B S"]) -> "LSTMCache":
        """Return the same state, which does not depend on where tokens are."""
        del slots
        return self


class LSTMStack(nn.Module):
    """An LSTM from left to right with a projection of its outputs, the `layers` of a `Tower`.

    Attributes:
        cell: C, the number of units.
        compute: its `dropout` applies to the LSTM's outputs.
    """

    cell: int
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: LSTMCache | None
    ) -> tuple[Float[Array, "B T D"], LSTMCache | Collected | None]:
        """Return the output, and the updated cache if a cache was given.

        Each document of a packed row, which begins at position 0, is read by itself.
        """
        mask, positions = shared.mask, shared.positions
        assert positions is not None  # decoders have them
        real = jnp.ones(x.shape[:2], bool)
        if mask.key_segments is not None:  # with a cache, of all slots
            segments = jax.lax.dynamic_slice_in_dim(
                mask.key_segments, mask.first_slot, x.shape[1], axis=1
            )
            real = segments > 0
        state = None if per_layer is None else jax.tree.map(lambda x: x[None], per_layer.own)
        lstm = ProjectedLSTM(cell=self.cell, features=None, compute=self.compute, name="lstm")
        y, state = lstm(x[None], real[None], state, begins=(positions == 0)[None])
        y = make_dropout(self.compute)(y[0], shared.deterministic)
        y = Linear(
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=True,
            kernel_init=INIT,
            compute=self.compute,
            name="out",
        )(y)
        if shared.collect:
            return y, shared.collected(y, None)
        if per_layer is None:
            return y, None
        return y, LSTMCache(own=jax.tree.map(lambda x: x[0], state))

    def empty_cache(self, *, batch: int, slots: int) -> LSTMCache:
        """Return the state before the first token."""
        del slots
        zeros = jnp.zeros((batch, self.cell))
        return LSTMCache(own=LSTMState(zeros, zeros))


def build(config: GptConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (sections 3.1, 4.1 and 5).

    Raises:
        ValueError: the head is unknown, the head `classification` has fewer than 2 labels, or a
            head for labelled text has fewer than 3 added tokens.
    """
    return _network(config)(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size + config.added_tokens,
            features=config.d_model,
            embedding_init=INIT,
            compute=config.compute,
        ),
        make_decoder=_lstm(config) if config.lstm else _transformer(config),
        make_head=TiedHead,
    )


def _lstm(config: GptConfig) -> Callable[..., nn.Module]:
    unread = ("layers", "d_ff", "heads", "positions")
    config.check_unread(*unread, because=f"model.lstm={config.lstm}")
    make_stack = functools.partial(LSTMStack, cell=config.lstm, compute=config.compute)
    return functools.partial(Tower, make_stack=make_stack, compute=config.compute)


def _transformer(config: GptConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        Tower,
        make_entrance=functools.partial(
            AddPositions,
            make_positions=functools.partial(
                LearnedPositions,
                length=config.positions,
                features=config.d_model,
                embedding_init=INIT,
                compute=config.compute,
            ),
        ),
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        compute=config.compute,
    )


def _block(config: GptConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        PostNormBlock,
        make_norm=functools.partial(LayerNorm, epsilon=1e-5, compute=config.compute),
        make_self_attention=functools.partial(
            Attention,
            heads=config.heads,
            width=head_width(config),
            use_bias=True,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=GELU_TANH,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            compute=config.compute,
        ),
        compute=config.compute,
    )


def _network(config: GptConfig) -> Callable[..., nn.Module]:
    """Return the factory of a language model with or without a label head (section 3.2)."""
    of_head = {"kernel_init": INIT, "dropout": config.dropout}
    networks: dict[str, Callable[..., nn.Module]] = {
        "language_modeling": Decoder,
        "classification": functools.partial(
            DecoderClassifier,
            make_label_head=functools.partial(ClassHead, labels=config.labels, **of_head),
        ),
        "regression": functools.partial(
            DecoderClassifier, make_label_head=functools.partial(ClassHead, labels=1, **of_head)
        ),
        "multiple_choice": functools.partial(
            DecoderClassifier, make_label_head=functools.partial(ChoiceHead, **of_head)
        ),
    }
    network = choose("model.head", config.head, networks)
    if config.head == "classification" and config.labels < 2:
        raise ValueError(f"model.labels={config.labels}: the head 'classification' needs 2")
    if config.head != "language_modeling" and config.added_tokens < 3:
        raise ValueError(
            f"model.added_tokens={config.added_tokens}: the head {config.head!r} needs 3, "
            "the start, delimiter and extract tokens"
        )
    return network


def fine_tuning_loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    auxiliary: float = 0.5,
) -> losses.LossSums:
    """Return L3 = L2 + `auxiliary` * L1 (section 3.2, equations 4 and 5), summed over examples.

    L2 is the cross-entropy of `label` [B], or the squared error of `value` [B]. L1 is the
    cross-entropy of the tokens: as in the authors' code it is averaged over the tokens of each row,
    and then over the rows of an example, so that texts of all lengths count alike.

    Returns:
        The sum, the number of examples, and the metrics of the labels (`cross_entropy` and
        `accuracy`) or of the numbers (`squared_error` and `absolute_error`), and
        `language_modeling`, which is L1.
    """
    outputs = losses.forward(module, params, batch, rng)
    tokens, real = batch["decoder_input_tokens"], batch["decoder_segment_ids"] > 0
    predicted, examples = outputs["label_logits"], real[:, 0, 0]
    if "value" in batch:
        total, weight, metrics = losses.regression(predicted[:, 0], batch["value"], examples)
    else:
        total, weight, metrics = losses.classification(predicted, batch["label"], examples)
    weights = real[..., 1:].astype(jnp.float32)  # the first token has no context
    in_row = jnp.maximum(jnp.sum(weights, axis=2, keepdims=True), 1.0)
    rows = jnp.maximum(jnp.sum(real[..., :1], axis=1, keepdims=True), 1)
    text, _, of_text = losses.cross_entropy(
        outputs["logits"][..., :-1, :], tokens[..., 1:], weights / in_row / rows
    )
    metrics["language_modeling"] = of_text["cross_entropy"]
    return total + auxiliary * text, weight, metrics


def adapt(source: Mapping[str, Any], config: Mapping[str, Any]) -> Adaptation:
    """Return how to initialize from a GPT with fewer added tokens; see `System.adapt`."""
    rows = {}
    if source["system"] == config["system"]:
        rows = {"token_embedder/embedding": source["vocab_size"] + source["added_tokens"]}
    return adaptation(source, config, structure=("head", "labels", "lstm"), first_rows=rows)


SYSTEM = System(
    name="gpt",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True, "lstm": 0},
    tasks={
        "language_modeling": Task(loss=loss, prediction="text"),
        "classification": Task(
            loss=fine_tuning_loss, prediction="decoder_classes", measures=("predictions",)
        ),
        "regression": Task(
            loss=fine_tuning_loss, prediction="decoder_number", measures=("predictions",)
        ),
        "multiple_choice": Task(
            loss=fine_tuning_loss, prediction="choices", measures=("predictions",)
        ),
    },
    adapt=adapt,
)


# GPT in Hugging Face's folders.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    known = (["OpenAIGPTLMHeadModel"], ["OpenAIGPTModel"], None)
    one_of(*known).check("architectures", config.get("architectures"))
    return {"d_ff": 4 * settings["d_model"]}


def _derive_config(settings: Settings) -> dict[str, Any]:
    supported = {"lstm": 0, "d_ff": 4 * settings["d_model"], "head": "language_modeling"}
    for key, allowed in supported.items():
        if settings[key] != allowed:
            raise ValueError(
                f"model.{key}={settings[key]!r}: Hugging Face's GPT supports only {allowed!r}"
            )
    return {"vocab_size": settings["vocab_size"] + settings["added_tokens"]}


HUGGING_FACE = HuggingFaceFormat(
    system="gpt",
    model_types={"openai-gpt": "OpenAIGPT"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_positions": Setting("positions", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "n_embd": Setting("d_model", COUNT),
        "n_head": Setting("heads", COUNT),
        "resid_pdrop": Setting("dropout", RATE, default=0.1),
        "embd_pdrop": Setting("dropout", RATE, default=0.1),
        "attn_pdrop": Setting("dropout", RATE, default=0.1),
    },
    other_names=gpt2.OTHER_NAMES,
    fixed={"afn": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    multiples={"n_embd": "n_head"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "transformer.tokens_embed.weight",
        "decoder/entrance/position/embedding": "transformer.positions_embed.weight",
        **gpt2.LAYER_WEIGHTS,
    },
    aliases={
        "lm_head.weight": "transformer.tokens_embed.weight",  # a copy
        **{
            f"{part}.*": f"transformer.{part}.*"
            for part in ("tokens_embed", "positions_embed", "h")
        },
    },
    # Constants in old files: the causal mask, and the position ids.
    unused=tuple(
        f"{prefix}{name}"
        for prefix in ("", "transformer.")
        for name in ("position_ids", *(f"h.{n}.attn.bias" for n in range(SIZES["base"]["layers"])))
    ),
    # The output layer is the embedding table, so a folder without a head has all tensors.
    exported_as={"features": "language_modeling"},
)
