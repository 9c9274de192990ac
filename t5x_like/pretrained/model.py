"""A pretrained model that predicts and generates; its arguments have Hugging Face's names."""

import contextlib
import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from t5x_like import partitioning, systems
from t5x_like.decoding.decoder_contract import longest_rows
from t5x_like.decoding.generation import Generated, StreamStep
from t5x_like.decoding.generator import Generator
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files
from t5x_like.hf import weight_map
from t5x_like.hf.architectures import Labels
from t5x_like.hf.generation_config import write_generation
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.names import choose, hint
from t5x_like.pretrained import model_card
from t5x_like.pretrained.assembled import copy_part
from t5x_like.pretrained.model_card import ModelCard
from t5x_like.vocabularies import chat, saving

IGNORED_LABEL = -100

TokenArray = np.ndarray  # [B, L] int32


def check_tokens(
    name: str,
    tokens: ArrayLike,
    *,
    vocab_size: int,
    ignored: bool = False,
    shape: Sequence[str] = ("rows", "length"),
) -> TokenArray:
    """Check token ids, and return them as int32.

    Args:
        name: the argument, for error messages.
        ignored: whether -100 is allowed, as in labels.
        shape: the names of the axes, for their number and error messages.

    Raises:
        ValueError: the tokens are not integers of this shape, or an id is outside the vocabulary.
    """
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise ValueError(f"{name} has rows of unequal lengths: pad them") from error
    if array.ndim != len(shape) or not np.issubdtype(array.dtype, np.integer) or not array.size:
        raise ValueError(
            f"{name} must be integers of shape [{', '.join(shape)}], not {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    bad = (array < 0) | (array >= vocab_size)
    if ignored:
        bad &= array != IGNORED_LABEL
    if bad.any():
        raise ValueError(
            f"{name} contains the id {array[bad][0]}; the vocabulary has 0 to {vocab_size - 1}"
        )
    return array.astype(np.int32)


def check_mask(name: str, mask: ArrayLike | None, tokens: TokenArray) -> np.ndarray:
    """Check a mask, and return it as int32 ones and zeros [B, L]; None stands for all ones.

    Raises:
        ValueError: the mask and the tokens have different shapes.
    """
    if mask is None:
        return np.ones_like(tokens)
    array = np.asarray(mask)
    if array.shape != tokens.shape:
        raise ValueError(
            f"{name} has shape {list(array.shape)}; its tokens have {list(tokens.shape)}"
        )
    return (array != 0).astype(np.int32)


def infer_mask(tokens: TokenArray, settings: GenerationSettings) -> np.ndarray:
    """Return the default attention mask of `generate`: 0 at each pad_token_id, 1 elsewhere.

    It is all ones if there is no pad_token_id, or if it is also an end token, which may belong to
    the text.
    """
    if settings.pad_token_id is None or settings.pad_token_id in settings.ends:
        return np.ones_like(tokens)
    return (tokens != settings.pad_token_id).astype(np.int32)


def shift_right(
    labels: TokenArray, settings: GenerationSettings, *, language_last: bool = False
) -> TokenArray:
    """Return the decoder's inputs: the start token, then the labels; -100 becomes padding.

    Args:
        language_last: whether the start token is the last label of each row, as in mBART.
    """
    start = np.full((len(labels), 1), settings.decoder_start_token_id, np.int32)
    if language_last:
        real = (labels != IGNORED_LABEL) & (labels != settings.padding)
        start = np.take_along_axis(labels, real.sum(axis=1, keepdims=True) - 1, axis=1)
    shifted = np.concatenate([start, labels[:, :-1]], axis=1)
    return np.where(shifted == IGNORED_LABEL, settings.padding, shifted).astype(np.int32)


def shift_left(labels: TokenArray) -> TokenArray:
    """Return the targets of a language model: at each position the label of the next position."""
    nothing = np.full((len(labels), 1), IGNORED_LABEL, np.int32)
    return np.concatenate([labels[:, 1:], nothing], axis=1)


def side(name: str, tokens: TokenArray, mask: np.ndarray) -> dict[str, Any]:
    """Return the batch features of one side, `encoder` or `decoder`, with one document per row."""
    return {f"{name}_input_tokens": tokens, f"{name}_segment_ids": mask}


def encoder_side(tokens: TokenArray, mask: np.ndarray) -> dict[str, Any]:
    """Return the batch features of the encoder, whose rows may be padded anywhere."""
    batch = side("encoder", tokens, mask)
    # With padding before text, attention must not reduce the mask to a length for each row.
    if np.any(mask[..., 1:] > mask[..., :-1]):
        batch["encoder_readers"] = np.ones_like(mask)
    return batch


@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """The outputs of a model; None for outputs that its head does not have.

    Attributes:
        logits: float32: for tokens [B, T, V], for classes or choices [B, C], for tags [B, L, C],
            for regression [B, 1]; for a reward model the rewards [B].
        loss: the mean cross-entropy or squared error over the labels, if labels were given.
        row_logits: [B, C], for the sentence pair of each row, from a head that also predicts
            masked tokens.
        start_logits, end_logits: [B, L], for the first and the last token of an answer.
        hidden, summary: the hidden states [B, L, D] and the pooled state [B, D] of an encoder
            without a head.
        hidden_states: of an encoder, on request: the input of the first layer, and the output of
            each of N layers, before a final norm [N + 1, B, L, D]; with C choices
            [N + 1, B * C, L, D].
        mems: of XLNet: for each layer the inputs that the next batch's tokens may attend to, each
            [M, B, D].
    """

    logits: Array | None = None
    loss: Float[Array, ""] | None = None
    row_logits: Float[Array, "B C"] | None = None
    start_logits: Float[Array, "B L"] | None = None
    end_logits: Float[Array, "B L"] | None = None
    hidden: Float[Array, "B L D"] | None = None
    summary: Float[Array, "B D"] | None = None
    hidden_states: Float[Array, "N+1 B L D"] | None = None
    mems: tuple[Float[Array, "M B D"], ...] | None = None


class Pretrained:
    """A pretrained network with its parameters.

    Attributes:
        module: the Flax module, for `module.apply({"params": params}, batch)`.
        params: its parameters, plain nested dicts of arrays.
        system, config: the name of its system, and the settings that it was built with.
        generation: the default settings of `generate`.
        token_ids: {name in config.json, such as `pad_token_id`: id} of the folder that the model
            was read from, or of a run's vocabulary; without the ids that are not known.
        mesh: the devices that the parameters are sharded over, or None.
        model_type: the `model_type` that `save_pretrained` writes into config.json; empty for the
            system's default. XLM-R is a RoBERTa with model_type `xlm-roberta`.
        labels: {task: labels of its head}, as far as they are known; the key is "" for a model with
            one head.
        from_folder: whether `generation` comes from a folder of another library, whose start and
            end tokens take precedence over the vocabulary's. A run uses its vocabulary's.
        vocabulary: the vocabulary that the model was trained with, as `data.vocabulary` names it;
            empty if it is not known.
        card: the model card that `save_pretrained` writes; None for a model without a run.
    """

    def __init__(
        self,
        module: nn.Module,
        params: PyTree,
        *,
        system: str,
        config: Mapping[str, Any],
        generation: GenerationSettings | None = None,
        token_ids: Mapping[str, Any] | None = None,
        mesh: Mesh | None = None,
        model_type: str = "",
        labels: Mapping[str, Labels] | None = None,
        from_folder: bool = False,
        vocabulary: str = "",
        card: ModelCard | None = None,
    ):
        self.module, self.params, self.model_type = module, params, model_type
        self.labels, self.from_folder = dict(labels or {}), from_folder
        self.vocabulary, self.card = vocabulary, card
        self.system, self.config = system, dict(config)
        self.generation = GenerationSettings() if generation is None else generation
        self.token_ids, self.mesh = dict(token_ids or {}), mesh
        self._generator: tuple[list[Array], Generator] | None = None

    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        decoder_input_ids: ArrayLike | None = None,
        decoder_attention_mask: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        **unknown: Any,
    ) -> ModelOutput:
        """Compute the logits at every position, and the loss if labels are given.

        Logits at padding differ from Hugging Face's, where padding attends to the text; here it
        does not. No other logits depend on this.

        Args:
            input_ids: [B, S], the inputs of the encoder or of the language model.
            attention_mask: [B, S], 0 on padding; None for all ones.
            decoder_input_ids: [B, T], for an encoder-decoder; None for the labels shifted right.
            decoder_attention_mask: [B, T], 0 on padding; None for all ones.
            labels: the targets of the loss; -100 is ignored. For an encoder-decoder, the target
                token at each position [B, T]; for a language model, the tokens of input_ids
                [B, S], not shifted.

        Raises:
            ValueError: an argument does not exist or is missing, a token is outside the
                vocabulary, or shapes do not match.
        """
        decoder_side = {"decoder_input_ids": decoder_input_ids}
        decoder_side["decoder_attention_mask"] = decoder_attention_mask
        self._check_arguments(unknown, decoder_side)
        tokens = self._tokens("input_ids", input_ids)
        mask = check_mask("attention_mask", attention_mask, tokens)
        targets = None if labels is None else self._tokens("labels", labels, ignored=True)
        if self._encodes:
            batch = encoder_side(tokens, mask)
            batch |= self._decoder_side(decoder_input_ids, decoder_attention_mask, targets)
        else:
            batch = side("decoder", tokens, mask)
            targets = None if targets is None else shift_left(targets)
        if targets is not None and targets.shape != batch["decoder_input_tokens"].shape:
            read = list(batch["decoder_input_tokens"].shape)
            raise ValueError(
                f"labels has shape {list(targets.shape)}; the decoder's inputs have {read}"
            )
        with self.layout():
            return ModelOutput(*self._forward(self.params, batch, targets))

    def generate(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        padding_counts: bool = True,
        **settings: Any,
    ) -> Int[np.ndarray, "B L"]:
        """Generate a continuation of each prompt, or the output of an encoder-decoder.

        Code is compiled once for each set of settings, number of prompts and length of prompts
        rounded up (`decoding.generator.padded_length`): 16, 32, 64, 128, 256, 512, 768, ... tokens.

        Args:
            input_ids: [B, S]; for a language model, padded on the left.
            attention_mask: [B, S], 0 on padding; None treats every pad_token_id as padding.
            padding_counts: whether no_repeat_ngram_size counts the padding of a prompt among its
                tokens, as transformers does.
            settings: fields of `decoding.settings.GenerationSettings`: max_new_tokens, num_beams,
                do_sample, temperature, top_k, top_p, length_penalty, early_stopping, ...

        Returns:
            Int32 tokens, as long as the longest row: the prompt (for an encoder-decoder the
            decoder's start token), the generated tokens up to and including the end token, then
            padding. With num_return_sequences=n there are n rows for each input, best first.

        Raises:
            ValueError: the model does not generate text, a setting does not exist or is out of
                range, a language model's prompt is padded on the right, or the model has no
                positions for so many tokens.
        """
        wanted, tokens, mask = self.checked_prompts(input_ids, attention_mask, settings)
        with self.layout():
            return self.generator.generate(tokens, mask, wanted, padding_counts=padding_counts)

    def stream(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        callback: Callable[[StreamStep], bool | None],
        padding_counts: bool = True,
        **settings: Any,
    ) -> Generated:
        """Generate like `generate`, and call `callback` with each new token.

        Args:
            input_ids, attention_mask, padding_counts, settings: see `generate`.
            callback: called with a `decoding.StreamStep` per token; returning True stops.

        Returns:
            The generated tokens, without the prompt.

        Raises:
            ValueError: see `generate`; or num_beams is above 1, since beam search has no single
                text until its end.
        """
        wanted, tokens, mask = self.checked_prompts(input_ids, attention_mask, settings)
        with self.layout():
            return self.generator.stream(
                tokens, mask, wanted, callback=callback, padding_counts=padding_counts
            )

    def checked_prompts(
        self, input_ids: ArrayLike, attention_mask: ArrayLike | None, settings: Mapping[str, Any]
    ) -> tuple[GenerationSettings, TokenArray, np.ndarray]:
        """Check the arguments of `generate`, and return its settings, tokens and mask.

        Raises:
            ValueError: see `generate`.
        """
        if not self.module.generates:
            raise ValueError(
                f"this {self.system} does not generate text: a decoder or an encoder-decoder does"
            )
        wanted = self.generation.override(settings)
        tokens = self._tokens("input_ids", input_ids)
        mask = (
            infer_mask(tokens, wanted)
            if attention_mask is None
            else check_mask("attention_mask", attention_mask, tokens)
        )
        if not self._encodes and not mask[:, -1].all():
            raise ValueError("input_ids is padded on the right: pad it on the left to generate")
        return wanted, tokens, mask != 0

    def for_task(self, task: str) -> Self:
        """Return the model with the head of one task, for a run of several tasks with heads.

        The parameters are shared. A model with only one head is returned unchanged.

        Raises:
            ValueError: the run has no such task.
        """
        heads = self.config.get("head")
        if not isinstance(heads, Mapping):
            return self
        head = choose("task", task, heads)
        return type(self)(
            self.module.clone(task=task),
            self.params,
            system=self.system,
            config={**self.config, **head},
            generation=self.generation,
            token_ids=self.token_ids,
            mesh=self.mesh,
            model_type=self.model_type,
            labels={"": self.labels[task]} if task in self.labels else {},
            from_folder=self.from_folder,
            vocabulary=self.vocabulary,
            card=self.card,
        )

    @property
    def head_labels(self) -> Labels:
        """The labels of the only head, which its outputs stand for."""
        return self.labels.get("", Labels())

    def policy(self) -> Self:
        """Return the policy, if the run trains it with other networks; otherwise the model."""
        part = systems.find(self.system).result
        if not part:
            return self
        system, config = systems.policy_of(self.system, self.config)
        return type(self)(
            systems.build(system, config),
            None if self.params is None else self.params[part],
            system=system,
            config=config,
            generation=self.generation,
            token_ids=self.token_ids,
            mesh=self.mesh,
            vocabulary=self.vocabulary,
            card=self.card,
        )

    def save_pretrained(
        self, folder: str | os.PathLike, *, max_shard_size: int = 5 * 10**9
    ) -> None:
        """Write a folder that Hugging Face loads: settings, tokenizer, and tensors.

        The tensors have the parameters' dtype. If transformers has no tokenizer with the ids of the
        vocabulary, none is written, and a warning gives the reason. For the model of a run a model
        card is written, README.md, unless the folder has one.

        Parameters that only pretraining needs, such as ELECTRA's generator, are left out. The host
        has one tensor in memory at a time. Parameters may be sharded over several processes; then
        all processes call this, and the first writes.

        Args:
            max_shard_size: the largest size of a file, in bytes; further tensors go into more
                files.

        Raises:
            ValueError: Hugging Face has no such network, the folder belongs to a run, or weights
                are in 8 bits.
        """
        path = pathlib.Path(folder).expanduser()
        old = path / files.CONFIG
        if old.exists() and "model_type" not in files.read_json(old):
            raise ValueError(
                f"{path} already holds a {files.CONFIG} that Hugging Face did not write; choose "
                "another folder"
            )
        if any(x.dtype == jnp.int8 for x in jax.tree.leaves(self.params)):
            raise ValueError("a model with weights in 8 bits is not written: load it in float32")
        record, config = self._record, self.hugging_face_config()
        left_out = record.not_exported
        exported = {name: part for name, part in self.params.items() if name not in left_out}
        flat = flax.traverse_util.flatten_dict(exported, sep="/")
        config["dtype"] = next(iter(flat.values())).dtype.name
        parts = weight_map.pieces(record.weights, {name: x.shape for name, x in flat.items()})
        if jax.process_index() == 0:
            path.mkdir(parents=True, exist_ok=True)
            files.write_json(old, config)
            self._save_generation(path)
            self._save_tokenizer(path, config)
            if self.card is not None and not (path / model_card.FILE).exists():
                (path / model_card.FILE).write_text(self.card.text(config), encoding="utf-8")
        tensors = weight_map.disassemble(flat, parts, copy=copy_part)
        files.write_tensors(path, tensors, max_shard_size=max_shard_size)

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the settings that `save_pretrained` writes into config.json, but for the dtype.

        Raises:
            ValueError: Hugging Face has no such network.
        """
        config = self._record.to_config(self.config, model_type=self.model_type)
        config |= self.head_labels.in_config(config)
        ids: dict[str, Any] = {}
        if self.module.generates:
            names = ["pad_token_id", "eos_token_id"]
            names += ["decoder_start_token_id"] if self._encodes else []
            ids = {name: getattr(self.generation, name) for name in names}
        # The ids in the system's settings take precedence.
        return ids | self.token_ids | config

    def tokenizer_network(self, config: Mapping[str, Any]) -> saving.Network:
        """Return what the files of the tokenizer depend on, apart from the vocabulary.

        Args:
            config: see `hugging_face_config`.
        """
        length = self.config.get("positions")
        encodes = "encoder" in self.module.sides
        return saving.Network(config, encodes=encodes, length=length)

    @property
    def _record(self) -> HuggingFaceFormat:
        return systems.hugging_face_format(self.system).of(self.config)

    def _save_generation(self, folder: pathlib.Path) -> None:
        """Write generation_config.json for a network that generates text; remove it for another.

        A run's `decode` is written, too, so that transformers generates the texts of `infer`.
        """
        if self.module.generates:
            begin = self.token_ids.get("bos_token_id")
            settings = self.generation.override(self.card.decode if self.card else {})
            write_generation(folder, settings, bos_token_id=begin)
        else:
            (folder / files.GENERATION).unlink(missing_ok=True)

    def _save_tokenizer(self, folder: pathlib.Path, config: Mapping[str, Any]) -> None:
        if not self.vocabulary:
            return
        try:
            saving.save(self.vocabulary, folder, self.tokenizer_network(config))
        except ValueError as error:
            logging.warning("%s: no tokenizer is written: %s", folder, error)
            return
        if self.card is not None and (template := self.card.chat_template):
            source = chat.find_template(template).jinja
            (folder / chat.FILE).write_text(source, encoding="utf-8")

    def free(self) -> None:
        """Release the parameters, and the generator's copy; compiled code is kept.

        Set `params` again before the next call.
        """
        self.params = None
        if self._generator is not None:
            self._generator = [], self._generator[1].with_params(None)

    @property
    def generator(self) -> Generator:
        """A generator with the current parameters."""
        leaves = jax.tree.leaves(self.params)
        if self._generator is None:
            self._generator = leaves, Generator(self.module, self.params)
        elif not self._generator[0] or any(map(operator.is_not, self._generator[0], leaves)):
            self._generator = leaves, self._generator[1].with_params(self.params)
        return self._generator[1]

    @functools.cached_property
    def longest_rows(self) -> dict[str, int]:
        """The largest number of tokens in a row, see `decoder_contract.longest_rows`."""
        return longest_rows(self.module)

    def layout(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of the mesh, in which every computation with the parameters runs."""
        return contextlib.nullcontext() if self.mesh is None else partitioning.layout(self.mesh)

    def put(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Shard a global batch, equal on all processes, over the devices of the parameters."""
        if self.mesh is None:
            return batch
        return partitioning.shard_batch(partitioning.batch_slice(self.mesh).of(batch), self.mesh)

    @property
    def _encodes(self) -> bool:
        return self.module.sides == ("encoder", "decoder")

    def _tokens(self, name: str, tokens: ArrayLike, *, ignored: bool = False) -> TokenArray:
        size = self.config["vocab_size"]
        return check_tokens(name, tokens, vocab_size=size, ignored=ignored)

    def _check_arguments(self, unknown: dict[str, Any], decoder_side: dict[str, Any]) -> None:
        allowed = ["input_ids", "attention_mask", "labels"]
        if self._encodes:
            allowed += decoder_side
        else:
            unknown |= {name: value for name, value in decoder_side.items() if value is not None}
        for name in unknown:
            raise ValueError(f"this {self.system} takes no argument {name!r}.{hint(name, allowed)}")

    def _decoder_side(
        self, tokens: ArrayLike | None, mask: ArrayLike | None, labels: TokenArray | None
    ) -> dict[str, Any]:
        if tokens is not None:
            read = self._tokens("decoder_input_ids", tokens)
        elif labels is not None:
            language_last = getattr(self.module, "language_last", False)
            read = shift_right(labels, self.generation, language_last=language_last)
        else:
            raise ValueError(
                "decoder_input_ids or labels must be set: this model is an encoder-decoder"
            )
        return side("decoder", read, check_mask("decoder_attention_mask", mask, read))

    @functools.cached_property
    def _forward(self) -> Callable[..., tuple[Array, Array | None]]:
        def forward(params: PyTree, batch: Any, targets: Array | None) -> Any:
            logits = self.module.apply({"params": params}, batch)
            if targets is None:
                return logits, None
            counted = targets != IGNORED_LABEL
            indices = jnp.where(counted, targets, 0)[..., None]
            log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), indices, axis=-1)[..., 0]
            return logits, -jnp.mean(log_probs, where=counted)

        return jax.jit(forward)
