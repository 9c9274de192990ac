"""BigBird-ETC: Zaheer et al. 2020 (arXiv:2007.14062), after Ainslie et al. 2020 (2004.08483)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import losses
from t5x_like.nn.attention.block_sparse import (
    distances,
    into_blocks,
    neighbors_exist,
    with_neighbors,
)
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import KEPT, dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask
from t5x_like.nn.blocks import Collected, PostNormBlock, Shared, constrain
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.embeddings import TokenEmbed
from t5x_like.nn.encoder_heads import MaskedLMHead, Pooler, select_head
from t5x_like.nn.linear import Initializer, Linear
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import bert, bigbird
from t5x_like.systems.system import (
    ENCODER_TASKS,
    DropoutConfig,
    LayersConfig,
    System,
    Task,
    adaptation,
)

_SIDES = ("text", "global")  # which have separate tables of relative positions


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdEtcConfig(bert.InitConfig, DropoutConfig, LayersConfig):
    """The settings of a BigBird-ETC, see `build`."""

    head: str | Mapping[str, Any] = "pretraining"
    labels: int = 2
    vocab_size: int = 50265
    global_tokens: int = 256
    global_token: int = 1
    hard_global: bool = True
    hard_text: bool = False
    layers: int
    d_model: int
    d_ff: int
    heads: int
    block: int
    distance: int = 12


def _size(layers: int, d_model: int, heads: int, block: int) -> BigBirdEtcConfig:
    return BigBirdEtcConfig(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        block=block,
    )


# Appendix E.1, table 8. The distance, the id of global tokens and the masks are from ETC's released
# code.
SIZES: dict[str, BigBirdEtcConfig] = {
    "base": _size(12, 768, 12, block=84),
    "large": _size(24, 1024, 16, block=169),
}


# ---- Global-local attention: text attends to near text and global tokens, which attend to all.


@flax.struct.dataclass(kw_only=True)
class SentenceMask(AttentionMask):
    """Which tokens of a text, and which global tokens in front of it, attend to each other.

    Attributes:
        text_segments: the document of each token, 0 on padding.
        global_segments: the document of each global token, 0 if the global token is not used.
        sentences: the global token of each token's sentence, counted from 1; 0 for none.
        hard_global: whether a global token attends only to the tokens of its sentence, rather than
            of its document.
        hard_text: whether a token attends only to the global token of its sentence, rather than to
            all global tokens of its document.
    """

    text_segments: Int[Array, "B L"]
    global_segments: Int[Array, "B G"]
    sentences: Int[Array, "B L"]
    hard_global: bool = flax.struct.field(pytree_node=False, default=True)
    hard_text: bool = flax.struct.field(pytree_node=False, default=False)

    def own(self) -> Bool[Array, "B L G"]:
        """Return whether each token belongs to the sentence of each global token."""
        numbers = jnp.arange(1, self.global_segments.shape[1] + 1)
        return self.sentences[:, :, None] == numbers

    def same_document(self) -> Bool[Array, "B L G"]:
        """Return whether each token and each global token belong to the same document."""
        text, summary = self.text_segments[:, :, None], self.global_segments[:, None]
        return (text == summary) & (text > 0)


class GlobalLocalAttention(Attention):
    """Self-attention of global tokens followed by a text (Ainslie et al. 2020).

    A token of the text attends to its block of W tokens, to the two neighboring blocks, and to the
    G global tokens; global tokens attend to each other and to the text. Time and memory grow with
    L, not with its square. Text and global tokens share the projections of queries, keys and
    values, but not the output projection.

    A score has a relative term, as in Shaw et al. 2018, with a bias: q * (k + a_r) + b_r. Between
    two tokens, or two global tokens, r is their distance, clipped to `distance`; between a token
    and a global token, r is whether the token belongs to the global token's sentence. Queries of
    tokens and of global tokens have separate tables a and b.

    Attributes:
        block: W.
        distance: the largest distance with separate parameters; larger distances share them.
        relative_init: initializer of a_r.
    """

    block: int = dataclasses.field(kw_only=True)
    distance: int = dataclasses.field(kw_only=True)
    relative_init: Initializer = nn.initializers.normal(0.02)

    def setup(self) -> None:
        others = self.position, self.window
        if self.compute.core is not dense_core or others != (None, None):
            raise ValueError(
                "a GlobalLocalAttention has its own core, positions and window: leave core, "
                "position and window out"
            )
        super().setup()

    @nn.compact
    def attend(
        self,
        x: Float[Array, "B T D"],
        keys_values: KeyValues,
        *,
        mask: AttentionMask,
        bias: Float[Array, "B H T S"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        extra: PyTree = None,
        deterministic: bool = True,
        with_scores: bool = False,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Return the output for each global token, and then for each token of the text.

        Args:
            mask: a `SentenceMask`, from whose shape the number of global tokens is read.
            bias, positions, extra: not used.

        Raises:
            ValueError: `with_scores` is set: the scores are never all computed at once.
        """
        del bias, positions, extra  # positions are relative
        if with_scores:
            raise ValueError(
                "collect='attention_scores': global-local attention never has all scores at once"
            )
        assert isinstance(mask, SentenceMask)
        count = mask.global_segments.shape[1]
        axes = ("activation_batch", "activation_length", "activation_heads", None)
        query = checkpoint_name(nn.with_logical_constraint(self.query(x), axes), KEPT)
        drops = self.compute.dropout > 0.0 and not deterministic
        rngs = jax.random.split(self.make_rng("dropout")) if drops else (None, None)
        settings: dict[str, Any] = {
            "scale": self.scale_factor,
            "dropout": self.compute.dropout,
            "dropout_broadcast": self.compute.dropout_broadcast,
        }
        text = _attend_from_text(
            query[:, count:],
            keys_values,
            self._relative("text", query[:, count:]),
            mask=mask,
            block=self.block,
            distance=self.distance,
            dropout_rng=rngs[0],
            **settings,
        )
        terms = self._relative("global", query[:, :count])
        summaries = dense_core(
            query[:, :count],
            keys_values,
            bias=_from_global(terms, mask, distance=self.distance),
            mask=ComputedMask(allowed=_seen_by_global(mask)),
            dropout_rng=rngs[1],
            **settings,
        )
        size = x.shape[-1]
        outs = [self._out("global_out", summaries, size), self._out("out", text, size)]
        return jnp.concatenate(outs, axis=1), None

    def _relative(self, side: str, query: Float[Array, "B T H K"]) -> Float[Array, "B H T R"]:
        """Return the score term of each relation r for each query.

        The R relations are the 2 * distance + 1 distances, then "another sentence" and "the same
        sentence".
        """
        shape = (2 * self.distance + 3, *query.shape[2:])
        axes = ("positions", "heads", "kv")
        init = nn.with_logical_partitioning(self.relative_init, axes)
        table = self.param(f"{side}_relative", init, shape)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, axes[:2])
        bias = self.param(f"{side}_relative_bias", zeros, shape[:2])
        terms = jnp.einsum("BTHK,RHK->BHTR", query, table.astype(query.dtype))
        return self.scale_factor * (terms + bias.T[:, None].astype(query.dtype))

    def _out(self, name: str, values: Float[Array, "B T H K"], size: int) -> Float[Array, "B T D"]:
        return Linear(
            (size,),
            axes=("heads", "kv", "embed"),
            contract=2,
            use_bias=self._has_bias("out"),
            kernel_init=self.out_init,
            compute=self.compute,
            name=name,
        )(checkpoint_name(values, KEPT))


def _attend_from_text(
    query: Float[Array, "B L H K"],
    keys_values: KeyValues,
    relative: Float[Array, "B H L R"],
    *,
    mask: SentenceMask,
    block: int,
    distance: int,
    **settings: Any,
) -> Float[Array, "B L H K"]:
    """Return the attention output of the text, computed block by block.

    Each block of queries attends to three blocks of the text and to all global tokens.
    """
    batch, length = query.shape[:2]
    number = -(-length // block)

    blocks = functools.partial(into_blocks, block=block)

    def rows(x: Float[Array, "B n ..."]) -> Float[Array, "b ..."]:
        return x.reshape(batch * number, *x.shape[2:])

    def keys(x: Float[Array, "B S H K"]) -> Float[Array, "b s H K"]:
        summaries, text = jnp.split(x, [mask.global_segments.shape[1]], axis=1)
        summaries = jnp.broadcast_to(summaries[:, None], (batch, number, *summaries.shape[1:]))
        return rows(jnp.concatenate([with_neighbors(blocks(text)), summaries], axis=2))

    segments = blocks(mask.text_segments)
    near = jnp.where(neighbors_exist(number, block), with_neighbors(segments), 0)
    own, seen = blocks(mask.own()), blocks(mask.same_document())
    seen = seen & own if mask.hard_text else seen
    same = (segments[..., None] == near[:, :, None]) & (near[:, :, None] > 0)

    terms = rows(blocks(jnp.moveaxis(relative, 1, 2)))  # [b W H R]
    terms = jnp.moveaxis(terms, 2, 1)  # [b H W R]
    bias = jnp.concatenate(
        [_of_distance(terms, distances(block), distance), _of_own(terms, rows(own)[:, None])],
        axis=-1,
    )
    out = dense_core(
        rows(blocks(query)),
        KeyValues.from_positions(*map(keys, keys_values.by_position())),
        bias=bias,
        mask=ComputedMask(allowed=rows(jnp.concatenate([same, seen], axis=-1))[:, None]),
        **settings,
    )
    return out.reshape(batch, number * block, *query.shape[2:])[:, :length]


def _of_distance(
    terms: Float[Array, "b H T R"], apart: Int[np.ndarray, "T S"], distance: int
) -> Float[Array, "b H T S"]:
    """Return the relative terms of the distances `apart` between T queries and S keys."""
    index = jnp.asarray(np.clip(apart, -distance, distance) + distance)
    return jnp.take_along_axis(terms, index[None, None], axis=-1)


def _of_own(terms: Float[Array, "b H T R"], own: Bool[Array, "b 1 T S"]) -> Float[Array, "b H T S"]:
    """Return the relative terms between text tokens and global tokens."""
    return jnp.where(own, terms[..., -1:], terms[..., -2:-1])


def _from_global(
    terms: Float[Array, "B H G R"], mask: SentenceMask, *, distance: int
) -> Float[Array, "B H G S"]:
    """Return the relative terms of the global tokens with each other and with the text."""
    count = terms.shape[2]
    apart = np.arange(count) - np.arange(count)[:, None]
    own = jnp.moveaxis(mask.own(), 1, 2)[:, None]
    return jnp.concatenate([_of_distance(terms, apart, distance), _of_own(terms, own)], axis=-1)


def _seen_by_global(mask: SentenceMask) -> Bool[Array, "B 1 G S"]:
    """Return which global tokens and which tokens each global token attends to."""
    summary = mask.global_segments
    text = mask.same_document()
    text = text & mask.own() if mask.hard_global else text
    each_other = (summary[:, :, None] == summary[:, None]) & (summary[:, :, None] > 0)
    return jnp.concatenate([each_other, jnp.moveaxis(text, 1, 2)], axis=-1)[:, None]


# ---- An encoder with global tokens in front of its text: Ainslie et al. 2020 (ETC).


class GlobalLocalEmbeddings(nn.Module):
    """norm(token + kind) for G equal global tokens and for the text, without absolute positions.

    Attributes:
        make_tokens: factory of the token embeddings.
        make_kinds: factory of the embeddings of the two kinds, global token (0) and text (1).
        make_norm: factory of the norms, which differ between the two kinds.
        count: G.
        token_id: the id of all global tokens.
    """

    make_tokens: Callable[..., nn.Module]
    make_kinds: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]
    count: int
    token_id: int

    def setup(self) -> None:
        self.token = self.make_tokens()
        self.kinds = self.make_kinds()
        self.norm, self.global_norm = self.make_norm(), self.make_norm()

    def __call__(self, batch: Batch) -> Float[Array, "B T D"]:
        """Return the normed sums, T = G + L, with the global tokens first."""
        tokens = batch["encoder_input_tokens"]
        ids = jnp.full((tokens.shape[0], self.count), self.token_id, tokens.dtype)
        summaries = self.token(ids) + self.kinds(jnp.zeros_like(ids))
        text = self.token(tokens) + self.kinds(jnp.ones_like(tokens))
        return jnp.concatenate([self.global_norm(summaries), self.norm(text)], axis=1)

    @property
    def table(self) -> Float[Array, "V D"]:
        """The embedding table, for a head that is tied to it."""
        return self.token.embedding


class GlobalLocalBlock(PostNormBlock):
    """A post-norm layer whose attention has a separate norm for global tokens, as released.

    Attributes:
        count: the number of global tokens.
    """

    count: int = 0

    def setup(self) -> None:
        super().setup()
        self.global_attention_norm = self.make_norm()

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        if norm is not self.self_attention_norm:
            return super()._sublayer_output(x, y, norm, shared)
        z = x + self.drop(y, shared.deterministic)
        parts = [self.global_attention_norm(z[:, : self.count]), norm(z[:, self.count :])]
        return constrain(jnp.concatenate(parts, axis=1))


class GlobalLocalEncoder(Encoder, kw_only=True):  # type: ignore[call-arg]
    """An encoder with a global token for each sentence.

    A batch may have `encoder_sentences` [B, L], the number of each token's sentence, counted from
    1, or 0 for none; without it each document is one sentence. Sentences after the first G have no
    global token.

    Attributes:
        count: G.
        hard_global, hard_text: see `SentenceMask`.
    """

    count: int
    hard_global: bool = True
    hard_text: bool = False

    def compare(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """Return the outputs of the head, and two encodings of each sentence.

        Args:
            batch: with `encoder_sentences` and `encoder_target_tokens`, the text without noise.

        Returns:
            The outputs of the head; `summaries` [B, G, D], the states of the global tokens; and
            `alone` [B, G, D], their states in a second forward pass over the text without noise, in
            which every sentence attends only to itself and its global token.
        """
        states, _ = super()._encode(batch, deterministic=deterministic, collect=())
        hidden, table = states[:, self.count :], self.table()
        outputs = self.head(hidden, table, batch, deterministic=deterministic)
        sentences = {
            "encoder_input_tokens": batch["encoder_target_tokens"],
            "encoder_segment_ids": batch["encoder_sentences"],
            "encoder_sentences": batch["encoder_sentences"],
        }
        alone, _ = super()._encode(sentences, deterministic=deterministic, collect=())
        return outputs | {"summaries": states[:, : self.count], "alone": alone[:, : self.count]}

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Collected]]:
        states, collected = super()._encode(batch, deterministic=deterministic, collect=collect)
        return states[:, self.count :], collected

    def mask(self, batch: Batch) -> SentenceMask:
        """Return the attention mask, with a global token for each sentence of the batch."""
        segments = batch["encoder_segment_ids"]
        sentences = batch.get("encoder_sentences", segments)
        return SentenceMask(
            text_segments=segments,
            sentences=sentences,
            global_segments=documents_of_sentences(sentences, segments, count=self.count),
            hard_global=self.hard_global,
            hard_text=self.hard_text,
        )


def documents_of_sentences(
    sentences: Int[Array, "B L"], values: Int[Array, "B L"], *, count: int
) -> Int[Array, "B G"]:
    """Return the largest of `values` in each of the first G sentences, 0 for missing sentences."""
    numbers = jnp.arange(1, count + 1)[:, None]
    own: Any = sentences[:, None] == numbers
    return jnp.max(jnp.where(own, values[:, None], 0), axis=-1)


def build(config: BigBirdEtcConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: global tokens in front of a text.

    Args:
        config: its `head` is "pretraining" (predict masked tokens, and find hidden sentences with
            their global tokens), "masked_lm" or a head of `select_head`; `global_tokens` is the
            number of global tokens, and `global_token` is their id; for `hard_global` and
            `hard_text` see `SentenceMask`; `block` is the number of tokens in a block, and
            `distance` the largest relative position.

    Raises:
        ValueError: the head is unknown, or `block` or `global_tokens` is below 1.
    """
    for name in ("block", "global_tokens"):
        if config[name] < 1:
            raise ValueError(f"model.{name}={config[name]} must be 1 or more")
    masked_lm = functools.partial(
        MaskedLMHead, make_masked_lm=bert.masked_lm(config, activation=bigbird.GELU)
    )
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    own = {"pretraining": masked_lm, "masked_lm": masked_lm}
    return GlobalLocalEncoder(
        make_embeddings=embeddings(config),
        make_encoder=tower(config),
        make_head=select_head(config, own, make_pooler=make_pooler, kernel_init=config.init),
        count=config.global_tokens,
        hard_global=config.hard_global,
        hard_text=config.hard_text,
    )


def embeddings(config: BigBirdEtcConfig) -> Callable[..., nn.Module]:
    """Return a factory of the `GlobalLocalEmbeddings`."""
    table = functools.partial(
        TokenEmbed, features=config.d_model, embedding_init=config.init, compute=config.compute
    )
    return functools.partial(
        GlobalLocalEmbeddings,
        make_tokens=functools.partial(table, vocab_size=config.vocab_size),
        make_kinds=functools.partial(
            table,
            vocab_size=2,
            axis="types",
            compute=dataclasses.replace(config.compute, lookup="one_hot"),
        ),
        make_norm=functools.partial(bert.NORM, compute=config.compute),
        count=config.global_tokens,
        token_id=config.global_token,
    )


def tower(config: BigBirdEtcConfig) -> Callable[..., nn.Module]:
    """Return a factory of a tower of BERT's layers with global-local attention."""
    block = functools.partial(
        GlobalLocalBlock,
        make_norm=functools.partial(bert.NORM, compute=config.compute),
        make_self_attention=functools.partial(
            GlobalLocalAttention,
            block=config.block,
            distance=config.distance,
            heads=config.heads,
            width=config.d_model // config.heads,
            use_bias=True,
            query_init=config.init,
            kernel_init=config.init,
            out_init=config.init,
            relative_init=config.init,
            compute=config.compute,
        ),
        make_feed_forward=bert.feed_forward(
            config.d_ff, config.init, config.compute, activation=bigbird.GELU
        ),
        compute=config.compute,
        count=config.global_tokens,
    )
    return functools.partial(
        Tower,
        make_stack=functools.partial(
            Stack, make_block=block, layers=config.layers, compute=config.compute
        ),
        compute=config.compute,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    sentences: float = 0.25,
    predicted: float = 0.2,
) -> losses.LossSums:
    """Return the mean loss of masked tokens plus `contrast` of hidden sentences (appendix E.2).

    Args:
        rng: key of dropout; None in evaluation.
        sentences: weight of the mean loss of hidden sentences.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no hidden sentences.
    """
    if "encoder_hidden" not in batch:
        raise ValueError(
            "model.head='pretraining' finds hidden sentences, and the batch has none: set "
            "data.objective='etc', or model.head='masked_lm'"
        )
    outputs, masked = losses.predict_masked(
        module, params, batch, rng, share=predicted, method="compare"
    )
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "sentences": (sentences, contrast(outputs, batch)),
        }
    )


def contrast(outputs: Outputs, batch: Batch) -> losses.LossSums:
    """Return the loss of finding each hidden sentence among the sentences of its row.

    This is contrastive predictive coding with a dual encoder (Ainslie et al. 2020). Among the
    encodings of single sentences (`alone`), the encoding of the hidden sentence should be nearest
    to the state of its global token (`summaries`), which is computed from the rest of the row. The
    logits are the dot products of the two, divided by the square root of their width.

    Args:
        outputs: with `summaries` and `alone` [B, G, D].
        batch: with `encoder_sentences` and `encoder_hidden` [B, L], 1 on hidden sentences.
    """
    summaries, alone = outputs["summaries"], outputs["alone"]
    count, width = summaries.shape[1:]
    numbers = batch["encoder_sentences"]
    real = documents_of_sentences(numbers, jnp.ones_like(numbers), count=count) > 0
    hidden = documents_of_sentences(numbers, batch["encoder_hidden"], count=count)
    logits = jnp.einsum("BGD,BSD->BGS", summaries, alone).astype(jnp.float32) * width**-0.5
    logits = jnp.where(real[:, None], logits, -1e9)
    targets = jnp.broadcast_to(jnp.arange(count), hidden.shape)
    return losses.cross_entropy(logits, targets, hidden)


# Paths of the layers: scanned, and unrolled up to the depth of the largest size.
_LAYERS = [f"encoder/layers/{layer}" for layer in ("block", *(f"layer_{n}" for n in range(24)))]


def _copies() -> dict[str, tuple[str, ...]]:
    """Return the `sums` that initialize parameters of global tokens from a RoBERTa.

    The norms and output projections of global tokens start as copies of the text's.
    """
    pairs = {"embeddings/global_norm": "embeddings/norm"}
    for layer in _LAYERS:
        pairs[f"{layer}/global_attention_norm"] = f"{layer}/self_attention_norm"
        pairs[f"{layer}/self_attention/global_out"] = f"{layer}/self_attention/out"
    return {
        f"{here}/{leaf}": (f"{there}/{leaf}",)
        for here, there in pairs.items()
        for leaf in ("scale", "kernel", "bias")
    }


SYSTEM = System(
    name="bigbird_etc",
    sizes=SIZES,
    build=build,
    later=bert.EARLIER_INIT,
    adapt=functools.partial(
        adaptation,
        new=(
            "embeddings/kinds/",
            *(f"{layer}/self_attention/{side}_relative" for layer in _LAYERS for side in _SIDES),
        ),
        sums=_copies(),
    ),
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
