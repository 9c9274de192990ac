"""BigBird: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences" (arXiv:2007.14062)."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Array

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import bert_encoder, dense, norm
from t5x_like.names import choose
from t5x_like.nn.attention.block_sparse import PARTS, BlockSparseAttention, Pattern
from t5x_like.nn.compute import GELU_TANH, Batch, Outputs
from t5x_like.nn.encoder_heads import (
    FirstTokenHead,
    MaskedLMHead,
    Pooler,
    Pretraining,
    output_layer,
    select_head,
)
from t5x_like.nn.linear import Initializer
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import PatternStack, PostNormPatternBlock
from t5x_like.systems import bert
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    Adaptation,
    LayersConfig,
    System,
    Task,
    adaptation,
    head_width,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PatternConfig:
    """The settings of block-sparse attention, see `build`."""

    attention_parts: str = "window|random|global"
    block: int = 64
    random: int = 3
    random_blocks: str = "fixed"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdConfig(PatternConfig, bert.EncoderConfig):
    """The settings of a BigBird."""

    head: str | Mapping[str, Any] = "masked_lm"
    vocab_size: int = 50358
    positions: int = 4096


def _size(layers: int, d_model: int, heads: int) -> BigBirdConfig:
    return BigBirdConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


# Appendix E, table 8: the internal transformer construction (ITC).
SIZES: dict[str, BigBirdConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

# The rows of table 1, and dense attention.
ATTENTION_PARTS: dict[str, tuple[str, ...]] = {
    "window|random|global": PARTS,
    "window|random": ("window", "random"),
    "window": ("window",),
    "random": ("random",),
    "all": (),
}
RANDOM_BLOCKS = ("fixed", "first")


def build(config: BigBirdConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BERT's, with block-sparse attention.

    Args:
        config: its `head` is "masked_lm", "pretraining", which also predicts the next sentence, or
            a head of `select_head`; `attention_parts` is one of ATTENTION_PARTS, `block` the number
            of tokens in a block, `random` the number of random blocks, and `random_blocks` "fixed",
            or "first" to compute the same as Hugging Face in evaluation: see `Pattern`.

    Raises:
        ValueError: the head, attention or kind of random blocks is unknown, `block` is below 1,
            or `random` is negative.
    """
    make_masked_lm = bert.masked_lm(config, activation=GELU_TANH)
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    make_row = functools.partial(
        FirstTokenHead,
        make_pooler=functools.partial(
            Pooler,
            activation=GELU_TANH,
            kernel_init=config.init,
            inner_dropout=config.dropout,
            compute=config.compute,
        ),
        kernel_init=config.init,
        dropout=config.dropout,
    )
    heads: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=make_pooler,
            classes=2,
            kernel_init=config.init,
        ),
        "question_answering": _answers(config),
    }
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=tower(config),
        make_head=select_head(
            config, heads, make_pooler=make_pooler, kernel_init=config.init, make_row=make_row
        ),
    )


class LayerAnswerHead(nn.Module):
    """Predict the start and end of an answer after another feed-forward layer, as released."""

    make_feed_forward: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `start_logits` and `end_logits`, float32 [B, L]."""
        x = nn.Dropout(self.dropout)(hidden, deterministic)
        y = self.make_feed_forward(name="feed_forward")(x, deterministic=deterministic)
        y = nn.Dropout(self.dropout)(y, deterministic)
        logits = output_layer(2, self.kernel_init, "answer")(
            self.make_norm(name="norm")(hidden + y)
        )
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


def _answers(config: BigBirdConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        LayerAnswerHead,
        make_feed_forward=bert.feed_forward(
            config.d_ff, config.init, config.compute, activation=GELU_TANH
        ),
        make_norm=functools.partial(bert.NORM, compute=config.compute),
        kernel_init=config.init,
        dropout=config.dropout,
    )


def tower(config: BigBirdConfig) -> Callable[..., nn.Module]:
    """Return a factory of a tower of BERT's layers with block-sparse attention."""
    return functools.partial(
        Tower,
        make_stack=stack(
            config,
            block(config),
            sparse=pattern(config),
            layers=config.layers,
            heads=config.heads,
        ),
        compute=config.compute,
    )


def stack(
    config: LayersConfig,
    make_block: Callable[..., nn.Module],
    *,
    sparse: Pattern,
    layers: int,
    heads: int,
) -> Callable[..., nn.Module]:
    """Return a factory of a stack of layers with block-sparse attention.

    Each layer has different random blocks.
    """

    def choose_blocks(length: int) -> np.ndarray | None:
        if not sparse.parts or sparse.is_dense(length):
            return None
        return sparse.choose(length, layers=layers, heads=heads)

    return functools.partial(
        PatternStack,
        make_block=make_block,
        layers=layers,
        compute=config.compute,
        choose=choose_blocks,
    )


def pattern(config: PatternConfig) -> Pattern:
    """Return the `Pattern` of a config: the blocks that the queries of a block attend to.

    Raises:
        ValueError: see `build`.
    """
    parts = choose("model.attention_parts", config.attention_parts, ATTENTION_PARTS)
    if config.block < 1 or config.random < 0:
        raise ValueError(
            f"model.block={config.block} must be 1 or more, and model.random="
            f"{config.random} must be 0 or more"
        )
    kind = choose(
        "model.random_blocks", config.random_blocks, {name: name for name in RANDOM_BLOCKS}
    )
    return Pattern(block=config.block, parts=parts, random=config.random, random_blocks=kind)


def block(config: BigBirdConfig) -> Callable[..., nn.Module]:
    """Return a factory of BERT's layer with the approximate GELU and block-sparse attention."""
    return functools.partial(
        PostNormPatternBlock,
        make_norm=functools.partial(bert.NORM, compute=config.compute),
        make_self_attention=functools.partial(
            BlockSparseAttention,
            pattern=pattern(config),
            heads=config.heads,
            width=head_width(config),
            use_bias=True,
            query_init=config.init,
            kernel_init=config.init,
            out_init=config.init,
            compute=config.compute,
        ),
        make_feed_forward=bert.feed_forward(
            config.d_ff, config.init, config.compute, activation=GELU_TANH
        ),
        compute=config.compute,
    )


def _repeated_positions(folder: Mapping[str, Any], rows: int) -> tuple[int, ...]:
    """Return the rows of a RoBERTa's or BERT's position table, repeated up to `rows` (section 4).

    Raises:
        ValueError: the last copy of the table would not be complete.
    """
    if rows % folder["positions"]:
        raise ValueError(
            f"model.positions={rows} must be a multiple of the {folder['positions']} positions of "
            "the model to start from, which are repeated"
        )
    first = folder.get("padding", -1) + 1  # RoBERTa's table has rows before position 0
    return tuple(first + row % folder["positions"] for row in range(rows))


def adapt(source: Mapping[str, Any], config: Mapping[str, Any]) -> Adaptation:
    """Return how to initialize from a RoBERTa or a BERT; see `System.adapt`.

    Raises:
        ValueError: the last copy of the positions would not be complete.
    """
    rows = {}
    if source["positions"] != config["positions"]:
        rows["embeddings/position/embedding"] = _repeated_positions(source, config["positions"])
    types = source["token_types"]  # RoBERTa has one row, which is copied to every row here
    if types != config["token_types"]:
        rows["embeddings/token_type/embedding"] = tuple(
            row % types for row in range(config["token_types"])
        )
    return adaptation(source, config, copied_rows=rows)


SYSTEM = System(
    name="bigbird",
    sizes=SIZES,
    build=build,
    older_defaults=EARLIER_INIT,
    tasks={
        "pretraining": Task(loss=bert.loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    adapt=adapt,
)


# BigBird in Hugging Face's folders.

_PARTS = {"block_sparse": "window|random|global", "original_full": "all"}


def derive_settings(config: Settings, settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of the attention, see `DeriveSettings`."""
    del settings, names
    kind = config.get("attention_type", "block_sparse")
    one_of(*_PARTS).check("attention_type", kind)
    # In evaluation Hugging Face uses the first block for every random block.
    return {"attention_parts": _PARTS[kind], "random_blocks": "first"}


def derive_config(settings: Settings) -> dict[str, Any]:
    """Return the `attention_type` of config.json, see `DeriveConfig`."""
    kinds = {parts: kind for kind, parts in _PARTS.items()}
    if settings["attention_parts"] not in kinds:
        raise ValueError(
            f"model.attention_parts={settings['attention_parts']!r}: Hugging Face's BigBird has "
            f"{' or '.join(map(repr, kinds))}"
        )
    return {"attention_type": kinds[settings["attention_parts"]]}


HUGGING_FACE = HuggingFaceFormat(
    system="bigbird",
    model_types={"big_bird": "BigBird"},
    defaults=SIZES["base"],
    settings={
        **bert.HUGGING_FACE.settings,
        "block_size": Setting("block", COUNT, default=64),
        "num_random_blocks": Setting("random", integers(0, 1000), default=3),
    },
    fixed={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "use_bias": True,
        "rescale_embeddings": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=derive_settings,
    derive_config=derive_config,
    weights={
        **bert_encoder("bert"),
        **dense("head/summary/dense", "bert.pooler"),
        **dense("head/masked_lm/transform", "cls.predictions.transform.dense"),
        **norm("head/masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        "head/masked_lm/output/bias": "cls.predictions.bias",
        **dense("head/row", "cls.seq_relationship"),
        **dense("head/first/dense", "classifier.dense"),
        **dense("head/classifier", "classifier.out_proj"),
        **dense("head/tagger", "classifier"),
        **dense("head/choice", "classifier"),
        **dense("head/feed_forward/wi", "qa_classifier.intermediate.dense"),
        **dense("head/feed_forward/wo", "qa_classifier.output.dense"),
        **norm("head/norm", "qa_classifier.output.LayerNorm"),
        **dense("head/answer", "qa_classifier.qa_outputs"),
    },
    aliases={
        "embeddings.*": "bert.embeddings.*",  # a model without a head
        "encoder.*": "bert.encoder.*",
        "pooler.*": "bert.pooler.*",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",  # copies
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=(
        "bert.embeddings.position_ids",
        "embeddings.position_ids",
        "bert.embeddings.token_type_ids",
        "embeddings.token_type_ids",
        *(f"bert.pooler.{name}" for name in ("weight", "bias")),
        *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
    ),
)
