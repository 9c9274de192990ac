"""DeBERTa: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with ..." (arXiv:2006.03654)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, integers
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues, LayerCache
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, align_distances
from t5x_like.nn.blocks import Collected, PostNormBlock, Shared, refuse_cross_attention, self_attend
from t5x_like.nn.compute import GELU, Batch, Compute
from t5x_like.nn.embeddings import ContentEmbeddings, LearnedPositions, TokenEmbed
from t5x_like.nn.encoder_heads import Features, MaskedLMHead, Pooler, select_head
from t5x_like.nn.linear import Initializer, LayerNorm
from t5x_like.nn.matrix_product import product
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import Stack, remat_policy, unrolls
from t5x_like.systems import bert
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    AttentionConfig,
    DropoutConfig,
    InitConfig,
    System,
    Task,
    adaptation,
    head_width,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DebertaConfig(InitConfig, DropoutConfig, AttentionConfig):
    """The settings of a DeBERTa of version 1.

    Attributes:
        decoder_steps: n, the number of layers of the mask decoder, as they are applied.
        shared_steps: whether these n layers are one layer, the encoder's last; otherwise the first
            is the encoder's last, and n - 1 layers exist only in pretraining.
    """

    head: str | Mapping[str, Any] = "masked_lm"
    labels: int = 2
    vocab_size: int = 50265
    positions: int = 512
    relative_span: int = 512
    terms: str = "c2p|p2c"
    mask_decoder: bool = True
    decoder_steps: int = 2
    shared_steps: bool = True
    layers: int
    d_model: int
    d_ff: int
    heads: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedConfig(DebertaConfig):
    """The settings of any version; systems/deberta_v2.py describes what versions 2 and 3 add."""

    relative_buckets: int = 0
    relative_norm: bool = False
    share_projections: bool = False
    key_bias: bool = False


def _size(layers: int, d_model: int, heads: int) -> DebertaConfig:
    return DebertaConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, DebertaConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

# Parameters of the mask decoder, which a BERT lacks.
MASK_DECODER = ("encoder/layers/position/", "encoder/layers/steps/")
OLDER_DEFAULTS = {**EARLIER_INIT, "decoder_steps": 2, "shared_steps": True}

TERMS: dict[str, tuple[str, ...]] = {  # score terms, besides content to content (table 4)
    "c2p|p2c": ("c2p", "p2c"),
    "c2p": ("c2p",),
    "p2c": ("p2c",),
    "none": (),
}
NORM = functools.partial(LayerNorm, epsilon=1e-7)


# ---- Disentangled attention: content and relative position have separate vectors.


def relative_rows(distances: Sequence[int] | np.ndarray, *, span: int, buckets: int) -> np.ndarray:
    """Return the rows of the table of relative positions for distances i - j of query i and key j.

    Without buckets, the row is delta(i, j) of He et al. 2020, equation 3: the distance + k, clamped
    to [0, 2k - 1]. With buckets, distances up to `buckets` / 2 have separate rows; longer distances
    share rows on a logarithmic scale up to `span` (DeBERTa's code from version 2 on).

    Args:
        span: k, the distance beyond which all distances share a row.
        buckets: half the number of rows; 0 for 2k rows without a logarithmic scale.
    """
    distances = np.asarray(distances)
    if not buckets:
        return np.clip(distances + span, 0, 2 * span - 1)
    middle = buckets // 2
    lengths = np.abs(distances)
    # In float32 like the authors' code: if a logarithm is near a whole number, rounding chooses the
    # bucket.
    ratio = np.maximum(lengths, middle).astype(np.float32) / np.float32(middle)
    scale = np.log(np.float32((span - 1) / middle))
    far = np.ceil(np.log(ratio) / scale * np.float32(middle - 1)) + middle
    bucket = np.where(lengths <= middle, distances, far * np.sign(distances))
    return np.clip(bucket.astype(int) + buckets, 0, 2 * buckets - 1)


class DisentangledAttention(Attention):
    """Self-attention with scores of content and position (He et al. 2020, section 3.1, equation 4).

    With q and k projected from the tokens, and q^r and k^r from row d of a table of relative
    positions, the score before scaling is the sum of the terms

        q_i k_j + q_i k^r_d + k_j q^r_d,     d = delta(i, j).

    In the last term, position to content ("p2c"), the paper has delta(j, i), but the released code,
    with which the weights were trained, has delta(i, j), as here. No array of T x S vectors is
    made: both position terms are products with the T + S - 1 rows of the distances that occur,
    shifted to their positions.

    The table, [R, D], is `Shared.extra`: see `RelativeTable`.

    Attributes:
        terms: the position terms, out of "c2p" and "p2c". `scale` should be
            (K * (1 + len(terms)))^-0.5.
        make_rows: distances -> rows of the table.
        share_projections: whether k^r and q^r are projected with the kernels of k and q.
        use_bias: may also name `position_key` and `position_query`, the projections of the table.
    """

    terms: tuple[str, ...] = dataclasses.field(kw_only=True)
    make_rows: Callable[[np.ndarray], np.ndarray] = dataclasses.field(kw_only=True)
    share_projections: bool = False

    def setup(self) -> None:
        super().setup()
        if self.share_projections:
            return
        if "c2p" in self.terms:
            self.position_key = self._into_heads(
                "position_key", self.heads, "heads", self.kernel_init
            )
        if "p2c" in self.terms:
            self.position_query = self._into_heads(
                "position_query", self.heads, "heads", self.kernel_init
            )

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"] | None]:
        """Return the query, and the scaled position terms plus `bias`."""
        del mask
        key, _ = keys_values.by_position()
        targets, sources = query.shape[1], key.shape[1]
        rows = self.make_rows(np.arange(targets - 1, -sources, -1))
        parts = [] if bias is None else [bias]
        if "c2p" in self.terms:
            table = (self.key if self.share_projections else self.position_key)(extra)
            parts.append(self._scores(query, table[rows], keys=sources))
        if "p2c" in self.terms:
            # Here keys take the role of queries, so that the order of the distances is reversed.
            table = (self.query if self.share_projections else self.position_query)(extra)
            scores = self._scores(key, table[rows[::-1]], keys=targets)
            parts.append(jnp.swapaxes(scores, 2, 3))
        return query, sum(parts[1:], start=parts[0]) if parts else None

    def _scores(
        self, x: Float[Array, "B T H K"], table: Float[Array, "R H K"], *, keys: int
    ) -> Float[Array, "B H T S"]:
        scores = product("BTHK,RHK->BHTR", x * self.scale_factor, table)
        return align_distances(scores, keys=keys)


class RelativeTable(nn.Module):
    """The table of relative positions, which all layers share, for `Shared.extra`.

    Attributes:
        rows: R.
        features: D.
        make_norm: factory of a norm of the rows, or None.
        compute: its `dropout` is applied to the table; all layers share the dropout mask, whereas
            in the authors' code each layer draws another mask.
    """

    rows: int
    features: int
    embedding_init: Initializer
    make_norm: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, shared: Shared) -> Float[Array, "R D"]:
        """Return the table, in `compute.dtype`."""
        init = nn.with_logical_partitioning(self.embedding_init, ("positions", "embed"))
        x = self.param("embedding", init, (self.rows, self.features))
        x = x.astype(self.compute.dtype)
        if self.make_norm is not None:
            x = self.make_norm(name="norm")(x)
        return nn.Dropout(self.compute.dropout)(x, shared.deterministic)


# ---- A stack with a mask decoder as its last layer, or another module beside its first layer.


class MaskDecoderBlock(PostNormBlock):
    """A layer whose self-attention computes keys and values from `shared.memory`, if it is given.

    Without `shared.memory` they are computed from the layer's input. The same layer can thus be a
    layer of an encoder and a step of a mask decoder. It has no cross-attention.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def _self_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, KeyValues | None, Array | None]:
        y, updated, scores = self_attend(
            self.self_attention, x, shared, cache, context=shared.memory
        )
        return self._sublayer_output(x, y, self.self_attention_norm, shared), updated, scores

    def _cross_attend(
        self, x: Array, shared: Shared, cache: LayerCache | None
    ) -> tuple[Array, None, None]:
        return x, None, None  # `shared.memory` is for self-attention


class MaskDecoderStack(nn.Module):
    """A `Stack` whose last layer may be a mask decoder, with or without a module beside the first.

    The enhanced mask decoder of He et al. 2020, section 3.2: let H be the output of all layers
    except the last, and P the embeddings of absolute positions, which are used nowhere else. The
    last layer is applied to H + P, and each further layer to the output of the layer before it; the
    keys and values of all are computed from H.

    Attributes:
        make_stack: factory of a `Stack` of `MaskDecoderBlock`s.
        make_positions: factory of the embeddings P; None for a stack without a mask decoder.
        steps: n, how many layers the mask decoder applies.
        make_steps: factory of a `Stack` of the n - 1 further layers; None if the last layer is
            applied n times.
        make_neighbors: factory of `neighbors(x, y, shared) -> y` for the first layer's input x and
            output y, or None.
    """

    make_stack: Callable[..., nn.Module]
    make_positions: Callable[..., nn.Module] | None = None
    steps: int = 2
    make_steps: Callable[..., nn.Module] | None = None
    make_neighbors: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.stack = self.make_stack()
        if self.make_positions is not None:
            self.position = self.make_positions()
        self.further = None if self.make_steps is None else self.make_steps(name="steps")
        if self.make_neighbors is not None:
            self.neighbors = self.make_neighbors()

    def __call__(
        self, x: Float[Array, "B L D"], shared: Shared, per_layer: PyTree
    ) -> tuple[Float[Array, "B L D"], PyTree]:
        """Return the output of the last layer, and the arrays that `shared.collect` names."""
        if self.make_positions is None and self.make_neighbors is None:
            return self.stack(x, shared, per_layer)
        if self.is_initializing():  # Flax creates the parameters of the layers when they are called
            for stack in (self.stack, self.further):
                if stack is not None:
                    stack(x, shared, per_layer)
        begin, end, outs = 0, self.stack.layers, []
        if self.make_neighbors is not None:
            y, out = self._run(self.stack, x, shared, 0, 1)
            x, begin = self.neighbors(x, y, shared), 1
            outs.append(_with_states(out, x))
        if self.make_positions is None:
            x, out = self._run(self.stack, x, shared, begin, end)
            return x, _join([*outs, out])
        x, out = self._run(self.stack, x, shared, begin, end - 1)
        shared = dataclasses.replace(shared, memory=x)
        x = x + self.position(shared.positions, length=x.shape[1])
        for step in range(self.steps):
            if step == 0 or self.further is None:
                x, last = self._run(self.stack, x, shared, end - 1, end)
            else:
                x, last = self._run(self.further, x, shared, step - 1, step)
        return x, _join([*outs, out, last])

    def _run(
        self, stack: Any, x: Array, shared: Shared, begin: int, end: int
    ) -> tuple[Array, PyTree]:
        """Run the layers from `begin` to before `end`; return the output and what they collected.

        Linen's scan runs all layers of a stack, so the block is applied as a function.
        """
        in_a_row = unrolls(stack.compute, stack.layers)
        block = stack.make_block(parent=None)
        params = nn.unbox(stack.variables["params"])
        keys = None
        if self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), end - begin)

        def apply(x: Array, params: PyTree, key: Array | None) -> tuple[Array, PyTree]:
            rngs = None if key is None else {"dropout": key}
            return block.apply({"params": params}, x, shared, None, rngs=rngs)

        remat = stack.compute.remat
        if remat != "none":
            policy = remat_policy(remat)
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=in_a_row)
        if "block" in params:
            sliced = jax.tree.map(lambda p: p[begin:end], params["block"])
            return jax.lax.scan(
                lambda x, layer: apply(x, *layer), x, (sliced, keys), unroll=in_a_row
            )
        outs = []
        for n in range(begin, end):
            x, out = apply(x, params[f"layer_{n}"], None if keys is None else keys[n - begin])
            outs.append(out)
        return x, jax.tree.map(lambda *layers: jnp.stack(layers), *outs) if outs else None


def _with_states(out: PyTree, x: Array) -> PyTree:
    """Replace the collected hidden states of a layer by x, if hidden states are collected."""
    if not isinstance(out, Collected) or out.hidden_states is None:
        return out
    return dataclasses.replace(out, hidden_states=x[None])


def _join(outs: list[PyTree]) -> PyTree:
    outs = [out for out in outs if out is not None]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outs) if outs else None


def build(config: DebertaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "masked_lm" or a head of `select_head`; `terms` is one of TERMS, the
            terms of the attention scores; `mask_decoder` is whether the head "masked_lm" uses the
            enhanced mask decoder (section 3.2); `relative_span` is k.

    Raises:
        ValueError: the head or the terms are unknown, the mask decoder has no step, or its settings
            are changed and not read.
    """
    return network(config.to(ReleasedConfig))


def network(
    config: ReleasedConfig,
    heads: Mapping[str, Callable[..., nn.Module]] | None = None,
    *,
    make_neighbors: Callable[..., nn.Module] | None = None,
) -> "DisentangledEncoder":
    """Build the network of any version.

    Args:
        config: see `build`, and `deberta_v2.build` for the other settings.
        heads: {name: factory} of further heads.
        make_neighbors: see `MaskDecoderStack`.

    Raises:
        ValueError: the head or the terms are unknown, the mask decoder has no step, or its settings
            are changed and not read.
    """
    make_pooler = functools.partial(
        Pooler, activation=GELU, kernel_init=config.init, compute=config.compute
    )
    make_masked_lm = bert.masked_lm(config, make_norm=NORM)
    all_heads: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "features": Features,
        **(heads or {}),
    }
    return DisentangledEncoder(
        make_embeddings=embeddings(config, ContentEmbeddings),
        make_encoder=_tower(config, make_neighbors),
        make_head=select_head(config, all_heads, make_pooler=make_pooler, kernel_init=config.init),
    )


def embeddings(config: ReleasedConfig, kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a factory of the token embeddings, without positions; `kind` is their class."""
    return functools.partial(
        kind,
        make_tokens=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        ),
        make_norm=functools.partial(NORM, compute=config.compute),
    )


class DisentangledEncoder(Encoder):
    """An `Encoder` whose padding does not attend to text, as in the released code."""

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask: all tokens of a document attend to each other."""
        segments = batch["encoder_segment_ids"]
        return AttentionMask(query_segments=segments, key_segments=segments)


def _tower(
    config: ReleasedConfig, make_neighbors: Callable[..., nn.Module] | None
) -> Callable[..., nn.Module]:
    """Return a factory of the layers, with the table of relative positions that they share."""
    decodes = config.mask_decoder and config.head == "masked_lm"
    further = config.decoder_steps - 1
    if further < 0:
        raise ValueError(
            f"model.decoder_steps={config.decoder_steps} must be 1 or more; for no mask decoder "
            "set model.mask_decoder=False"
        )
    if not config.mask_decoder:
        unread = ("decoder_steps", "shared_steps")
        config.check_unread(*unread, because="model.mask_decoder=False")
    elif not further:
        config.check_unread("shared_steps", because="model.decoder_steps=1")
    make_layers = functools.partial(Stack, make_block=block(config), compute=config.compute)
    make_stack = functools.partial(
        MaskDecoderStack,
        make_stack=functools.partial(make_layers, layers=config.layers),
        steps=config.decoder_steps,
        make_steps=functools.partial(make_layers, layers=further)
        if decodes and further and not config.shared_steps
        else None,
        make_positions=functools.partial(
            LearnedPositions,
            length=config.positions,
            features=config.d_model,
            embedding_init=config.init,
            compute=config.compute,
        )
        if decodes
        else None,
        make_neighbors=make_neighbors,
    )
    return functools.partial(
        Tower,
        make_stack=make_stack,
        make_extra=_relative_table(config) if _terms(config) else None,
        compute=config.compute,
    )


def _relative_table(config: ReleasedConfig) -> Callable[..., nn.Module]:
    """Return a factory of the table of relative positions, which all layers share."""
    return functools.partial(
        RelativeTable,
        rows=2 * (config.relative_buckets or config.relative_span),
        features=config.d_model,
        embedding_init=config.init,
        make_norm=functools.partial(NORM, compute=config.compute) if config.relative_norm else None,
        compute=config.compute,
    )


def _terms(config: ReleasedConfig) -> tuple[str, ...]:
    return choose("model.terms", config.terms, TERMS)


def block(config: ReleasedConfig) -> Callable[..., nn.Module]:
    """Return a factory of BERT's layer with disentangled attention (section 3.1)."""
    terms = _terms(config)
    width = head_width(config)
    keyed = ("key", "position_key") if config.key_bias else ()
    return functools.partial(
        MaskDecoderBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            DisentangledAttention,
            heads=config.heads,
            width=width,
            scale=(width * (1 + len(terms))) ** -0.5,
            terms=terms,
            make_rows=functools.partial(
                relative_rows, span=config.relative_span, buckets=config.relative_buckets
            ),
            share_projections=config.share_projections,
            use_bias=("query", "value", "out", "position_query", *keyed),
            query_init=config.init,
            kernel_init=config.init,
            out_init=config.init,
            compute=config.compute,
        ),
        make_feed_forward=bert.feed_forward(config.d_ff, config.init, config.compute),
        compute=config.compute,
    )


SYSTEM = System(
    name="deberta",
    sizes=SIZES,
    build=build,
    older_defaults=OLDER_DEFAULTS,
    tasks={
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    # Published folders lack the mask decoder.
    adapt=functools.partial(adaptation, new=MASK_DECODER),
)


# DeBERTa, version 1, in Hugging Face's folders.

LAYER, BLOCK = "deberta.encoder.layer.{layer}", "encoder/layers/stack/{layer}"
_OWN = f"{LAYER}.attention.self"

# Shared by the formats of versions 1 and 2, which differ in the attention's projections.
SETTINGS: dict[str, Setting] = {
    "vocab_size": Setting("vocab_size", COUNT),
    "max_position_embeddings": Setting("positions", COUNT),
    "max_relative_positions": Setting("", integers(-1, 2**31 - 1), default=-1),
    "num_hidden_layers": Setting("layers", LAYERS),
    "hidden_size": Setting("d_model", COUNT),
    "intermediate_size": Setting("d_ff", COUNT),
    "num_attention_heads": Setting("heads", COUNT),
    "hidden_dropout_prob": Setting("dropout", RATE, default=0.1),
    "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.1),
    "pooler_dropout": Setting("", RATE, default=0.0),
    "legacy": Setting("", FLAG, default=True),  # selects between two names of the same head
}
FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "pooler_hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "tie_word_embeddings": True,
}
ALIASES: dict[str, str] = {
    "*.gamma": "*.weight",  # the names of norms in the oldest files
    "*.beta": "*.bias",
    "embeddings.*": "deberta.embeddings.*",  # a model without a head
    "encoder.*": "deberta.encoder.*",
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",  # copies
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    # The head of files with legacy=False.
    "lm_predictions.lm_head.dense.*": "cls.predictions.transform.dense.*",
    "lm_predictions.lm_head.LayerNorm.*": "cls.predictions.transform.LayerNorm.*",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}


def weights_without_attention() -> WeightMap:
    """Map the embeddings, the heads, and the layers except query, key and value projections."""
    return {
        "embeddings/token/embedding": "deberta.embeddings.word_embeddings.weight",
        **norm("embeddings/norm", "deberta.embeddings.LayerNorm"),
        "encoder/extra/embedding": "deberta.encoder.rel_embeddings.weight",
        f"{BLOCK}/self_attention/out/kernel": (
            f"{LAYER}.attention.output.dense.weight",
            "D (H K) -> H K D",
        ),
        f"{BLOCK}/self_attention/out/bias": f"{LAYER}.attention.output.dense.bias",
        **norm(f"{BLOCK}/self_attention_norm", f"{LAYER}.attention.output.LayerNorm"),
        **dense(f"{BLOCK}/feed_forward/wi", f"{LAYER}.intermediate.dense"),
        **dense(f"{BLOCK}/feed_forward/wo", f"{LAYER}.output.dense"),
        **norm(f"{BLOCK}/feed_forward_norm", f"{LAYER}.output.LayerNorm"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/summary/dense", "pooler.dense"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/answer", "qa_outputs"),
    }


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the terms and span of relative positions; folders have no mask decoder."""
    if config.get("legacy") is False and any(name.startswith("cls.predictions.") for name in names):
        raise ValueError(  # Hugging Face's class would randomly initialize its head
            "config.json has legacy=False; allowed: True, where the head's tensors are named "
            "cls.predictions"
        )
    if config.get("position_biased_input", True) is not False:
        raise ValueError(
            "config.json has position_biased_input="
            f"{config.get('position_biased_input', True)!r}; allowed: False"
        )
    kinds = config.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    terms = {tuple(sorted(value)): name for name, value in TERMS.items()}
    if not isinstance(kinds, list) or tuple(sorted(map(str, kinds))) not in terms:
        raise ValueError(
            f"config.json has pos_att_type={config['pos_att_type']!r}; allowed: lists of 'c2p' and "
            "'p2c'"
        )
    if config.get("relative_attention", False) is not bool(kinds):
        raise ValueError(
            f"config.json has relative_attention={config.get('relative_attention', False)!r} with "
            f"pos_att_type={kinds!r}; allowed: True with 'c2p' or 'p2c', False without"
        )
    span = config.get("max_relative_positions", -1)
    return {
        "terms": terms[tuple(sorted(kinds))],
        "relative_span": span if span > 0 else settings["positions"],
        "mask_decoder": False,
    }


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the settings of config.json: the inverse of `derive_settings`."""
    if settings["head"] == "masked_lm" and settings["mask_decoder"]:
        raise ValueError(
            "model.mask_decoder=True: Hugging Face has no DeBERTa with the mask decoder: the "
            "encoder without a head is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    terms = list(TERMS[settings["terms"]])
    return {
        "position_biased_input": False,
        "relative_attention": bool(terms),
        "pos_att_type": terms,
        "max_relative_positions": settings["relative_span"],
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "multiple_choice":
        raise ValueError(
            "Hugging Face has no DeBERTa of version 1 with model.head='multiple_choice'"
        )
    return derive_config(settings)


def _attention() -> WeightMap:
    here = f"{BLOCK}/self_attention"
    weights: dict[str, str | tuple[str, str]] = {
        # In the file one tensor has the query, key and value of each head next to each other.
        f"{here}/{name}/kernel": (f"{_OWN}.in_proj.weight", f"(H {n}/3 K) D -> D H K")
        for n, name in enumerate(("query", "key", "value"))
    }
    return {
        **weights,
        f"{here}/query/bias": (f"{_OWN}.q_bias", "(H K) -> H K"),
        f"{here}/value/bias": (f"{_OWN}.v_bias", "(H K) -> H K"),
        f"{here}/position_key/kernel": (f"{_OWN}.pos_proj.weight", "(H K) D -> D H K"),
        f"{here}/position_query/kernel": (f"{_OWN}.pos_q_proj.weight", "(H K) D -> D H K"),
        f"{here}/position_query/bias": (f"{_OWN}.pos_q_proj.bias", "(H K) -> H K"),
    }


HUGGING_FACE = HuggingFaceFormat(
    system="deberta",
    model_types={"deberta": "Deberta"},
    defaults=SIZES["base"],
    settings=SETTINGS,
    fixed={**FIXED, "talking_head": False},
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=derive_settings,
    derive_config=_derive_config,
    weights={**weights_without_attention(), **_attention()},
    aliases=ALIASES,
)
