"""BigBird-ETC: Zaheer et al. 2020 (arXiv:2007.14062), after Ainslie et al. 2020 (2004.08483)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import losses
from t5x_like.nn.blocks import PostNormBlock, Shared, constrain_residual
from t5x_like.nn.compute import GELU_TANH, Batch, Outputs
from t5x_like.nn.embeddings import TokenEmbed
from t5x_like.nn.encoder_heads import (
    AnswerHead,
    MaskedLMHead,
    Pooler,
    output_layer,
    select_head,
)
from t5x_like.nn.linear import Initializer
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems import bert
from t5x_like.systems.bigbird_etc.global_local_attention import GlobalLocalAttention, SentenceMask
from t5x_like.systems.system import (
    EARLIER_INIT,
    ENCODER_TASKS,
    Config,
    DropoutConfig,
    InitConfig,
    LayersConfig,
    System,
    Task,
    adaptation,
    head_width,
)

_SIDES = ("text", "global")  # which have separate tables of relative positions


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BigBirdEtcConfig(InitConfig, DropoutConfig, LayersConfig):
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
        return constrain_residual(jnp.concatenate(parts, axis=1))


class GlobalLocalEncoder(Encoder, kw_only=True):  # type: ignore[call-arg]
    """An encoder with a global token for each sentence.

    A batch may have `encoder_sentences` [B, L], the number of each token's sentence, counted from
    1, or 0 for none; without it each document is one sentence. Sentences after the first G have no
    global token. With `encoder_paragraphs` and `encoder_candidates` [B, L] its first sentences are
    candidate answers and the tokens of a question, see the objective `candidates`, whose global
    tokens attend to the whole document. With `encoder_paragraphs` and `encoder_titles` [B, L], see
    the objective `supporting_facts`, only the global token of [CLS] does.

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
        states, _ = self._encode(batch, deterministic=deterministic, collect=())
        outputs = self.apply_head(states, batch, deterministic=deterministic)
        sentences = {
            "encoder_input_tokens": batch["encoder_target_tokens"],
            "encoder_segment_ids": batch["encoder_sentences"],
            "encoder_sentences": batch["encoder_sentences"],
        }
        alone, _ = self._encode(sentences, deterministic=deterministic, collect=())
        return outputs | {"summaries": states[:, : self.count], "alone": alone[:, : self.count]}

    def encode(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B L D"]:
        """Return the output of the last layer for the text."""
        return super().encode(batch, deterministic=deterministic)[:, self.count :]

    def apply_head(
        self, hidden: Float[Array, "B T D"], batch: Batch, *, deterministic: bool
    ) -> Outputs:
        """Return the outputs of the head, whose batch also has the states `summaries` [B, G, D]."""
        summaries, text = jnp.split(hidden, [self.count], axis=1)
        return super().apply_head(
            text, {**batch, "summaries": summaries}, deterministic=deterministic
        )

    def mask(self, batch: Batch) -> SentenceMask:
        """Return the attention mask, with a global token for each sentence of the batch."""
        segments = batch["encoder_segment_ids"]
        sentences = batch.get("encoder_sentences", segments)
        of_sentences = functools.partial(documents_of_sentences, sentences, count=self.count)
        mask = SentenceMask(
            text_segments=segments,
            sentences=sentences,
            global_segments=of_sentences(segments),
            hard_global=self.hard_global,
            hard_text=self.hard_text,
        )
        if "encoder_paragraphs" not in batch:
            return mask
        paragraphs = of_sentences(batch["encoder_paragraphs"])
        has_candidates = "encoder_candidates" in batch
        return dataclasses.replace(
            mask,
            # Candidates and the question, or [CLS].
            everywhere=paragraphs <= (number_of_candidates(batch) + 1 if has_candidates else 1),
            paragraphs=batch["encoder_paragraphs"],
            global_paragraphs=paragraphs,
            links=batch["encoder_candidates" if has_candidates else "encoder_titles"],
        )


def documents_of_sentences(
    sentences: Int[Array, "B L"], values: Int[Array, "B L"], *, count: int
) -> Int[Array, "B G"]:
    """Return the largest of `values` in each of the first G sentences, 0 for missing sentences."""
    numbers = jnp.arange(1, count + 1)[:, None]
    in_sentence: Any = sentences[:, None] == numbers
    return jnp.max(jnp.where(in_sentence, values[:, None], 0), axis=-1)


def number_of_candidates(batch: Batch) -> Int[Array, "B 1"]:
    """Return the number of candidates of each row, each of which the row mentions."""
    return jnp.max(batch["encoder_candidates"], axis=1, keepdims=True)


class CandidateHead(nn.Module):
    """The score of each candidate by a dense layer on its global token (appendix E.2, WikiHop).

    Attributes:
        dropout: rate for the states of the global tokens.
    """

    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32 [B, G]; -1e9 for global tokens that are not candidates."""
        states = nn.Dropout(self.dropout)(batch["summaries"], deterministic)
        scores = output_layer(1, self.kernel_init, "candidate")(states)[..., 0]
        if self.is_initializing():  # with a batch without candidates
            return {"logits": scores}
        numbers = jnp.arange(1, scores.shape[1] + 1)
        return {"logits": jnp.where(numbers <= number_of_candidates(batch), scores, -1e9)}


class SupportingFactsHead(nn.Module):
    """The span of an answer, its type, and whether each sentence supports it.

    These are dense layers, as released, without a pooler or dropout: on the text, on the first
    global token, and on all global tokens (appendix E.2, HotpotQA).
    """

    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `start_logits`, `end_logits` [B, L], `type_logits` [B, 3], `fact_logits` [B, G].

        All are float32.
        """
        summaries = batch["summaries"]
        make_span = AnswerHead(kernel_init=self.kernel_init, name="span")
        make_type = output_layer(3, self.kernel_init, "type")
        make_fact = output_layer(1, self.kernel_init, "fact")
        return {
            **make_span(hidden, table, batch, deterministic=deterministic),
            "type_logits": make_type(summaries[:, 0]),
            "fact_logits": make_fact(summaries)[..., 0],
        }


def supporting_facts_loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> losses.LossSums:
    """Return the mean of four losses: start, end and type of the answer, and supporting facts.

    The last is the sum of the binary cross-entropies of a row's titles and sentences, as released.

    Args:
        rng: key of dropout; None in evaluation.
    """
    outputs = losses.forward(module, params, batch, rng)
    real = losses.real_rows(batch)
    scores = outputs["fact_logits"]
    of_sentences = functools.partial(
        documents_of_sentences, batch["encoder_sentences"], count=scores.shape[1]
    )
    are_facts = of_sentences(batch["encoder_facts"]) > 0
    have_titles = of_sentences(batch["encoder_titles"]) > 0  # not [CLS] and the question
    facts, _, metrics = losses.binary(scores, are_facts, have_titles)
    rows = jnp.sum(real, dtype=jnp.float32)
    return losses.combine(
        {
            "span": (0.5, losses.fine_tuning.question_answering(outputs, batch)),
            "type": (0.25, losses.classification(outputs["type_logits"], batch["label"], real)),
            "facts": (0.25, (facts, rows, metrics)),
        }
    )


class LongAnswersHead(nn.Module):
    """The spans of the long and the short answer on the text, and the type of the answer on [CLS].

    These are dense layers, as released (appendix E.2, Natural Questions).
    """

    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return logits, in float32.

        `start_logits` and `end_logits` [B, L] of the short answer, `long_start_logits` and
        `long_end_logits` [B, L] of the long answer, and `type_logits` [B, 5].
        """
        short, long_answer = (
            AnswerHead(kernel_init=self.kernel_init, name=name)(hidden, table, batch)
            for name in ("short", "long")
        )
        types = output_layer(5, self.kernel_init, "type")(hidden[:, 0])
        long_logits = {f"long_{name}": logits for name, logits in long_answer.items()}
        return {**short, **long_logits, "type_logits": types}


def long_answers_loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> losses.LossSums:
    """Return the mean of five cross-entropies: both ends of both answers, and their type.

    Args:
        rng: key of dropout; None in evaluation.
    """
    outputs = losses.forward(module, params, batch, rng)
    long_logits = outputs["long_start_logits"], outputs["long_end_logits"]
    real = losses.real_rows(batch)
    in_row = batch["encoder_segment_ids"] > 0
    return losses.combine(
        {
            "short": (0.4, losses.fine_tuning.question_answering(outputs, batch)),
            "long": (0.4, losses.spans(*long_logits, batch["long_answer"], in_row)),
            "type": (0.2, losses.classification(outputs["type_logits"], batch["label"], real)),
        }
    )


def check_long_answers(model: Config, objective: Config) -> None:
    """Check that a question leaves a global token for a paragraph.

    Raises:
        ValueError: it may not.
    """
    longest, count = objective["longest_question"], model["global_tokens"]
    if longest + 3 > count:
        raise ValueError(
            f"model.global_tokens={count}: [CLS], [SEP], data.objective_settings."
            f"longest_question={longest} tokens and a paragraph need {longest + 3} global tokens"
        )


def check_supporting_facts(model: Config, objective: Config) -> None:
    """Check that each sentence of a row has a global token.

    Raises:
        ValueError: it may not.
    """
    sentences, count = objective["sentences"], model["global_tokens"]
    if sentences > count:
        raise ValueError(
            f"model.global_tokens={count}: data.objective_settings.sentences={sentences} need as "
            "many global tokens"
        )


def check_candidates(model: Config, objective: Config) -> None:
    """Check that candidates and a question have enough global tokens.

    Raises:
        ValueError: they do not.
    """
    choices, longest = objective["choices"], objective["longest_question"]
    count = model["global_tokens"]
    if choices + longest > count:
        raise ValueError(
            f"model.global_tokens={count}: data.objective_settings.choices={choices} candidates "
            f"and data.objective_settings.longest_question={longest} tokens of a question need "
            f"{choices + longest} global tokens"
        )


def build(config: BigBirdEtcConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: global tokens in front of a text.

    Args:
        config: its `head` is "pretraining" (predict masked tokens, and find hidden sentences with
            their global tokens), "masked_lm", "candidates" (see `CandidateHead`),
            "supporting_facts" (see `SupportingFactsHead`), "long_answers" (see `LongAnswersHead`)
            or a head of `select_head`; `global_tokens` is the number of global tokens, and
            `global_token` is their id; for `hard_global` and `hard_text` see `SentenceMask`;
            `block` is the number of tokens in a block, and `distance` the largest relative
            position.

    Raises:
        ValueError: the head is unknown, or `block` or `global_tokens` is below 1.
    """
    for name in ("block", "global_tokens"):
        if config[name] < 1:
            raise ValueError(f"model.{name}={config[name]} must be 1 or more")
    masked_lm = functools.partial(
        MaskedLMHead, make_masked_lm=bert.masked_lm(config, activation=GELU_TANH)
    )
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    candidates = functools.partial(CandidateHead, kernel_init=config.init, dropout=config.dropout)
    heads: dict[str, Callable[..., nn.Module]] = {
        "pretraining": masked_lm,
        "masked_lm": masked_lm,
        "candidates": candidates,
        "supporting_facts": functools.partial(SupportingFactsHead, kernel_init=config.init),
        "long_answers": functools.partial(LongAnswersHead, kernel_init=config.init),
    }
    return GlobalLocalEncoder(
        make_embeddings=embeddings(config),
        make_encoder=tower(config),
        make_head=select_head(config, heads, make_pooler=make_pooler, kernel_init=config.init),
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
            width=head_width(config),
            use_bias=True,
            query_init=config.init,
            kernel_init=config.init,
            out_init=config.init,
            relative_init=config.init,
            compute=config.compute,
        ),
        make_feed_forward=bert.feed_forward(
            config.d_ff, config.init, config.compute, activation=GELU_TANH
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
        f"{here}/{leaf}": (f"{copied}/{leaf}",)
        for here, copied in pairs.items()
        for leaf in ("scale", "kernel", "bias")
    }


SYSTEM = System(
    name="bigbird_etc",
    sizes=SIZES,
    build=build,
    older_defaults=EARLIER_INIT,
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
        "candidates": Task(
            loss=functools.partial(losses.fine_tuning.loss, "classification"),
            prediction="candidates",
            measures=("predictions",),
            objective="candidates",
            check=check_candidates,
        ),
        "supporting_facts": Task(
            loss=supporting_facts_loss,
            prediction="supporting_facts",
            measures=("predictions",),
            objective="supporting_facts",
            check=check_supporting_facts,
        ),
        "long_answers": Task(
            loss=long_answers_loss,
            prediction="long_answers",
            measures=("predictions",),
            objective="long_answers",
            check=check_long_answers,
        ),
        **ENCODER_TASKS,
    },
)
