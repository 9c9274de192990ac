"""ALBERT: Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised ..." (arXiv:1909.11942)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.names import choose
from t5x_like.nn.compute import GELU, GELU_TANH, Batch, Compute
from t5x_like.nn.encoder_heads import MaskedLMHead, Pooler, Pretraining, select_head
from t5x_like.nn.linear import Linear
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import remat_policy, unrolls
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AlbertConfig(bert.DenseEncoderConfig):
    """The settings of an ALBERT; `embedding` is E of section 3.1."""

    vocab_size: int = 30000
    embedding: int = 128
    share: str = "all"
    groups: int = 1
    inner_layers: int = 1
    activation: str = "gelu_new"
    dropout: float = 0.0
    head_dropout: float = 0.1


def _size(layers: int, d_model: int, heads: int) -> AlbertConfig:
    return AlbertConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


# Table 1 with d_model / 64 heads (section 3.1), and the dropout of the released v2 models; the
# paper's models (v1) have 0.1, except xxlarge. For xlarge, the released archive also has 32 heads,
# but Hugging Face's config.json has 16 (github.com/google-research/albert/issues/180).
SIZES: dict[str, AlbertConfig] = {
    "base": _size(12, 768, 12),
    "large": _size(24, 1024, 16),
    "xlarge": _size(24, 2048, 32),
    "xxlarge": _size(12, 4096, 64),
}

ACTIVATIONS = {
    "gelu": GELU,
    "gelu_new": GELU_TANH,
}
_ATTENTION = ("self_attention", "self_attention_norm")
_FEED_FORWARD = ("feed_forward", "feed_forward_norm")
# The submodules of a layer that have the same parameters in all layers of a group (section 4.5).
SHARED: dict[str, tuple[str, ...]] = {
    "all": (*_ATTENTION, *_FEED_FORWARD),
    "attention": _ATTENTION,
    "feed_forward": _FEED_FORWARD,
    "none": (),
}


# ---- Cross-layer parameter sharing: a stack whose layers share all or some of their parameters.


class SharedStack(nn.Module):
    """Apply a block N times, with parameters shared across layers (Lan et al. 2019, section 3.1).

    The N layers form G groups of N/G layers. The layers of a group share the parameters of the
    submodules `parts`; the parameters of other submodules differ between layers. A shared parameter
    has the shape [G, I, ...], any other parameter [N, I, ...]; the gradient of a shared parameter
    is the sum over the layers that use it.

    The loop over layers closes over shared parameters and scans over the others. Linen's `scan` can
    only do either for a whole collection, so the block is applied as a function.

    Attributes:
        make_block: factory of the block, `block(carry, shared, per_layer) -> (carry, out)`.
        layers: N.
        groups: G, which divides N.
        inner: I, the number of blocks in a layer, which share no parameters.
        parts: the submodules of the block whose parameters are shared.
        compute: its `loop` and `remat` determine how the layers run; the parameters have the same
            shapes for every `loop`.
    """

    make_block: Callable[..., nn.Module]
    layers: int
    parts: tuple[str, ...]
    groups: int = 1
    inner: int = 1
    compute: Compute = Compute()

    @nn.compact
    def __call__(self, carry: PyTree, shared: PyTree, per_layer: PyTree) -> tuple[PyTree, PyTree]:
        """Return the last carry, and the blocks' outputs [N * I, ...].

        Args:
            carry: the input of the first block.
            shared: the input of all blocks.
            per_layer: the inputs of each block, [N * I, ...].

        Raises:
            ValueError: the groups do not divide the layers, or a part, `loop` or `remat` is
                unknown.
        """
        if self.layers % self.groups:
            raise ValueError(
                f"model.groups={self.groups} must divide model.layers={self.layers}, so that all "
                "groups have the same size"
            )
        block = self.make_block(parent=None)
        sizes = self.groups, self.layers // self.groups, self.inner
        tree = jax.tree.map(lambda x: x.reshape(*sizes, *x.shape[1:]), per_layer)
        params = self._parameters(
            lambda key: block.init(key, carry, shared, jax.tree.map(lambda x: x[0], per_layer))
        )
        key = self.make_rng("dropout") if self.has_rng("dropout") else None
        keys = None if key is None else jax.random.split(key, sizes)

        def apply(carry: PyTree, params: PyTree, layer: PyTree, key: Array | None) -> Any:
            rngs = None if key is None else {"dropout": key}
            return block.apply({"params": params}, carry, shared, layer, rngs=rngs)

        carry, outs = self._run(apply, carry, params, (tree, keys))
        return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), outs)

    def split(self, stacked: PyTree) -> PyTree:
        """Return arrays [N * I, ...] in the form of `per_layer`, which is the same."""
        return stacked

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """Return the blocks' empty caches, [N * I, ...]."""
        block = self.make_block(parent=None).empty_cache(batch=batch, slots=slots)
        number = self.layers * self.inner
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), block)

    def _run(self, apply: Callable[..., Any], carry: PyTree, params: PyTree, xs: PyTree) -> Any:
        """Run the blocks in nested loops over groups, layers, and the blocks of a layer."""
        in_a_row = unrolls(self.compute, self.layers * self.inner)
        if self.compute.remat != "none":
            policy = remat_policy(self.compute.remat)
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=in_a_row)
        scan = functools.partial(jax.lax.scan, unroll=in_a_row)
        separate = {
            part: jax.tree.map(lambda x: x.reshape(self.groups, -1, *x.shape[1:]), tree)
            for part, tree in params.items()
            if part not in self.parts
        }

        def group(carry: PyTree, xs: Any) -> Any:
            same, separate, rest = xs

            def layer(carry: PyTree, xs: Any) -> Any:
                params = same | xs[0]
                return scan(lambda c, xs: apply(c, *xs), carry, (params, *xs[1]), length=self.inner)

            return scan(layer, carry, (separate, rest), length=self.layers // self.groups)

        same = {part: params[part] for part in self.parts}
        return scan(group, carry, (same, separate, xs), length=self.groups)

    def _parameters(self, init: Callable[[Array], PyTree]) -> PyTree:
        """Return {submodule of the block: its parameters}, which are created in initialization."""
        if not self.is_initializing():
            return nn.unbox(self.variables["params"])
        names = tuple(jax.eval_shape(lambda: init(jax.random.key(0)))["params"])
        for part in self.parts:
            choose("part of the block to share", part, dict.fromkeys(names))

        def stacked(key: Array, part: str) -> PyTree:
            copies = self.groups if part in self.parts else self.layers
            keys = jax.random.split(key, (copies, self.inner))
            arrays = jax.vmap(jax.vmap(lambda key: init(key)["params"][part]))(keys)
            for axis in ("inner_layers", "layers"):
                arrays = nn.meta.add_axis(arrays, 0, {nn.PARTITION_NAME: axis})
            return arrays

        return {part: self.param(part, stacked, part) for part in names}


def build(config: AlbertConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Raises:
        ValueError: the head, kind of sharing or activation is unknown. (The network raises it
            when it is initialized if `groups` does not divide `layers`.)
    """
    make_masked_lm = bert.masked_lm(config, activation=_activation(config))
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    heads = {
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=make_pooler,
            classes=2,
            kernel_init=config.init,
            dropout=config.head_dropout,
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }
    return Encoder(
        # Section 3.1: embeddings of width E are projected to the width of the layers.
        make_embeddings=bert.embeddings(dataclasses.replace(config, d_model=config.embedding)),
        make_projection=functools.partial(
            Linear,
            (config.d_model,),
            axes=("embed", "mlp"),
            use_bias=True,
            kernel_init=config.init,
            compute=config.compute,
        ),
        make_encoder=tower(config),
        make_head=select_head(
            dataclasses.replace(config, dropout=config.head_dropout),
            heads,
            make_pooler=make_pooler,
            kernel_init=config.init,
        ),
    )


def _activation(config: AlbertConfig) -> Callable[[jax.Array], jax.Array]:
    return choose("model.activation", config.activation, ACTIVATIONS)


def tower(config: AlbertConfig) -> Callable[..., nn.Module]:
    """Return a factory of a tower of BERT's layers, which share parameters (section 3.1)."""
    stack = functools.partial(
        SharedStack,
        make_block=bert.block(config, activation=_activation(config)),
        layers=config.layers,
        parts=choose("model.share", config.share, SHARED),
        groups=config.groups,
        inner=config.inner_layers,
        compute=config.compute,
    )
    return functools.partial(Tower, make_stack=stack, compute=config.compute)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the mean loss of masked tokens plus the mean loss of segment pairs (section 3.1).

    The label of a pair is the order of its segments or, with another objective, whether the second
    segment follows the first.

    Args:
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no labels of pairs.
    """
    outputs, masked = losses.predict_masked(module, params, batch, rng, share=predicted)
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "sentences": (1.0, losses.sentence_pairs(outputs, batch)),
        }
    )


SYSTEM = System(
    name="albert",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, "dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# ALBERT in Hugging Face's folders.

_LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
_BLOCK = "encoder/layers"  # [groups, inner, ...]: both numbers are indices of the parameter


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["share"] not in ("all", "none"):
        raise ValueError(
            f"model.share={settings['share']!r}: Hugging Face's ALBERT shares 'all' parameters of "
            "a layer or 'none', so it has no class for this model"
        )
    groups = settings["groups"] if settings["share"] == "all" else settings["layers"]
    return {"num_hidden_groups": groups}


HUGGING_FACE = HuggingFaceFormat(
    system="albert",
    model_types={"albert": "Albert"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "type_vocab_size": Setting("token_types", COUNT),
        "embedding_size": Setting("embedding", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "num_hidden_groups": Setting("groups", LAYERS, default=1),
        "inner_group_num": Setting("inner_layers", LAYERS, default=1),
        "hidden_size": Setting("d_model", COUNT),
        "intermediate_size": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "hidden_act": Setting("activation", one_of("gelu", "gelu_new"), default="gelu_new"),
        "classifier_dropout_prob": Setting("head_dropout", RATE, default=0.1),
        "hidden_dropout_prob": Setting("dropout", RATE, default=0.0),
        "attention_probs_dropout_prob": Setting("dropout", RATE, default=0.0),
    },
    fixed={
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_config=_derive_config,
    weights={
        "embeddings/token/embedding": "albert.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": "albert.embeddings.position_embeddings.weight",
        "embeddings/token_type/embedding": "albert.embeddings.token_type_embeddings.weight",
        **norm("embeddings/norm", "albert.embeddings.LayerNorm"),
        **dense("projection", "albert.encoder.embedding_hidden_mapping_in"),
        **attention(
            f"{_BLOCK}/self_attention",
            *(f"{_LAYER}.attention.{name}" for name in ("query", "key", "value", "dense")),
        ),
        **norm(f"{_BLOCK}/self_attention_norm", f"{_LAYER}.attention.LayerNorm"),
        **dense(f"{_BLOCK}/feed_forward/wi", f"{_LAYER}.ffn"),
        **dense(f"{_BLOCK}/feed_forward/wo", f"{_LAYER}.ffn_output"),
        **norm(f"{_BLOCK}/feed_forward_norm", f"{_LAYER}.full_layer_layer_norm"),
        **dense("head/summary/dense", "albert.pooler"),
        **dense("head/masked_lm/transform", "predictions.dense"),
        **norm("head/masked_lm/norm", "predictions.LayerNorm"),
        "head/masked_lm/output/bias": "predictions.bias",
        **dense("head/row", "sop_classifier.classifier"),
        **dense("head/classifier", "classifier"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/answer", "qa_outputs"),
    },
    aliases={
        "embeddings.*": "albert.embeddings.*",  # a model without a head
        "encoder.*": "albert.encoder.*",
        "pooler.*": "albert.pooler.*",
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",  # copies
        "predictions.decoder.bias": "predictions.bias",
    },
    unused=(
        "albert.embeddings.position_ids",
        "embeddings.position_ids",
        # The published folders hold all of pretraining, whichever class their config.json names.
        *(f"albert.pooler.{name}" for name in ("weight", "bias")),
        *(f"sop_classifier.classifier.{name}" for name in ("weight", "bias")),
    ),
)
