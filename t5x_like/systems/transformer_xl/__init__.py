"""Transformer-XL: Dai et al. 2019, "Attentive Language Models Beyond a Fixed-Length Context"."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    Allowed,
    Setting,
    integers,
    one_of,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.losses.sums import LossSums, forward, weighted_sum
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues, LayerCache
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, align_distances
from t5x_like.nn.blocks import PostNormBlock, Shared, self_attend
from t5x_like.nn.compute import Batch, Compute, make_dropout
from t5x_like.nn.embeddings import (
    ScaledInputs,
    SinesThenCosines,
    SinusoidalPositions,
    TiedHead,
    TokenEmbed,
    VocabularyProduct,
)
from t5x_like.nn.linear import MLP, Initializer, LayerNorm
from t5x_like.nn.networks import Decoder, Tower, empty_memory
from t5x_like.nn.stack import Stack, rows_first
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task
from t5x_like.systems.transformer_xl.adaptive_softmax import (
    INIT,
    AdaptiveEmbed,
    AdaptiveHead,
    AdaptiveProduct,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TransformerXLConfig(DropoutConfig, AttentionConfig):
    """The settings of a Transformer-XL.

    Attributes:
        memory: M, the number of states before a row that it attends to; 0 for none.
        same_length: whether a token attends to exactly M tokens, up to itself; otherwise to the
            memory and to all tokens of its row up to itself.
        longest_distance: larger distances count as this distance (the code's `clamp_len`); 0: no
            limit.
        sines: the order in the vector of a distance, a name in SINES.
        untied_biases: whether each layer has its own u and v.
        cutoffs: the first words of all clusters but the first, for adaptive embeddings and an
            adaptive softmax; () for one table and one softmax. Words are sorted by frequency.
        cluster_division: the width of a cluster's vectors divided by the width of the next
            cluster's vectors (the code's `div_val`).
    """

    vocab_size: int = 204
    cutoffs: tuple[int, ...] = ()
    cluster_division: int = 1
    memory: int
    same_length: bool = False
    longest_distance: int = 0
    sines: str = "then_cosines"
    untied_biases: bool = False
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int


_WORDS: dict[str, Any] = {"vocab_size": 267_735, "cutoffs": (20_000, 40_000, 200_000)}

# The characters' models of table 2, with the memory of training. The code has no scripts of 18.
SIZES: dict[str, TransformerXLConfig] = {
    "41m": TransformerXLConfig(
        layers=12, d_model=512, d_ff=2048, heads=8, head_width=64, memory=512
    ),
    "277m": TransformerXLConfig(
        layers=24, d_model=1024, d_ff=3072, heads=8, head_width=128, memory=768, dropout=0.15
    ),
    # The models of the words of WikiText-103, table 1.
    "151m": TransformerXLConfig(
        layers=16, d_model=410, d_ff=2100, heads=10, head_width=41, memory=150, **_WORDS
    ),
    "257m": TransformerXLConfig(
        layers=18,
        d_model=1024,
        d_ff=4096,
        heads=16,
        head_width=64,
        memory=384,
        dropout=0.2,
        cluster_division=4,
        **_WORDS,
    ),
}

# `then_cosines` is the order of the released code.
SINES = {"then_cosines": SinesThenCosines, "alternating": SinusoidalPositions}


# ---- Attention whose scores depend on relative positions.


class TransformerXLAttention(Attention):
    """Causal attention whose scores depend on content and on relative position.

    Dai et al. 2019, section 3.3: let q_i be the query in slot i, k_j the key in slot j, and R_d the
    sines and cosines of the distance d. W, u and v are learned. The score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j}.

    The mask must be causal: the score of a key after its query is meaningless.

    Attributes:
        features: D, the width of the sinusoidal vectors; even.
        longest_distance: larger distances count as this distance; None: no limit.
        make_sines: factory of the vectors R_d, `SinusoidalPositions` or a subclass.
        bias_init: initializer of u and v [H, K]; None if all layers share them: `extra` of `attend`
            is then (u, v), see `SharedBiases`.
    """

    features: int = dataclasses.field(kw_only=True)
    longest_distance: int | None = None
    make_sines: Callable[..., nn.Module] = SinusoidalPositions
    bias_init: Initializer | None = nn.initializers.zeros

    def setup(self) -> None:
        super().setup()

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (self.features, self.heads * self.width)
            return self.kernel_init(key, matrix).reshape(shape)

        self.sines = self.make_sines(features=self.features, compute=self.compute)
        self.distance_kernel = self.param(
            "distance_kernel",
            nn.with_logical_partitioning(init, ("embed", "heads", "kv")),
            (self.features, self.heads, self.width),
        )
        if self.bias_init is not None:
            boxed = nn.with_logical_partitioning(self.bias_init, ("heads", "kv"))
            self.content_bias = self.param("content_bias", boxed, (self.heads, self.width))
            self.distance_bias = self.param("distance_bias", boxed, (self.heads, self.width))

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """Return the query plus u, and the scaled scores of the distances plus `bias`."""
        biases = extra if self.bias_init is None else (self.content_bias, self.distance_bias)
        content, distance = (vector.astype(query.dtype) for vector in biases)
        # These are the distances of the last query; for earlier queries they are shifted.
        keys = keys_values.length
        distances = mask.first_slot + query.shape[1] - 1 - jnp.arange(keys)
        if self.longest_distance is not None:
            distances = jnp.minimum(distances, self.longest_distance)
        # einsum takes the cheaper order: for many queries it projects the sines, once for all rows;
        # for one query (a decoding step) it projects the query.
        scores = jnp.einsum(
            "BTHK,DHK,SD->BHTS",
            (query + distance) * self.scale_factor,
            self.distance_kernel.astype(query.dtype),
            self.sines(distances[None], length=keys)[0],
        )
        scores = align_distances(scores, keys=keys)
        return query + content, scores if bias is None else bias + scores


class SharedBiases(nn.Module):
    """u and v of all layers, the `extra` of a tower.

    Attributes:
        heads, width: H and K.
    """

    heads: int
    width: int
    bias_init: Initializer = INIT

    @nn.compact
    def __call__(self, shared: Shared) -> tuple[Float[Array, "H K"], Float[Array, "H K"]]:
        """Return u and v."""
        del shared
        boxed = nn.with_logical_partitioning(self.bias_init, ("heads", "kv"))
        content = self.param("content_bias", boxed, (self.heads, self.width))
        return content, self.param("distance_bias", boxed, (self.heads, self.width))


# ---- Recurrence from row to row.


class RecurrentBlock(PostNormBlock):
    """A post-norm layer that also attends to its inputs of the rows before (section 3.2).

    Attributes:
        window: the number of tokens that a token attends to, up to itself; None: all.
    """

    window: int | None = None

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Return the layer's output, and the next memory if a memory was given.

        Args:
            per_layer: the memory [B, M, D]; or a cache or None, as in a `PostNormBlock`.
        """
        mask = dataclasses.replace(shared.mask, window=self.window)
        shared = dataclasses.replace(shared, mask=mask)
        if per_layer is None or isinstance(per_layer, LayerCache):
            return super().__call__(x, shared, per_layer)
        context = jnp.concatenate([per_layer, x], axis=1)
        y, _, _ = self_attend(self.self_attention, x, shared, None, context=context)
        y = self._sublayer_output(x, y, self.self_attention_norm, shared)
        memory = context[:, x.shape[1] :]
        return self._feed_forward(y, shared), jax.lax.stop_gradient(memory)


class RecurrentDecoder(Decoder):
    """A causal language model whose rows attend to the rows before them (section 3.2).

    `predict` reads row r of a batch as the continuation of row r of the batch before. Other methods
    read texts from their beginning, with all their tokens.

    Attributes:
        layers: N.
        memory: M, the number of states before a row; 0 for none.
        compute: its `dropout` applies to the states that the output layer reads.
    """

    layers: int = dataclasses.field(kw_only=True)
    memory: int = dataclasses.field(kw_only=True)
    compute: Compute = Compute()

    def setup(self) -> None:
        super().setup()
        self.drop = make_dropout(self.compute)

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T D"]:
        """Return the input of the output layer: the last layer's output, with dropout."""
        return self.drop(super().states(batch, deterministic=deterministic), deterministic)

    def logits_product(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """Return the logits as a product, or the log-probabilities of an adaptive softmax."""
        product = self._product(self.states(batch, deterministic=deterministic))
        return product.logits() if isinstance(product, AdaptiveProduct) else product

    def first_memory(self, batch: Batch) -> PyTree:
        """Return the memory before the first batch, see `empty_memory`."""
        return empty_memory(
            self.make_embedding(parent=None),
            rows=len(batch["decoder_input_tokens"]),
            layers=self.layers,
            size=self.memory,
        )

    def predict(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[VocabularyProduct | AdaptiveProduct, PyTree]:
        """Return the logits as a product, and the next memory.

        Args:
            batch: `decoder_input_tokens` and `decoder_loss_weights` [B, T], which are 0 only in
                padding; and `memory`, from `predict` for the batch before or from `first_memory`,
                which a network without memory does not read.
        """
        if not self.memory:
            return self._product(self.states(batch, deterministic=deterministic)), {}
        before, tokens = batch["memory"], batch["decoder_input_tokens"]
        real = jnp.concatenate([before["real"], batch["decoder_loss_weights"] > 0], axis=1)
        mask = AttentionMask(
            key_segments=real.astype(jnp.int32), offset=self.memory, visibility="causal"
        )
        shared = Shared(mask=mask, tokens=tokens, deterministic=deterministic)
        per_layer = self.decoder.layers.split(jnp.swapaxes(before["hidden"], 0, 1))
        x, layers = self.decoder(self.token_embedder(tokens), shared, per_layer)
        product = self._product(self.drop(x, deterministic))
        return product, {"hidden": rows_first(layers), "real": real[:, tokens.shape[1] :]}


def build(config: TransformerXLConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    Raises:
        ValueError: `same_length` without a memory; or the cutoffs are not in order within the
            vocabulary, or divide the width into vectors that are not whole.
    """
    if config.same_length and not config.memory:
        raise ValueError(
            "model.same_length=True needs model.memory: a token attends to as many tokens"
        )
    make_biases = functools.partial(SharedBiases, heads=config.heads, width=config.head_width)
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(ScaledInputs, scale=config.d_model**0.5),
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        make_extra=None if config.untied_biases else make_biases,
        compute=config.compute,
    )
    return RecurrentDecoder(
        make_embedding=_embedding(config),
        make_decoder=tower,
        make_head=AdaptiveHead if config.cutoffs else functools.partial(TiedHead, use_bias=True),
        layers=config.layers,
        memory=config.memory,
        compute=config.compute,
    )


def _embedding(config: TransformerXLConfig) -> Callable[..., nn.Module]:
    sizes = {"vocab_size": config.vocab_size, "features": config.d_model}
    if not config.cutoffs:
        config.check_unread("cluster_division", because="model.cutoffs=()")
        return functools.partial(TokenEmbed, **sizes, embedding_init=INIT, compute=config.compute)
    cutoffs, division = tuple(config.cutoffs), config.cluster_division
    ends = (0, *cutoffs, config.vocab_size)
    if any(end <= start for start, end in itertools.pairwise(ends)):
        raise ValueError(
            f"model.cutoffs={cutoffs} must grow, from above 0 to below model.vocab_size="
            f"{config.vocab_size}"
        )
    if division < 1 or config.d_model % division ** len(cutoffs):
        raise ValueError(
            f"model.cluster_division={division} must be 1 or more, and model.d_model="
            f"{config.d_model} a multiple of its power of {len(cutoffs)}, the number of cutoffs"
        )
    return functools.partial(
        AdaptiveEmbed, **sizes, cutoffs=cutoffs, division=division, compute=config.compute
    )


def _block(config: TransformerXLConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        RecurrentBlock,
        window=config.memory if config.same_length else None,
        make_norm=functools.partial(LayerNorm, epsilon=1e-5, compute=config.compute),
        make_self_attention=functools.partial(
            TransformerXLAttention,
            features=config.d_model,
            longest_distance=config.longest_distance or None,
            make_sines=choose("model.sines", config.sines, SINES),
            bias_init=INIT if config.untied_biases else None,
            heads=config.heads,
            width=config.head_width,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            drop_hidden=True,
            compute=config.compute,
        ),
        compute=config.compute,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: PyTree,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[LossSums, PyTree]:
    """Return the next-token loss, and the memory for the next batch.

    With an adaptive softmax the metrics have no accuracy.

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; {} for a network without memory.

    Raises:
        ValueError: an adaptive softmax with a z-loss or label smoothing, which are for one softmax.
    """
    product, memory = forward(module, params, {**batch, "memory": carry}, rng, method="predict")
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    if isinstance(product, AdaptiveProduct):
        if z_loss or label_smoothing:
            raise ValueError(
                f"loss.z_loss={z_loss} and loss.label_smoothing={label_smoothing} must be 0 with "
                "model.cutoffs"
            )
        # Select, since multiplying by 0 would keep the NaN of a padding position's target.
        nats = jnp.where(weights > 0, -product.log_probs(targets), 0.0)
        return weighted_sum("cross_entropy", nats, weights), memory
    sums = cross_entropy(product, targets, weights, z_loss=z_loss, label_smoothing=label_smoothing)
    return sums, memory


SYSTEM = System(
    name="transformer_xl",
    sizes=SIZES,
    build=build,
    older_defaults={"cutoffs": (), "cluster_division": 1, "sines": "alternating"},
    tasks={
        "": Task(
            loss=loss, prediction="text", carry=lambda module, batch: module.first_memory(batch)
        ),
    },
)


# ---- Transformer-XL in Hugging Face's folders, of the class that transformers 5 no longer has.

_NO_LIMIT = -1  # of `clamp_len`
_CUTOFFS = Allowed(
    "a list of integers",
    lambda value: isinstance(value, list) and all(type(cutoff) is int for cutoff in value),
)
_HERE, _THERE = "decoder/layers/{layer}", "transformer.layers.{layer}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    cutoffs = config["cutoffs"]
    one_of(config["d_model"]).check("d_embed", config["d_embed"])
    ties = [False, *[True] * len(cutoffs)]
    tied = config.get("tie_projs", ties)  # of projections, which equally wide clusters do not have
    if settings["cluster_division"] > 1:
        if not cutoffs:
            raise ValueError("config.json has div_val above 1 and no cutoffs; allowed: div_val=1")
        one_of(ties).check("tie_projs", tied)
    return {
        "cutoffs": tuple(cutoffs),
        "longest_distance": max(config["clamp_len"], 0),
        "sines": "then_cosines",
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    cutoffs = list(settings["cutoffs"])
    return {
        "cutoffs": cutoffs,
        "adaptive": bool(cutoffs),
        "d_embed": settings["d_model"],
        "clamp_len": settings["longest_distance"] or _NO_LIMIT,
        "proj_share_all_but_first": True,  # the class makes `tie_projs` from it
    }


def _layer_weights() -> WeightMap:
    ours, theirs = f"{_HERE}/self_attention", f"{_THERE}.dec_attn"
    return {
        **{
            f"{ours}/{name}/kernel": (f"{theirs}.qkv_net.weight", f"({n}/3 H K) D -> D H K")
            for n, name in enumerate(("query", "key", "value"))
        },
        f"{ours}/out/kernel": (f"{theirs}.o_net.weight", "D (H K) -> H K D"),
        f"{ours}/distance_kernel": (f"{theirs}.r_net.weight", "(H K) D -> D H K"),
        f"{ours}/content_bias": f"{theirs}.r_w_bias",
        f"{ours}/distance_bias": f"{theirs}.r_r_bias",
        **norm(f"{ours}_norm", f"{theirs}.layer_norm"),
        **dense(f"{_HERE}/feed_forward/wi", f"{_THERE}.pos_ff.CoreNet.0"),
        **dense(f"{_HERE}/feed_forward/wo", f"{_THERE}.pos_ff.CoreNet.3"),
        **norm(f"{_HERE}/feed_forward_norm", f"{_THERE}.pos_ff.layer_norm"),
        # Without biases in each layer.
        "decoder/extra/content_bias": "transformer.r_w_bias",
        "decoder/extra/distance_bias": "transformer.r_r_bias",
    }


_TABLE, _BIAS = "transformer.word_emb.emb_layers.{}.weight", "crit.out_layers.{}.bias"
_PROJECTION, _CLUSTERS = "transformer.word_emb.emb_projs.{}", "crit.cluster_{}"


def _vocabulary_weights(settings: Settings) -> WeightMap:
    """Map the tables of all clusters, which are one tensor if all vectors have the same width."""
    starts = (0, *settings["cutoffs"])
    if len(starts) == 1:
        return {
            "token_embedder/embedding": _TABLE.format(0),
            "lm_head/bias": _BIAS.format(0),
        }
    weights: dict[str, str | tuple[str, str]] = {
        "lm_head/cluster_kernel": _CLUSTERS.format("weight"),
        "lm_head/cluster_bias": _CLUSTERS.format("bias"),
    }
    joint = settings["cluster_division"] == 1
    for n, start in enumerate(starts):
        table, bias = f"token_embedder/clusters_{n}/embedding", f"lm_head/bias_{n}"
        if joint:
            end = settings["vocab_size"] - (*starts[1:], settings["vocab_size"])[n]
            weights[table] = (_TABLE.format(0), f"{start}+V+{end} D -> V D")
            weights[bias] = (_BIAS.format(0), f"{start}+V+{end} -> V")
        else:
            weights[table], weights[bias] = _TABLE.format(n), _BIAS.format(n)
            weights[f"token_embedder/projection_{n}"] = (_PROJECTION.format(n), "D E -> E D")
    return (
        weights if joint else {**weights, "lm_head/projection": ("crit.out_projs.0", "D E -> E D")}
    )


def _of_network(settings: Settings) -> HuggingFaceFormat:
    """Return the format with the weights of the network's clusters."""
    weights = {**_layer_weights(), **_vocabulary_weights(settings)}
    return dataclasses.replace(HUGGING_FACE, weights=weights, variant=None)


HUGGING_FACE = HuggingFaceFormat(
    system="transformer_xl",
    model_types={"transfo-xl": "TransfoXL"},
    class_suffix="LMHeadModel",
    defaults=SIZES["257m"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "d_embed": Setting("", COUNT),
        "d_inner": Setting("d_ff", COUNT),
        "n_head": Setting("heads", COUNT),
        "d_head": Setting("head_width", COUNT),
        "div_val": Setting("cluster_division", COUNT),
        "cutoffs": Setting("", _CUTOFFS),
        "mem_len": Setting("memory", integers(0, 2**31 - 1)),
        "clamp_len": Setting("", integers(_NO_LIMIT, 2**31 - 1)),
        "same_length": Setting("same_length", FLAG),
        "untie_r": Setting("untied_biases", FLAG),
        "dropout": Setting("dropout", RATE, default=0.1),
    },
    other_names={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    fixed={
        "pre_lnorm": False,
        "attn_type": 0,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    exported_only={"sines": "then_cosines"},
    weights=_layer_weights(),
    aliases={
        "crit.out_layers.*.weight": "transformer.word_emb.emb_layers.*.weight",  # copies
        "crit.out_projs.*": "transformer.word_emb.emb_projs.*",
        f"{_THERE.format(layer='*')}.dec_attn.r_w_bias": "transformer.r_w_bias",
        f"{_THERE.format(layer='*')}.dec_attn.r_r_bias": "transformer.r_r_bias",
    },
    unused=("transformer.pos_emb.inv_freq",),
    variant=_of_network,
)
