"""LLaMA with other feed-forward layers, norms and blocks, on generated dialects.

    python -m t5x_like.study llama_parts

Shazeer 2020, section 3: with as many parameters, gated feed-forward layers (GLU) reach a lower loss
than those with one activation, and SwiGLU and GEGLU the lowest. Touvron et al. 2023, section 2.2,
take SwiGLU, RMSNorm and pre-normalization. Chowdhery et al. 2022 (PaLM), section 2: attention and
feed-forward layer can run in parallel with no or little loss. The text is the language `dialects`
(docs/languages.md), with an entropy of 1.37 nats a word; by word frequencies a word has 4.16. 0.01
nats do not matter.

| the paper | here |
|---|---|
| T5 base, d_ff of 3,072, or 2,048 if gated (Shazeer) | 2 layers, 96 wide, d_ff of 384 or 256 |
| span corruption of C4, 524,288 steps | 600 batches of 1,024 tokens, none read twice |
| held-out log-perplexity | nats of held-out words |

The kernels of the feed-forward layers have T5's variance at the start, 1 / fan-in. With LLaMA's
standard deviation, 0.02 at any width, the inputs of an activation are near 0 in a network so
narrow, where Swish and GELU are nearly linear and a sigmoid nearly constant: after three seeds
Swish was at 1.89 nats, GLU at 1.79 and ReLU at 1.71. With 1 / fan-in each was at 1.73 with the
first seed. SYSTEM below is LLaMA with these parts as settings: a system of a file of its own
(docs/architecture.md).
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax

from configs.studies.gpt2_sizes import CHANGES, TEXT
from t5x_like.nn.blocks import ParallelBlock, PostNormBlock, PreNormBlock
from t5x_like.nn.compute import GELU
from t5x_like.nn.embeddings import LinearHead, TokenEmbed
from t5x_like.nn.linear import GLU, MLP, LayerNorm, RMSNorm
from t5x_like.nn.networks import Decoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.research.studies import Arm, Claim, Learned, OutcomeMeasure, Study, TrainingRun
from t5x_like.systems import llama
from t5x_like.systems.system import System, Task

# The feed-forward layers of Shazeer 2020, equations 2, 3, 5 and 6: the activation of the only input
# kernel, or of the gate. Its GELU is the exact one.
_FEED_FORWARDS: dict[str, tuple[type[MLP], Callable[[jax.Array], jax.Array]]] = {
    "relu": (MLP, jax.nn.relu),
    "gelu": (MLP, GELU),
    "swish": (MLP, jax.nn.silu),
    "glu": (GLU, jax.nn.sigmoid),
    "bilinear": (GLU, lambda x: x),
    "reglu": (GLU, jax.nn.relu),
    "geglu": (GLU, GELU),
    "swiglu": (GLU, jax.nn.silu),
}
_NORMS = {"rms_norm": RMSNorm, "layer_norm": LayerNorm}
_BLOCKS = {"pre_norm": PreNormBlock, "post_norm": PostNormBlock, "parallel": ParallelBlock}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PartsConfig(llama.LlamaConfig):
    """The settings of a LLaMA, and the names of its parts."""

    feed_forward: str = "swiglu"
    norm: str = "rms_norm"
    block: str = "pre_norm"


def build(config: PartsConfig) -> nn.Module:
    """Build a LLaMA of the parts that its config names."""
    layer, activation = _FEED_FORWARDS[config.feed_forward]
    make_norm = functools.partial(
        _NORMS[config.norm], epsilon=config.norm_epsilon, compute=config.compute
    )
    make_block = functools.partial(
        _BLOCKS[config.block],
        make_norm=make_norm,
        make_self_attention=llama.attention(config),
        make_feed_forward=functools.partial(
            layer,
            hidden=config.d_ff,
            activation=activation,
            compute=config.compute,
        ),
        compute=config.compute,
    )
    return Decoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=llama.NORMAL,
            compute=config.compute,
        ),
        make_decoder=functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack, make_block=make_block, layers=config.layers, compute=config.compute
            ),
            # The last of post-norm blocks ends in a norm.
            make_norm=None if config.block == "post_norm" else make_norm,
            compute=config.compute,
        ),
        make_head=functools.partial(LinearHead, kernel_init=llama.NORMAL),
    )


SYSTEM = System(
    name="llama_parts",
    sizes={
        "demo": PartsConfig(
            layers=2, d_model=96, d_ff=256, heads=4, kv_heads=4, head_width=24, vocab_size=220
        )
    },
    build=build,
    tasks={"": Task(loss=llama.loss, prediction="text")},
)

_CHANGES = {
    **CHANGES,
    "system": "configs/studies/llama_parts.py",
    "model.d_model": 96,
    "model.d_ff": 256,
    "model.head_width": 24,
    "model.feed_forward": "swiglu",
    "model.norm": "rms_norm",
    "model.block": "pre_norm",
    "train.steps": 600,
}


def _arm(**settings: str | int) -> Arm:
    changes = {f"model.{name}": value for name, value in settings.items()}
    return Arm(changes={"pretraining": changes})


ARMS = {
    "llama": _arm(),
    **{name: _arm(feed_forward=name, d_ff=384) for name in ("relu", "gelu", "swish")},
    **{name: _arm(feed_forward=name) for name in ("glu", "bilinear", "reglu", "geglu")},
    "layer_norm": _arm(norm="layer_norm"),
    "post_norm": _arm(block="post_norm"),
    "parallel": _arm(block="parallel"),
}

_better = functools.partial(Claim, measure="loss", margin=0.01)
_as_good = functools.partial(Claim, than="llama", measure="loss", within=0.01)

CLAIMS = (
    _better("Gated, ReLU is better (ReGLU).", "reglu", "relu"),
    _better("Gated, GELU is better (GEGLU).", "geglu", "gelu"),
    _better("Gated, Swish is better (SwiGLU).", "llama", "swish"),
    _better("The sigmoid's gate is better than ReLU (GLU).", "glu", "relu"),
    _better("A product alone is better than ReLU (bilinear).", "bilinear", "relu"),
    _better("SwiGLU is better than GLU.", "llama", "glu"),
    _as_good("GEGLU is as good as SwiGLU.", "geglu"),
    _as_good("LayerNorm is as good as RMSNorm.", "layer_norm"),
    _better("Pre-norm is better than post-norm.", "llama", "post_norm"),
    _as_good("Attention and feed-forward layer in parallel are as good.", "parallel"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="LLaMA with other parts",
        source="Shazeer 2020, table 1, Touvron et al. 2023, section 2.2, and Chowdhery et al. 2022",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/llama.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="llama", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
    )
