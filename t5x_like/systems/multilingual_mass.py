"""MASS for translation without pairs: Song et al. 2019, sections 4.1 and 4.2."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import decoding
from t5x_like.decoding.generator import Generator
from t5x_like.losses import autoregressive
from t5x_like.losses.sums import LossSums, combine, forward
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.nn.blocks import Shared
from t5x_like.nn.compute import Batch
from t5x_like.nn.embeddings import TokenEmbed, VocabularyProduct
from t5x_like.nn.networks import EncoderDecoder
from t5x_like.systems import bart, mass
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultilingualMassConfig(mass.MassConfig):
    """The settings of a MASS with language embeddings.

    Attributes:
        languages: the number of languages.
        source_language, target_language: the languages of the encoder's and of the decoder's text,
            from 0, unless a task of the run has others in its `loss`.
    """

    languages: int = 2
    source_language: int = 0
    target_language: int = 1


SIZES: dict[str, MultilingualMassConfig] = {
    name: size.to(MultilingualMassConfig) for name, size in mass.SIZES.items()
}


# ---- Two languages: each token's embedding is added to the embedding of its language.


class MultilingualEncoderDecoder(EncoderDecoder, kw_only=True):  # type: ignore[call-arg]
    """An `EncoderDecoder` whose tokens also have an embedding of their language (section 4.1).

    The languages are attributes, so that a clone of the network translates the other way round.

    Attributes:
        make_languages: factory of the embeddings of languages, which both sides share.
        languages: the number of languages.
        source_language, target_language: the language of each side.
    """

    make_languages: Callable[..., nn.Module]
    languages: int
    source_language: int
    target_language: int

    def setup(self) -> None:
        super().setup()
        self.language_embedder = self.make_languages()

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """Return the input of the encoder."""
        return super().read(tokens, shared) + self._language(tokens, self.source_language)

    def write(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return the input of the decoder."""
        return super().write(tokens) + self._language(tokens, self.target_language)

    def apart(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[VocabularyProduct, VocabularyProduct]:
        """Return the logits [B, S, V] of the encoder's tokens, and [B, T, V] of the decoder's.

        The decoder reads zeros for the encoder's output.
        """
        memory, segments = self.encode(batch, deterministic=deterministic)
        x, _ = self._decode(batch, jnp.zeros_like(memory), segments, deterministic=deterministic)
        return self._product(memory), self._product(x)

    def _language(self, tokens: Array, number: int) -> Array:
        return self.language_embedder(jnp.full(tokens.shape, number))


def between(module: nn.Module, source: int | None, target: int | None) -> nn.Module:
    """Return the network for texts of these languages; None for the network's own.

    Raises:
        ValueError: the network has no such language.
    """
    names = {"source_language": source, "target_language": target}
    chosen = {name: number for name, number in names.items() if number is not None}
    languages = module.languages
    for name, number in chosen.items():
        if not 0 <= number < languages:
            raise ValueError(
                f"loss.{name}={number} must be below model.languages={languages}, from 0 on"
            )
    return module.clone(**chosen)


def build(config: MultilingualMassConfig) -> nn.Module:
    """Build a MASS with language embeddings.

    Raises:
        ValueError: the source or the target language is not one of the languages.
    """
    sides = {name: config[name] for name in ("source_language", "target_language")}
    for name, number in sides.items():
        if not 0 <= number < config.languages:
            raise ValueError(
                f"model.{name}={number} must be below model.languages={config.languages}, from 0 on"
            )
    network = mass.build(config)
    make_languages = functools.partial(
        TokenEmbed,
        vocab_size=config.languages,
        features=config.d_model,
        axis="types",
        embedding_init=bart.INIT,
        compute=dataclasses.replace(config.compute, lookup="one_hot"),
    )
    return MultilingualEncoderDecoder(
        make_embedding=network.make_embedding,
        make_encoder=network.make_encoder,
        make_decoder=network.make_decoder,
        make_head=network.make_head,
        make_languages=make_languages,
        languages=config.languages,
        **sides,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    source_language: int | None = None,
    target_language: int | None = None,
    bert_lm: bool = False,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> LossSums:
    """Return the cross-entropy of the target tokens, see `losses.cross_entropy`.

    Args:
        batch: with `bert_lm`, the encoder's rows are the targets with some tokens replaced.
        rng: the dropout key; None in evaluation.
        source_language, target_language: the languages of the batch; None for the network's.
        bert_lm: whether both sides are pretrained apart (BERT+LM, table 3): the encoder predicts
            the tokens that were replaced, and the decoder, a language model, reads no encoder. The
            loss is the sum of both means.

    Raises:
        ValueError: with `bert_lm`, the rows of both sides differ in length.
    """
    module = between(module, source_language, target_language)
    smoothing = {"z_loss": z_loss, "label_smoothing": label_smoothing}
    if not bert_lm:
        return autoregressive.loss(module, params, batch, rng, **smoothing)
    inputs, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
    if inputs.shape != targets.shape:
        raise ValueError("loss.bert_lm=True needs equal data.lengths.inputs and targets")
    weights = batch["decoder_loss_weights"]
    bert, lm = forward(module, params, batch, rng, method="apart")
    terms = {
        "lm": (1.0, cross_entropy(lm, targets, weights, **smoothing)),
        "bert": (1.0, cross_entropy(bert, targets, weights * (inputs != targets), **smoothing)),
    }
    return combine(terms)


def prepare(
    module: nn.Module,
    state: Any,
    batch: Batch,
    rng: jax.Array,
    *,
    source_language: int | None = None,
    target_language: int | None = None,
    back_translation: bool = False,
) -> Batch:
    """Return the batch, or a batch whose sources are translations of its targets (section 4.2).

    In back-translation (Sennrich et al. 2016; Lample et al. 2018) the newest network translates the
    targets, texts of one language, into the source language, greedily; it is then trained to
    translate them back. A translation has at most as many tokens as the encoder's rows.

    Args:
        batch: `decoder_target_tokens` [B, T], each row one text with an end token of loss weight
            above 0; the encoder's tokens [B, S] are replaced.
        source_language, target_language: see `loss`.
        back_translation: whether to translate; without it the batch is returned as it is.

    Raises:
        ValueError: back-translation without both languages, or with packed rows.
    """
    del rng
    if not back_translation:
        return batch
    if source_language is None or target_language is None:
        raise ValueError(
            "loss.back_translation=True needs loss.source_language and loss.target_language"
        )
    if "encoder_positions" in batch:
        raise ValueError("loss.back_translation=True reads one text a row: set data.pack=False")
    module = between(module, source_language, target_language)
    translator = between(module, target_language, source_language)
    real = batch["decoder_loss_weights"] > 0
    texts = jnp.where(real, batch["decoder_target_tokens"], 0)
    new = batch["encoder_input_tokens"].shape[1]
    generator = Generator(translator, state.params)
    arguments = {
        "encoder_input_tokens": texts,
        "encoder_mask": real,
        "decoder_input_tokens": batch["decoder_input_tokens"][:, :1],
    }
    logits, cache = generator.prefill(arguments, cache_length=1 + new)
    translated = decoding.generate(generator.extend, logits, cache, max_new_tokens=new, eos_ids=())
    # A translation ends with the token that ends its text.
    last = jnp.maximum(jnp.sum(real, axis=1, keepdims=True) - 1, 0)
    ends = translated.tokens == jnp.take_along_axis(texts, last, axis=1)
    inside = jnp.cumsum(ends, axis=1) - ends == 0
    inside &= jnp.any(real, axis=1, keepdims=True)
    return {
        **batch,
        "encoder_input_tokens": jnp.where(inside, translated.tokens, 0),
        "encoder_segment_ids": inside.astype(jnp.int32),
    }


SYSTEM = System(
    name="multilingual_mass",
    sizes=SIZES,
    build=build,
    tasks={"": Task(loss=loss, prepare=prepare, prediction="text")},
)
