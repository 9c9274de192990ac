"""DeBERTa, versions 2 and 3: He et al. 2021, "DeBERTaV3: ..." (arXiv:2111.09543)."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.hf.config_settings import FLAG, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap, dense, norm
from t5x_like.names import choose
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import Shared
from t5x_like.nn.compound_networks import GeneratorAndDiscriminator
from t5x_like.nn.compute import GELU, Activation, Batch, Compute
from t5x_like.nn.embeddings import ChangedEmbeddings, ContentEmbeddings
from t5x_like.nn.encoder_heads import ReplacedTokenHead
from t5x_like.nn.linear import Initializer, Linear, replicate_last_axis
from t5x_like.systems import deberta, electra
from t5x_like.systems.deberta import BLOCK, LAYER
from t5x_like.systems.system import ENCODER_TASKS, System, Task, adaptation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DebertaV2Config(deberta.ReleasedConfig):
    """The settings of a DeBERTa of version 3."""

    vocab_size: int = 128_100
    relative_buckets: int = 256
    relative_norm: bool = True
    share_projections: bool = True
    key_bias: bool = True
    convolution: int = 0
    convolution_activation: str = "tanh"
    generator_layers: int
    sharing: str = "gradient_disentangled"


def _size(layers: int, d_model: int, heads: int) -> DebertaV2Config:
    return DebertaV2Config(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        generator_layers=layers // 2,
    )


SIZES: dict[str, DebertaV2Config] = {
    "v3_small": _size(6, 768, 12),
    "v3_base": _size(12, 768, 12),
    "v3_large": _size(24, 1024, 16),
}

SHARING: dict[str, str] = {  # how the discriminator gets its embeddings (section 3, table 2)
    "gradient_disentangled": "the generator's, without its gradient, plus a change (GDES)",
    "embeddings": "the same, with the gradients of both (ES, as in ELECTRA)",
    "none": "each its own (NES)",
}


ACTIVATIONS = {"gelu": GELU, "tanh": nn.tanh}


class Neighbors(nn.Module):
    """norm(y + activation(convolution(x))) beside the first layer (DeBERTa's code, version 2).

    Attributes:
        width: the number of tokens under the convolution, which is odd. Tokens of other documents
            and padding are replaced by zeros.
    """

    width: int
    make_norm: Callable[..., nn.Module]
    activation: Activation
    kernel_init: Initializer
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], y: Float[Array, "B L D"], shared: Shared
    ) -> Float[Array, "B L D"]:
        """Return the states after the first layer, from the layer's input `x` and output `y`."""
        segments = shared.mask.key_segments
        assert segments is not None  # encoders have them
        reach = self.width // 2
        length = x.shape[1]

        def shifted(x: Array, offset: int) -> Array:
            edges = ((0, 0), (reach, reach)) + ((0, 0),) * (x.ndim - 2)
            return jnp.pad(x, edges)[:, reach + offset : reach + offset + length]

        near = [
            jnp.where((shifted(segments, n) == segments)[..., None], shifted(x, n), 0)
            for n in range(-reach, reach + 1)
        ]
        real = (segments > 0)[..., None]
        out = Linear(
            (x.shape[-1],),
            axes=("positions", "embed", "mlp"),
            contract=2,
            use_bias=True,
            kernel_init=self.kernel_init,
            compute=self.compute,
            name="convolution",
        )(jnp.stack(near, axis=2))
        out = replicate_last_axis(jnp.where(real, out, 0))
        out = nn.Dropout(self.compute.dropout)(out, shared.deterministic)
        return jnp.where(real, self.make_norm(name="norm")(y + self.activation(out)), 0)


class DisentangledPair(GeneratorAndDiscriminator, kw_only=True):  # type: ignore[call-arg]
    """ELECTRA's two networks as encoders with disentangled attention (section 3.1)."""

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask, the same as the generator's."""
        return self.generator.mask(batch)


class GradientDisentangledPair(DisentangledPair, kw_only=True):  # type: ignore[call-arg]
    """A discriminator whose embeddings are the generator's plus a learned change (section 3.3).

    The generator's loss changes the embeddings of both networks, the discriminator's loss only the
    learned change. The embeddings are not projected: setting `make_projection` raises ValueError.
    """

    def setup(self) -> None:
        """Refuse a projection, and create the submodules."""
        if self.make_projection is not None:
            raise ValueError(
                "a GradientDisentangledPair has embeddings as wide as its layers: leave "
                "make_projection out"
            )
        super().setup()

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the input of the discriminator's first layer."""
        token = self.generator.embeddings.token(batch["encoder_input_tokens"])
        return self.embeddings(batch, token)

    def table(self) -> Float[Array, "V D"]:
        """Return the discriminator's token embeddings."""
        shared = jax.lax.stop_gradient(self.generator.embeddings.table)
        return shared + self.embeddings.change.embedding


def build(config: DebertaV2Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: see `deberta.build`; further settings are these. If `relative_buckets` is above 0,
            distances are on a logarithmic scale of that many buckets in each direction, up to
            `relative_span`; `relative_norm` adds a norm to the table of relative positions;
            `share_projections` projects it with the key and query kernels of the tokens; `key_bias`
            adds a bias to the keys; `convolution` is the width of the convolution beside the first
            layer, 0 for none. Further heads are "pretraining", for a generator and a discriminator
            trained together, and "discriminator", for the discriminator, which is kept after
            pretraining, with its head. `generator_layers` is the depth of the generator, which has
            the same width as the discriminator, and `sharing` is one of SHARING.

    Raises:
        ValueError: the head, terms, activation or sharing is unknown, the width of the
            convolution is even, or the buckets do not form a scale up to the span.
    """
    buckets, span = config.relative_buckets, config.relative_span
    if buckets and not 1 <= buckets // 2 < span - 1:
        raise ValueError(
            f"model.relative_buckets={buckets} with model.relative_span={span} (config.json's "
            f"position_buckets and max_relative_positions): choose 0, or from 2 to {2 * span - 3}"
        )
    if config.convolution and config.convolution % 2 == 0:
        raise ValueError(
            f"model.convolution={config.convolution}: choose an odd width, or 0 for none"
        )
    if config.head == "pretraining":
        return _pair(config)
    return _network(config)


def _network(config: DebertaV2Config) -> deberta.DisentangledEncoder:
    make_neighbors = _neighbors(config) if config.convolution else None
    return deberta.network(config, heads=_heads(config), make_neighbors=make_neighbors)


def _neighbors(config: DebertaV2Config) -> Callable[..., nn.Module]:
    """Return a factory of the convolution beside the first layer."""
    return functools.partial(
        Neighbors,
        width=config.convolution,
        make_norm=functools.partial(deberta.NORM, compute=config.compute),
        activation=choose(
            "model.convolution_activation", config.convolution_activation, ACTIVATIONS
        ),
        kernel_init=config.init,
        compute=config.compute,
    )


def _heads(config: DebertaV2Config) -> dict[str, Callable[..., nn.Module]]:
    make_head = functools.partial(
        ReplacedTokenHead,
        activation=GELU,
        kernel_init=config.init,
        make_norm=functools.partial(deberta.NORM, compute=config.compute),
        compute=config.compute,
    )
    return dict.fromkeys(("pretraining", "discriminator"), make_head)


def _pair(config: DebertaV2Config) -> nn.Module:
    choose("model.sharing", config.sharing, SHARING)
    discriminator = _network(config)
    generator = _network(
        dataclasses.replace(config, head="masked_lm", layers=config.generator_layers)
    )
    disentangled = config.sharing == "gradient_disentangled"
    pair = GradientDisentangledPair if disentangled else DisentangledPair
    return pair(
        make_embeddings=deberta.embeddings(
            config, ChangedEmbeddings if disentangled else ContentEmbeddings
        ),
        make_encoder=discriminator.make_encoder,
        make_head=discriminator.make_head,
        make_generator=functools.partial(
            deberta.DisentangledEncoder,
            make_embeddings=generator.make_embeddings,
            make_encoder=generator.make_encoder,
            make_head=generator.make_head,
        ),
        tied=("embeddings",) if config.sharing == "embeddings" else (),
        objective="electra",
    )


SYSTEM = System(
    name="deberta_v2",
    sizes=SIZES,
    build=build,
    older_defaults={
        **deberta.OLDER_DEFAULTS,
        "generator_layers": 6,
        "sharing": "gradient_disentangled",
    },
    tasks={
        "pretraining": Task(loss=electra.loss),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    adapt=functools.partial(
        adaptation,
        new=deberta.MASK_DECODER,
        # To read a discriminator from the folder of a generator and a discriminator that were
        # trained together: its embeddings are the generator's plus the learned change.
        sums={
            "embeddings/token/embedding": (
                "generator/embeddings/token/embedding",
                "embeddings/change/embedding",
            )
        },
    ),
)


# DeBERTa, versions 2 and 3, in Hugging Face's folders.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    for key, value in {
        "embedding_size": settings["d_model"],
        "attention_head_size": settings["d_model"] // settings["heads"],
    }.items():
        one_of(value).check(key, config.get(key, value))
    buckets = config.get("position_buckets", -1)
    return deberta.derive_settings(config, settings, names) | {
        "relative_buckets": max(buckets, 0),
        "relative_norm": config.get("norm_rel_ebd", "none") == "layer_norm",
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("pretraining", "discriminator"):
        raise ValueError(
            f"model.head={settings['head']!r}: Hugging Face has no DeBERTa with a generator or a "
            "discriminator's head: the encoder without a head is written by "
            "from_pretrained(folder, head='features').save_pretrained(NEW_FOLDER)"
        )
    return deberta.derive_config(settings) | {
        "position_buckets": settings["relative_buckets"] or -1,
        "norm_rel_ebd": "layer_norm" if settings["relative_norm"] else "none",
    }


def _attention() -> WeightMap:
    """Map the projections of the tokens, and of the position table if they are separate."""
    ours, theirs = f"{BLOCK}/self_attention", f"{LAYER}.attention.self"
    names = {
        "query": "query_proj",
        "key": "key_proj",
        "value": "value_proj",
        "position_query": "pos_query_proj",
        "position_key": "pos_key_proj",
    }
    weights: dict[str, str | tuple[str, str]] = {}
    for name, projection in names.items():
        weights[f"{ours}/{name}/kernel"] = (f"{theirs}.{projection}.weight", "(H K) D -> D H K")
        weights[f"{ours}/{name}/bias"] = (f"{theirs}.{projection}.bias", "(H K) -> H K")
    return weights


HUGGING_FACE = HuggingFaceFormat(
    system="deberta_v2",
    model_types={"deberta-v2": "DebertaV2"},
    defaults=SIZES["v3_base"],
    settings={
        **deberta.SETTINGS,
        "position_buckets": Setting("", integers(-1, 2**31 - 1), default=-1),
        "norm_rel_ebd": Setting("", one_of("none", "layer_norm"), default="none"),
        "share_att_key": Setting("share_projections", FLAG, default=False),
        "conv_kernel_size": Setting("convolution", integers(0, 2**31 - 1), default=0),
        "conv_act": Setting("convolution_activation", one_of("gelu", "tanh"), default="tanh"),
    },
    fixed={**deberta.FIXED, "conv_groups": 1},
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        **_attention(),
        **deberta.weights_without_attention(),
        **dense("head/choice", "classifier"),  # version 1 has no such class
        # The discriminator of version 3, published with the encoder; read if model.head needs it.
        **norm("head/norm", "mask_predictions.LayerNorm"),
        **dense("head/transform", "mask_predictions.dense"),
        **dense("head/replaced", "mask_predictions.classifier"),
        **norm("encoder/extra/norm", "deberta.encoder.LayerNorm"),
        "encoder/layers/neighbors/convolution/kernel": (
            "deberta.encoder.conv.conv.weight",
            "O I W -> W I O",
        ),
        "encoder/layers/neighbors/convolution/bias": "deberta.encoder.conv.conv.bias",
        **norm("encoder/layers/neighbors/norm", "deberta.encoder.conv.LayerNorm"),
    },
    aliases=deberta.ALIASES,
    unused=tuple(
        f"mask_predictions.{part}.{name}"
        for part in ("dense", "LayerNorm", "classifier")
        for name in ("weight", "bias")
    ),
)
