"""XLNet: Yang et al. 2019, "Generalized Autoregressive Pretraining ..." (arXiv:1906.08237)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, integers, or_null
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.nn.blocks import Collected, Shared
from t5x_like.nn.compute import GELU, Batch, Compute, Outputs
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import (
    Features,
    LastTokenChoiceHead,
    LastTokenHead,
    Pooler,
    select_head,
)
from t5x_like.nn.linear import MLP, Initializer, LayerNorm
from t5x_like.nn.networks import Encoder, Tower, empty_memory
from t5x_like.nn.stack import Stack, rows_first
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    AttentionConfig,
    DropoutConfig,
    InitConfig,
    System,
    Task,
    head_width,
)
from t5x_like.systems.xlnet.two_streams import (
    OrderMask,
    Sides,
    Streams,
    TwoSidedAttention,
    TwoStreamBlock,
    remembered,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class XlnetConfig(InitConfig, DropoutConfig, AttentionConfig):
    """The settings of an XLNet.

    Attributes:
        memory: the number of remembered tokens before a row.
        longest_distance: distances beyond it count as it (the code's `clamp_len`); 0: no limit.
        backward_half: whether the text of the second half of a batch's rows runs backward, if the
            batch does not name these rows (the code's `bi_data`).
    """

    head: str | Mapping[str, Any] = "language_modeling"
    labels: int = 2
    vocab_size: int = 32000
    token_types: int = 3
    memory: int = 384
    longest_distance: int = 0
    backward_half: bool = False
    layers: int
    d_model: int
    d_ff: int
    heads: int

    @property
    def init(self) -> Initializer:
        """The initializer of all weights, not truncated as BERT's is."""
        return nn.initializers.normal(self.initializer_range)


def _size(layers: int, d_model: int, heads: int) -> XlnetConfig:
    return XlnetConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, XlnetConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

NORM = functools.partial(LayerNorm, epsilon=1e-12)


class OutputLayer(nn.Module):
    """The output layer: products with the token embeddings, plus a learned bias for each token."""

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32: [B, P, V] at `predicted_positions`, without these [B, L, V]."""
        return {"logits": TiedHead(use_bias=True, name="output")(hidden, table)}


CONTENT, QUERY = "content", "query"


class PermutedEncoder(Encoder):
    """An encoder whose tokens are predicted in any order (Yang et al. 2019, section 2.3).

    If the batch has `predicted_positions`, the head reads the stream of queries at these positions;
    otherwise it reads the content stream, as in fine-tuning.

    A batch has the fields that an `Encoder` reads, and optionally

        encoder_order        int32 [B, L], the rank of each token in the order of prediction, from
                             0: its content attends to tokens of the same and lower ranks, its query
                             only to tokens of lower ranks; without it all attend to all
        encoder_visible      bool [B, L, L], which tokens each token attends to: any relation, of
                             which an order is a special case
        predicted_positions  int32 [B, P], the positions of the queries
        encoder_token_types  int32 [B, L], segments
        reversed             int32 [B], 1 if the row's text runs from its end to its beginning
        memory               from `predict` for the preceding batch, or from `first_memory`
        continued            int32 [B], 0 if the row does not continue the preceding row's text
        reused               int32 [B], the number of tokens after which the next row continues

    Attributes:
        make_embeddings: factory of a `TokenEmbed`.
        make_encoder: factory of a tower of `TwoStreamBlock`s.
        layers: N.
        memory: M, the number of preceding tokens that a row attends to; 0 for none.
        query_init: initializer of w, the initial vector of every query.
        backward_half: see `XlnetConfig`.
        compute: its `dropout` is also applied to the states that the head reads, where it never
            broadcasts over positions.
    """

    layers: int = dataclasses.field(kw_only=True)
    memory: int = dataclasses.field(kw_only=True)
    query_init: Initializer = dataclasses.field(kw_only=True)
    backward_half: bool = False
    compute: Compute = Compute()

    def setup(self) -> None:
        super().setup()
        init = nn.with_logical_partitioning(self.query_init, ("embed",))
        self.first_query = self.param("first_query", init, (self.embeddings.features,))
        self.drop = nn.Dropout(self.compute.dropout)

    def table(self) -> Float[Array, "V D"]:
        """Return the embedding table, for a head that is tied to it."""
        return self.embeddings.embedding

    def first_memory(self, batch: Batch) -> PyTree:
        """Return the memory before the first batch, see `empty_memory`."""
        return empty_memory(
            self.make_embeddings(parent=None),
            rows=len(batch["encoder_input_tokens"]),
            layers=self.layers,
            size=self.memory,
        )

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        carry = {CONTENT: self.embeddings(batch["encoder_input_tokens"])}
        if "predicted_positions" in batch:
            rows = batch["predicted_positions"].shape
            query = self.first_query.astype(carry[CONTENT].dtype)
            carry[QUERY] = jnp.broadcast_to(query, (*rows, len(query)))
        memory = batch.get("memory")
        real = None if memory is None else _real(memory, batch)
        streams = _streams(self._with_directions(batch), real)
        shared = Shared(
            mask=streams.masks[CONTENT],
            tokens=batch["encoder_input_tokens"],
            extra=streams,
            deterministic=deterministic,
            collect=collect,
        )
        per_layer = None
        if memory is not None:
            per_layer = self.encoder.layers.split(jnp.swapaxes(memory["hidden"], 0, 1))
        last, per_layer = self.encoder(carry, shared, per_layer)
        hidden = self.drop(last[QUERY if QUERY in last else CONTENT], deterministic)
        if collect:
            per_layer = _of_content(per_layer)
        return hidden, {"encoder": per_layer}

    def _with_directions(self, batch: Batch) -> Batch:
        """Return the batch, with `reversed` if half of its rows run backward.

        Raises:
            ValueError: half of the rows do, and their number is odd.
        """
        if not self.backward_half or "reversed" in batch:
            return batch
        rows = len(batch["encoder_input_tokens"])
        if rows % 2 and not self.is_initializing():
            raise ValueError(
                f"a batch of {rows} rows: with bi_data (model.backward_half) the second half runs "
                "backward, so their number must be even"
            )
        return {**batch, "reversed": (jnp.arange(rows) >= rows // 2).astype(jnp.int32)}

    def predict(self, batch: Batch, *, deterministic: bool = True) -> tuple[Outputs, PyTree]:
        """Return the outputs of the head and the next memory, which is {} if the batch has none."""
        hidden, collected = self._encode(batch, deterministic=deterministic, collect=())
        outputs = self.head(hidden, self.table(), batch, deterministic=deterministic)
        if "memory" not in batch:
            return outputs, {}
        after = rows_first(collected["encoder"])
        real = jnp.concatenate(
            [_real(batch["memory"], batch), batch["encoder_segment_ids"] > 0], axis=1
        )
        real = remembered(real, batch.get("reused"), size=self.memory)
        return outputs, {"hidden": after, "real": real}


def _real(memory: PyTree, batch: Batch) -> Array:
    """Return which tokens of the memory exist and belong to the text that the row continues."""
    real = memory["real"]
    return real & (batch["continued"] > 0)[:, None] if "continued" in batch else real


def _of_content(collected: Collected) -> Collected:
    """Return the collected arrays of the content stream."""

    def content(streams: PyTree) -> PyTree:
        return None if streams is None else streams[CONTENT]

    return Collected(
        hidden_states=content(collected.hidden_states),
        attention_scores=content(collected.attention_scores),
    )


def _streams(batch: Batch, real: Array | None) -> Streams:
    """Return the masks and other inputs of the attention of all streams.

    Args:
        real: which tokens of the memory exist, bool [B, M]; None without a memory.

    Raises:
        ValueError: the batch has positions to predict, but neither an order nor visible tokens.
    """
    positions: dict[str, Array | None] = {CONTENT: None}
    masks = {CONTENT: _mask(batch, real, None)}
    blind = None
    if "predicted_positions" in batch:
        if "encoder_order" not in batch and "encoder_visible" not in batch:
            raise ValueError(
                "this head predicts tokens in an order, and the batch has none: set "
                "data.objective='xlnet', or model.head to one for the labels"
            )
        positions[QUERY] = at = batch["predicted_positions"]
        masks[QUERY] = _mask(batch, real, at)
        keys = batch["encoder_segment_ids"].shape[1] + (0 if real is None else real.shape[1])
        seen: Any = masks[QUERY].dense(queries=at.shape[1], keys=keys)
        blind = ~jnp.any(seen, axis=(1, -1))
    return Streams(
        masks=masks,
        extras={name: _sides(batch, real, at) for name, at in positions.items()},
        blind=blind,
        reused=batch.get("reused"),
    )


def _mask(batch: Batch, real: Array | None, at: Array | None) -> OrderMask:
    """Return the mask of the content stream, or of the queries at the positions `at`."""
    segments, order = batch["encoder_segment_ids"], batch.get("encoder_order")
    return OrderMask(
        # In rows of one document padding may attend to it, so that no segments are compared.
        query_segments=_take(segments, at) if "encoder_positions" in batch else None,
        key_segments=_after(real, segments, real),
        query_ranks=None if order is None else _take(order, at),
        key_ranks=None if order is None else _after(real, order, -1),
        visible=_visible(batch, real, at),
        own=at is None,
    )


def _visible(batch: Batch, real: Array | None, at: Array | None) -> Array | None:
    """Return which keys of the memory and of the row each query may attend to; None for all."""
    visible = batch.get("encoder_visible")
    if visible is None:
        return None
    if at is not None:
        visible = jnp.take_along_axis(visible, at[..., None], axis=1)
    if real is None:
        return visible
    return jnp.pad(visible, ((0, 0), (0, 0), (real.shape[1], 0)), constant_values=True)


def _sides(batch: Batch, real: Array | None, at: Array | None) -> Sides:
    """Return the slots and segments of the content stream, or of the queries at `at`."""
    size = 0 if real is None else real.shape[1]
    types = batch.get("encoder_token_types")
    return Sides(
        memory=size,
        slots=None if at is None else at + size,
        query_types=None if types is None else _take(types, at),
        # In the authors' code the memory belongs to the first segment.
        key_types=None if types is None else _after(real, types, 0),
        backward=batch["reversed"] > 0 if "reversed" in batch else None,
    )


def _take(row: Array, at: Array | None) -> Array:
    return row if at is None else jnp.take_along_axis(row, at, axis=1)


def _after(real: Array | None, row: Array, before: Any) -> Array:
    """Prepend the value `before` to a row, for each token of the memory if there is one."""
    if real is None:
        return row
    before = jnp.broadcast_to(jnp.asarray(before, row.dtype), real.shape)
    return jnp.concatenate([before, row], axis=1)


def build(config: XlnetConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "language_modeling" or a head of `select_head`; `memory` is the number
            of tokens before a row that it attends to, 0 for none; `token_types` is the number of
            segments ([CLS] has the last); the network only compares segments.

    Raises:
        ValueError: the head is unknown. (The network raises it when it is initialized if
            `d_model` is odd.)
    """
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    of_row = {
        "make_pooler": make_pooler,
        "kernel_init": config.init,
        "dropout": config.dropout,
    }
    heads: dict[str, Callable[..., nn.Module]] = {
        "language_modeling": OutputLayer,
        "multiple_choice": functools.partial(LastTokenChoiceHead, **of_row),
        "features": Features,
    }
    return PermutedEncoder(
        make_embeddings=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        ),
        make_encoder=tower(config),
        make_head=select_head(
            config,
            heads,
            make_pooler=make_pooler,
            kernel_init=config.init,
            make_row=functools.partial(LastTokenHead, **of_row),
        ),
        layers=config.layers,
        memory=config.memory,
        query_init=config.init,
        backward_half=config.backward_half,
        compute=config.compute,
    )


def tower(config: XlnetConfig) -> Callable[..., nn.Module]:
    """Return a factory of a tower of BERT's layers, with XLNet's attention and two streams."""
    block = functools.partial(
        TwoStreamBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            TwoSidedAttention,
            heads=config.heads,
            width=head_width(config),
            features=config.d_model,
            longest_distance=config.longest_distance or None,
            query_init=config.init,
            kernel_init=config.init,
            out_init=config.init,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=GELU,
            use_bias=True,
            wi_init=config.init,
            wo_init=config.init,
            drop_hidden=True,
            compute=config.compute,
        ),
        compute=config.compute,
    )
    stack = functools.partial(Stack, make_block=block, layers=config.layers, compute=config.compute)
    return functools.partial(Tower, make_stack=stack, compute=config.compute)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: PyTree,
    predicted: float = 0.17,
) -> tuple[losses.LossSums, PyTree]:
    """Return the cross-entropy of the last tokens in the order (section 2.3, equation 5).

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; {} for a network without memory.
        predicted: the number of positions with a query, as a share of the row's length: at least
            the share of the tokens that the objective predicts.

    Returns:
        The loss, and the memory for the next batch.
    """
    (outputs, memory), predicted_tokens = losses.predict_masked(
        module,
        params,
        {**batch, "memory": carry} if carry else batch,
        rng,
        share=predicted,
        method="predict",
    )
    return predicted_tokens.cross_entropy(outputs["logits"]), memory


SYSTEM = System(
    name="xlnet",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, "longest_distance": 0, "backward_half": False},
    tasks={
        "language_modeling": Task(
            loss=loss, carry=lambda module, batch: module.first_memory(batch)
        ),
        **ENCODER_TASKS,
    },
)


# XLNet in Hugging Face's folders.

_NO_LIMIT = -1  # of clamp_len

_LAYER, _BLOCK = "transformer.layer.{layer}", "encoder/layers/{layer}"
_THEIRS, _OURS = f"{_LAYER}.rel_attn", f"{_BLOCK}/self_attention"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    width = settings["d_model"] // settings["heads"]
    if config.get("d_head") not in (width, None):
        raise ValueError(
            f"config.json has d_head={config['d_head']!r}; allowed: d_model / n_head = {width}"
        )
    limit = config.get("clamp_len", _NO_LIMIT)
    return {"memory": config.get("mem_len") or 0, "longest_distance": max(limit, 0)}


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "question_answering":
        raise ValueError(
            "model.head='question_answering': Hugging Face's XLNetForQuestionAnswering is another "
            "head, which searches with beams: the encoder without a head is written by "
            "from_pretrained(folder, head='features').save_pretrained(NEW_FOLDER)"
        )
    return {
        "d_head": settings["d_model"] // settings["heads"],
        "mem_len": settings["memory"] or None,
        "clamp_len": settings["longest_distance"] or _NO_LIMIT,
    }


def _attention() -> WeightMap:
    return {
        **{f"{_OURS}/{name}/kernel": f"{_THEIRS}.{name[0]}" for name in ("query", "key", "value")},
        f"{_OURS}/out/kernel": (f"{_THEIRS}.o", "D H K -> H K D"),
        f"{_OURS}/distance_kernel": f"{_THEIRS}.r",
        f"{_OURS}/segments": f"{_THEIRS}.seg_embed",
        f"{_OURS}/content_bias": f"{_THEIRS}.r_w_bias",
        f"{_OURS}/distance_bias": f"{_THEIRS}.r_r_bias",
        f"{_OURS}/segment_bias": f"{_THEIRS}.r_s_bias",
        **norm(f"{_OURS}_norm", f"{_THEIRS}.layer_norm"),
    }


HUGGING_FACE = HuggingFaceFormat(
    system="xlnet",
    model_types={"xlnet": "XLNet"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "d_inner": Setting("d_ff", COUNT),
        "n_head": Setting("heads", COUNT),
        "dropout": Setting("dropout", RATE, default=0.1),
        "summary_last_dropout": Setting("dropout", RATE, default=0.1),
        "mem_len": Setting("", or_null(COUNT), default=None),
        "bi_data": Setting("backward_half", FLAG, default=False),
        "clamp_len": Setting("", integers(_NO_LIMIT, 2**31 - 1), default=_NO_LIMIT),
        # How Hugging Face's class runs by default; they do not affect the network.
        "reuse_len": Setting("", or_null(COUNT), default=None),
        "use_mems_eval": Setting("", FLAG, default=True),
        "use_mems_train": Setting("", FLAG, default=False),
    },
    other_names={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    fixed={
        "ff_activation": "gelu",
        "layer_norm_eps": 1e-12,
        "attn_type": "bi",
        "untie_r": True,
        "same_length": False,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "n_head"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "embeddings/embedding": "transformer.word_embedding.weight",
        "first_query": ("transformer.mask_emb", "0/1 0/1 D -> D"),
        **_attention(),
        **dense(f"{_BLOCK}/feed_forward/wi", f"{_LAYER}.ff.layer_1"),
        **dense(f"{_BLOCK}/feed_forward/wo", f"{_LAYER}.ff.layer_2"),
        **norm(f"{_BLOCK}/feed_forward_norm", f"{_LAYER}.ff.layer_norm"),
        "head/output/bias": "lm_loss.bias",
        # The dense layer on the last token's state, whichever head has it.
        **dense("head/first/dense", "sequence_summary.summary"),
        **dense("head/summary/dense", "sequence_summary.summary"),
        **dense("head/classifier", "logits_proj"),
        **dense("head/choice", "logits_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "lm_loss.weight": "transformer.word_embedding.weight",  # a copy
        "word_embedding.*": "transformer.word_embedding.*",  # a model without a head
        "mask_emb": "transformer.mask_emb",
        "layer.*": "transformer.layer.*",
    },
)
