"""RoBERTa: Liu et al. 2019, "A Robustly Optimized BERT Pretraining Approach" (arXiv:1907.11692)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn

from t5x_like import losses
from t5x_like.nn.embeddings import CountedEmbeddings, LearnedPositions, TokenEmbed
from t5x_like.nn.encoder_heads import FirstTokenHead, MaskedLMHead, Pooler, Pretraining, select_head
from t5x_like.nn.networks import Encoder
from t5x_like.nn.norms import LayerNorm
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RobertaConfig(bert.BertConfig):
    """The settings of a RoBERTa; `padding` is the id of the padding token."""

    head: str | Mapping[str, Any] = "masked_lm"
    vocab_size: int = 50265
    token_types: int = 1
    padding: int = 1
    norm_epsilon: float = 1e-5


def _size(layers: int, d_model: int, heads: int) -> RobertaConfig:
    return RobertaConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, RobertaConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}


def build(config: RobertaConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BERT's (section 2.2), without pairs.

    Args:
        config: `positions` is the length of the longest text, and `padding` the id of the padding
            token; the first `padding` + 1 rows of the position table are not used for text.
            `head` is "masked_lm", "pretraining", which also predicts the next sentence for the
            input formats with pairs (section 4.2), or a head of `select_head`.

    Raises:
        ValueError: the head is unknown.
    """
    make_norm = functools.partial(LayerNorm, epsilon=config.norm_epsilon)
    make_masked_lm = bert.masked_lm(config, make_norm=make_norm)
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=bert.INIT, compute=config.compute
    )
    make_row = functools.partial(
        FirstTokenHead,
        make_pooler=functools.partial(make_pooler, inner_dropout=config.dropout),
        kernel_init=bert.INIT,
        dropout=config.dropout,
    )
    own: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_pooler=make_pooler,
            classes=2,
            kernel_init=bert.INIT,
        ),
    }
    return Encoder(
        make_embeddings=embeddings(config, make_norm=make_norm),
        make_encoder=bert.tower(config, make_norm=make_norm),
        make_head=select_head(
            config, own, make_pooler=make_pooler, kernel_init=bert.INIT, make_row=make_row
        ),
    )


def embeddings(
    config: RobertaConfig, *, make_norm: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """Return a factory of summed token, position and segment embeddings, with a layer norm."""
    table = functools.partial(
        TokenEmbed, features=config.d_model, embedding_init=bert.INIT, compute=config.compute
    )
    reserved = config.padding + 1
    return functools.partial(
        CountedEmbeddings,
        make_tokens=functools.partial(table, vocab_size=config.vocab_size),
        make_positions=functools.partial(
            LearnedPositions,
            length=config.positions + reserved,
            offset=reserved,
            features=config.d_model,
            embedding_init=bert.INIT,
            compute=config.compute,
        ),
        # The published weights contain this table, although there is only one segment.
        make_token_types=functools.partial(
            table,
            vocab_size=config.token_types,
            axis="types",
            compute=dataclasses.replace(config.compute, lookup="one_hot"),
        ),
        make_norm=functools.partial(make_norm, compute=config.compute),
    )


SYSTEM = System(
    name="roberta",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=bert.loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
