"""Networks: encoder, decoder and encoder-decoder, of towers.

A tower is a stack of layers with an entrance for its inputs, a position bias and a final norm.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.nn.attention.cache import Cache, open_cache
from t5x_like.nn.attention.positions import AttentionMask, Padding, Visibility
from t5x_like.nn.blocks import Collected, Shared, collect_layers
from t5x_like.nn.compute import Batch, Compute, Outputs, make_dropout
from t5x_like.nn.embeddings import VocabularyProduct, positions_of
from t5x_like.nn.linear import replicate_last_axis


class Tower(nn.Module):
    """A stack of layers with an entrance, a position bias, a final norm and an exit.

    The carry of the layers may be any tree of arrays [B, T, ...], such as the two streams of XLNet
    (Yang et al. 2019): the entrance then makes the first carry, and the exit reads the last.

    Attributes:
        make_stack: factory of `stack(carry, shared, per_layer) -> (carry, per_layer_out)`.
        make_norm: factory of the norm after the last layer, or None if each layer ends in a norm.
        make_bias: factory of a relative position bias on the scores of all layers, or None:
            `bias(queries=T, keys=S, offset=slot of the first query, bidirectional=whether queries
            attend to later keys)` returns [1, H, T, S] or a `RelativeBias` (its parameters are
            under `relative_position_bias`; see `RelativePositionBias` in systems/t5.py).
        make_entrance: factory of `entrance(x, positions) -> carry`, or None if the first carry is
            x, the token embeddings.
        make_exit: factory of `exit(carry) -> x`, or None if the last carry is the output.
        make_extra: factory of `extra(shared) -> tree`, the arrays that all layers get as
            `shared.extra`, or None.
        compute: its `dropout` applies to every array of the first carry and to the normed output.
    """

    make_stack: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    make_bias: Callable[..., nn.Module] | None = None
    make_entrance: Callable[..., nn.Module] | None = None
    make_exit: Callable[..., nn.Module] | None = None
    make_extra: Callable[..., nn.Module] | None = None
    compute: Compute = Compute()

    def setup(self) -> None:
        if self.make_entrance is not None:
            self.entrance = self.make_entrance()
        self.layers = self.make_stack()
        if self.make_exit is not None:
            self.exit = self.make_exit()
        if self.make_norm is not None:
            self.final_norm = self.make_norm()
        if self.make_bias is not None:
            self.relative_position_bias = self.make_bias()
        if self.make_extra is not None:
            self.extra = self.make_extra()
        self.drop = make_dropout(self.compute)

    def __call__(
        self, x: PyTree, shared: Shared, per_layer: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        """Return the last layer's output after the final norm, and per-layer outputs.

        Args:
            x: the input of the entrance, or of the first layer: [B, T, D], or a tree.
            per_layer: per-layer inputs, such as caches, in the form that the stack takes.

        Returns:
            The output, and the per-layer outputs of the stack: the updated caches, if caches were
            given. If `shared.collect` is not empty, the `Collected` of all layers instead.
        """
        shared = self._complete(x, shared)
        carry = x if self.make_entrance is None else self.entrance(x, shared.positions)
        carry = jax.tree.map(lambda x: self.drop(x, shared.deterministic), carry)
        last, per_layer = self.layers(carry, shared, per_layer)
        if shared.collect:
            per_layer = collect_layers(shared.collect, carry, per_layer)
        x = last if self.make_exit is None else self.exit(last)
        if self.make_norm is not None:
            x = self.drop(self.final_norm(x), shared.deterministic)
        return x, per_layer

    def _complete(self, x: PyTree, shared: Shared) -> Shared:
        """Add the position bias and the `extra` arrays, which all layers share."""
        if self.make_bias is not None:
            queries = jax.tree.leaves(x)[0].shape[1]
            bias = self.relative_position_bias(
                queries=queries,
                keys=shared.mask.keys(queries),
                offset=shared.mask.first_slot,
                bidirectional=shared.mask.visibility != "causal",
            )
            shared = dataclasses.replace(shared, bias=bias)
        if self.make_extra is not None:
            shared = dataclasses.replace(shared, extra=self.extra(shared))
        return shared

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """Return the empty caches of all layers, for `Cache.layers`."""
        return self.make_stack(parent=None).empty_cache(batch=batch, slots=slots)


class Encoder(nn.Module):
    """A bidirectional encoder with a head: Devlin et al. 2018, section 3.

    Attributes:
        make_embeddings: factory of `Embeddings`.
        make_encoder: factory of the tower of layers.
        make_head: factory of `head(hidden, table, batch, deterministic=) -> outputs`: see
            nn/encoder_heads.py.
        make_projection: factory of a projection from the embeddings' width to the layers' width, or
            None if they are equal.
        make_features: factory of `features(hidden states [N + 1, B, L, D]) -> [B, L, F]`, which the
            head reads instead of the last layer's output, or None.
        task: the task whose head runs, for a network with several heads (`Heads`): the module
            `module.clone(task="mnli")` runs the head of mnli on the same parameters.
        sides: the sides of a batch that the network reads.
        generates: False: the network has no `prefill` and `extend`, and does not generate text.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder",)
    generates: ClassVar[bool] = False

    make_embeddings: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_projection: Callable[..., nn.Module] | None = None
    make_features: Callable[..., nn.Module] | None = None
    task: str | None = None

    def setup(self) -> None:
        self.embeddings = self.make_embeddings()
        if self.make_projection is not None:
            self.projection = self.make_projection()
        self.encoder = self.make_encoder()
        if self.make_features is not None:
            self.features = self.make_features()
        self.head = self.make_task_head()

    def make_task_head(self) -> nn.Module:
        """Make the head; if it is `Heads`, with `task` as the task whose head runs."""
        return self.make_head() if self.task is None else self.make_head(task=self.task)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """Return the outputs of the head, and on request the layers' hidden states and scores.

        Args:
            batch: `encoder_input_tokens` and `encoder_segment_ids` [B, L], and the fields that the
                embeddings and the head read. Tokens attend within their segment; segment 0 is
                padding, which must follow the tokens unless `encoder_positions` or
                `encoder_readers` is given. `encoder_readers` [B, L] are the segments that the
                queries attend to. For multiple choice the fields are [B, C, L], one row per choice;
                the head gets hidden states [B * C, L, D] and the unflattened batch.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The outputs of the head; with `collect`, (outputs, {name of the tower: `Collected`}).
        """
        rows = _flat_rows(batch)
        needed = collect if self.make_features is None else ("hidden_states", *collect)
        hidden, collected = self._encode(rows, deterministic=deterministic, collect=needed)
        if self.make_features is not None:
            hidden = replicate_last_axis(self.features(collected["encoder"].hidden_states))
        outputs = self.apply_head(hidden, batch, deterministic=deterministic)
        return (outputs, collected) if collect else outputs

    def apply_head(
        self, hidden: Float[Array, "B L D"], batch: Batch, *, deterministic: bool
    ) -> Outputs:
        """Return the outputs of the head."""
        return self.head(hidden, self.table(), batch, deterministic=deterministic)

    def encode(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B L D"]:
        """Return the output of the last layer."""
        return self._encode(batch, deterministic=deterministic, collect=())[0]

    def table(self) -> Float[Array, "V E"]:
        """Return the token embedding table, for a head that is tied to it."""
        return self.embeddings.table

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        shared = Shared(
            mask=self.mask(batch),
            positions=batch.get("encoder_positions"),
            tokens=batch["encoder_input_tokens"],
            deterministic=deterministic,
            collect=collect,
        )
        hidden, collected = self.encoder(self.embed(batch), shared)
        return hidden, {"encoder": collected}

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the input of the first layer."""
        x = self.embeddings(batch)
        return x if self.make_projection is None else replicate_last_axis(self.projection(x))

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask: all tokens of a segment attend to each other."""
        segments = batch["encoder_segment_ids"]
        if "encoder_positions" in batch:  # the row is packed
            return AttentionMask(query_segments=segments, key_segments=segments)
        return self.mask_of_document(batch)

    @staticmethod
    def mask_of_document(batch: Batch) -> AttentionMask:
        """Return the mask of unpacked rows, in which padding may attend to the document."""
        segments, readers = batch["encoder_segment_ids"], batch.get("encoder_readers")
        padding: Padding = "at_end" if readers is None else "anywhere"
        return AttentionMask(query_segments=readers, key_segments=segments, padding=padding)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zero tokens, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "encoder_segment_ids": tokens + 1}


def _flat_rows(batch: Batch) -> Batch:
    """Reshape fields [B, C, L] of multiple choice to rows [B * C, L]; leave [B, L] unchanged."""
    if batch["encoder_input_tokens"].ndim == 2:
        return batch
    return {
        name: jnp.reshape(x, (-1, x.shape[-1])) if x.ndim == 3 else x for name, x in batch.items()
    }


class Decoder(nn.Module):
    """A decoder-only language model, causal or a prefix LM.

    Attributes:
        make_embedding: factory of the token embeddings.
        make_decoder: factory of the tower of layers.
        make_head: factory of the output layer.
        visibility: `causal`, or `prefix` for the prefix LM of Raffel et al. 2020 (section 3.2.1).
        sides: the sides of a batch that the network reads.
        generates: True: the network has `prefill` and `extend`, and so generates text.
    """

    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    generates: ClassVar[bool] = True

    make_embedding: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    visibility: Visibility = "causal"

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.decoder = self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Any:
        """Return the float32 logits [B, T, V] of every position.

        Args:
            batch: `decoder_input_tokens` [B, T], and optionally `decoder_segment_ids`,
                `decoder_positions` and, for a prefix LM only, `decoder_causal_attention`, True in
                the prefix.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The logits; with `collect`, (logits, {name of the tower: `Collected`}).
        """
        x, collected = self._run(batch, deterministic=deterministic, collect=collect)
        logits = self._product(x).logits()
        return (logits, collected) if collect else logits

    def logits_product(self, batch: Batch, *, deterministic: bool = True) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
        return self._product(self.states(batch, deterministic=deterministic))

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T D"]:
        """Return the input of the output layer: the last layer's output after the final norm."""
        return self._run(batch, deterministic=deterministic, collect=())[0]

    def _product(self, x: Float[Array, "B T D"]) -> VocabularyProduct:
        return self.lm_head.product(x, self.token_embedder.embedding)

    def _run(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B T D"], dict[str, Collected]]:
        tokens = batch["decoder_input_tokens"]
        segments = batch.get("decoder_segment_ids")
        prefix = batch.get("decoder_causal_attention") if self.visibility == "prefix" else None
        mask = AttentionMask(
            query_segments=segments,
            key_segments=segments,
            prefix=None if prefix is None else prefix.astype(bool),
            visibility=self.visibility,
        )
        shared = Shared(
            mask=mask,
            positions=positions_of(batch, "decoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
            collect=collect,
        )
        x, collected = self.decoder(self.token_embedder(tokens), shared)
        return x, {"decoder": collected}

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Run a left-padded prompt; return the logits of the next token, and a key-value cache.

        Args:
            cache_length: cache slots, for the prompt and the continuation.
            decoder_mask: True at tokens, False at padding; None for no padding.
        """
        prompts, length = decoder_input_tokens.shape
        real = jnp.ones((prompts, length), bool) if decoder_mask is None else decoder_mask
        layers = self.make_decoder(parent=None).empty_cache(batch=prompts, slots=cache_length)
        cache = open_cache(layers, prompt=real, slots=cache_length)
        cache, mask, positions = cache.push(real, visibility=self.visibility, first=True)
        # For a prefix LM the whole prompt is the prefix.
        if self.visibility == "prefix":
            mask = dataclasses.replace(mask, prefix=real)
        shared = Shared(mask=mask, positions=positions, tokens=decoder_input_tokens, first=True)
        x, cache = self._advance(decoder_input_tokens, cache, shared)
        return self.lm_head(x[:, -1:], self.token_embedder.embedding)[:, 0], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Run the next tokens; return the logits after each, and the extended cache."""
        real = jnp.ones(tokens.shape, bool)
        cache, mask, positions = cache.push(real, visibility=self.visibility)
        shared = Shared(mask=mask, positions=positions, tokens=tokens)
        x, cache = self._advance(tokens, cache, shared)
        return self.lm_head(x, self.token_embedder.embedding), cache

    def _advance(self, tokens: Array, cache: Cache, shared: Shared) -> tuple[Array, Cache]:
        x, layers = self.decoder(self.token_embedder(tokens), shared, cache.layers)
        return x, dataclasses.replace(cache, layers=layers)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        return {"decoder_input_tokens": jnp.zeros((batch, length), jnp.int32)}


class EncoderDecoder(nn.Module):
    """A decoder that attends to an encoder's output: Vaswani et al. 2017, figure 1.

    Attributes:
        make_embedding: factory of the token embeddings, which both sides share.
        make_encoder, make_decoder: factories of the towers; without `make_decoder` both sides share
            the encoder's parameters (Raffel et al. 2020, section 3.2.2).
        make_head: factory of the output layer, from the decoder's output and the embedding table
            to logits.
        sides: the sides of a batch that the network reads.
        generates: True: the network has `prefill` and `extend`, and so generates text.
        visibility: the decoder's self-attention is causal.
        language_last: whether the last token of a text names its language, and is the decoder's
            first input, as in mBART.
        any_padding: whether the encoder's output at tokens is the same for any padding at the end
            of a row; False for attention in blocks that are chosen by the length of a row.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    generates: ClassVar[bool] = True
    language_last: ClassVar[bool] = False
    visibility: ClassVar[Visibility] = "causal"

    make_embedding: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module] | None = None
    any_padding: bool = True

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.encoder = self.make_encoder()
        self.decoder = self.encoder if self.make_decoder is None else self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Any:
        """Return the float32 logits [B, T, V] of every target position (teacher forcing).

        Args:
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The logits; with `collect`, (logits, {name of the tower: `Collected`}).
        """
        x, collected = self._run(batch, deterministic=deterministic, collect=collect)
        logits = self._product(x).logits()
        return (logits, collected) if collect else logits

    def logits_product(self, batch: Batch, *, deterministic: bool = True) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
        return self._product(self.states(batch, deterministic=deterministic))

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T D"]:
        """Return the input of the output layer: the decoder's output after its final norm."""
        return self._run(batch, deterministic=deterministic, collect=())[0]

    def _product(self, x: Float[Array, "B T D"]) -> VocabularyProduct:
        return self.lm_head.product(x, self.token_embedder.embedding)

    def _run(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B T D"], dict[str, Collected]]:
        memory, segments, of_encoder = self._encode(
            batch, deterministic=deterministic, collect=collect
        )
        x, of_decoder = self._decode(
            batch, memory, segments, deterministic=deterministic, collect=collect
        )
        return x, {"encoder": of_encoder, "decoder": of_decoder}

    def _decode(
        self,
        batch: Batch,
        memory: Float[Array, "B S D"],
        segments: Int[Array, "B S"],
        *,
        deterministic: bool,
        collect: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Run the decoder on an encoder's output, and return what it collected, too."""
        tokens = batch["decoder_input_tokens"]
        decoder_segments = batch.get("decoder_segment_ids")
        shared = Shared(
            mask=AttentionMask(
                query_segments=decoder_segments, key_segments=decoder_segments, visibility="causal"
            ),
            positions=positions_of(batch, "decoder", tokens),
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(
                query_segments=decoder_segments, key_segments=segments, padding=_padding(batch)
            ),
            deterministic=deterministic,
            collect=collect,
        )
        return self.decoder(self.write(tokens), shared)

    def encode(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[Float[Array, "B S D"], Int[Array, "B S"]]:
        """Return the encoder's output, and its segment ids (0 is padding).

        Without `encoder_segment_ids`, token 0 is padding. A row is one document followed by its
        padding, unless the batch has `encoder_readers` (see `Encoder`), or the positions or decoder
        segments of packed rows.
        """
        return self._encode(batch, deterministic=deterministic, collect=())[:2]

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Array, Array, Any]:
        tokens = batch["encoder_input_tokens"]
        segments = batch.get("encoder_segment_ids", (tokens != 0).astype(jnp.int32))
        # Padding attends to the first document, as in Hugging Face's networks: in a
        # mixture-of-experts layer padding takes slots of experts, so its states matter.
        readers = jnp.maximum(segments, 1) if _padding(batch) == "anywhere" else None
        shared = Shared(
            mask=AttentionMask(
                query_segments=readers, key_segments=segments, padding=_padding(batch)
            ),
            positions=positions_of(batch, "encoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
            collect=collect,
        )
        x, collected = self.encoder(self.read(tokens, shared), shared)
        return x, segments, collected

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """Return the input of the encoder: the embeddings of its tokens."""
        return self.token_embedder(tokens)

    def write(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Return the input of the decoder: the embeddings of its tokens."""
        return self.token_embedder(tokens)

    def prefill(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        encoder_mask: Bool[Array, "B S"] | None = None,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Run the encoder and a decoder prompt; return the next token's logits, and a cache.

        Args:
            decoder_input_tokens: prompts, left-padded.
            cache_length: cache slots, for the prompt and the continuation.
            encoder_mask, decoder_mask: True at tokens, False at padding; padding may be anywhere in
                the encoder's rows. By default token 0 is padding in the encoder, and the prompt has
                no padding (it begins with token 0).
        """
        real = encoder_input_tokens != 0 if encoder_mask is None else encoder_mask
        batch = {"encoder_input_tokens": encoder_input_tokens}
        batch["encoder_segment_ids"] = real.astype(jnp.int32)
        batch["encoder_readers"] = jnp.ones_like(encoder_input_tokens)
        memory, segments = self.encode(batch)
        prompts, length = decoder_input_tokens.shape
        real = jnp.ones((prompts, length), bool) if decoder_mask is None else decoder_mask
        layers = (self.make_decoder or self.make_encoder)(parent=None).empty_cache(
            batch=prompts, slots=cache_length
        )
        cache = open_cache(layers, prompt=real, slots=cache_length, memory_real=segments > 0)
        logits, cache = self._advance(decoder_input_tokens, cache, real, memory)
        return logits[:, -1], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Run the next tokens; return the logits after each, and the extended cache."""
        return self._advance(tokens, cache, jnp.ones(tokens.shape, bool), None)

    def _advance(
        self, tokens: Array, cache: Cache, real: Array, memory: Array | None
    ) -> tuple[Array, Cache]:
        first = memory is not None
        cache, mask, positions = cache.push(real, visibility="causal", first=first)
        assert cache.memory_real is not None  # set by prefill
        shared = Shared(
            mask=mask,
            positions=positions,
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(key_segments=cache.memory_real.astype(jnp.int32)),
            first=first,
        )
        x, layers = self.decoder(self.write(tokens), shared, cache.layers)
        if first:  # only the logits at the end of a prompt are needed
            x = x[:, -1:]
        return self.lm_head(x, self.token_embedder.embedding), dataclasses.replace(
            cache, layers=layers
        )

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}


def _padding(batch: Batch) -> Padding:
    """Return where the encoder's padding may be: `at_end` for unpacked rows, or `anywhere`."""
    elsewhere = {"encoder_positions", "encoder_readers"}
    elsewhere |= {"decoder_positions", "decoder_segment_ids"}
    return "anywhere" if elsewhere & set(batch) else "at_end"


def empty_memory(embedding: nn.Module, *, rows: int, layers: int, size: int) -> PyTree:
    """Return the memory of a network whose rows continue each other, before the first batch.

    `hidden` [B, N, M, D] are the inputs of the N layers, `real` bool [B, M] marks tokens that
    exist: none. It is {} for a network without memory.

    Args:
        embedding: the token embeddings, with their width and type.
        rows, layers, size: B, N and M.
    """
    if not size:
        return {}
    shape = (rows, layers, size, embedding.features)
    return {
        "hidden": jnp.zeros(shape, embedding.compute.dtype),
        "real": jnp.zeros((rows, size), bool),
    }
