"""A model to call and to generate with, by the names of arguments that Hugging Face has."""

import contextlib
import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from t5x_like import hf, partitioning
from t5x_like.decoding.generation import Generated, StreamStep
from t5x_like.decoding.generator import Generator
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files
from t5x_like.hf import weight_map
from t5x_like.hf.generation_config import write_generation
from t5x_like.names import hint
from t5x_like.pretrained import arguments as inputs


@dataclasses.dataclass(frozen=True)
class ModelOutput:
    """What a model says; None is what it does not say.

    Attributes:
        logits: float32: of tokens [B, T, V], of classes [B, C], of tags [B, L, C]; a number [B, 1].
        loss: of the labels, if some were given: the mean cross-entropy, or squared error.
        row_logits: [B, C] of the pair of sentences, beside a masked language model.
        start_logits, end_logits: [B, L] of the ends of an answer.
        hidden, summary: [B, L, D] and [B, D], of an encoder without a head.
    """

    logits: Array | None = None
    loss: Float[Array, ""] | None = None
    row_logits: Float[Array, "B C"] | None = None
    start_logits: Float[Array, "B L"] | None = None
    end_logits: Float[Array, "B L"] | None = None
    hidden: Float[Array, "B L D"] | None = None
    summary: Float[Array, "B D"] | None = None


class Pretrained:
    """A network with its parameters.

    Attributes:
        module: the Flax module, for `module.apply({"params": params}, batch)`.
        params: its parameters, plain nested dicts of arrays.
        system, config: the module of t5x_like.systems and the settings it was built with.
        generation: what `generate` does unless told otherwise.
        mesh: the devices that the parameters are spread over, or None.
        model_type: what `save_pretrained` writes as Hugging Face's `model_type`; empty for the
            system's default. XLM-R is a RoBERTa of model_type `xlm-roberta`.
    """

    def __init__(
        self,
        module: nn.Module,
        params: PyTree,
        *,
        system: str,
        config: Mapping[str, Any],
        generation: GenerationSettings | None = None,
        mesh: Mesh | None = None,
        model_type: str = "",
    ):
        self.module, self.params, self.model_type = module, params, model_type
        self.system, self.config = system, dict(config)
        self.generation = GenerationSettings() if generation is None else generation
        self.mesh = mesh
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
        """The logits of every position.

        Logits at padding are not Hugging Face's: there padding sees the text, here it does not.
        No other logits depend on it.

        Args:
            input_ids: [B, S], the encoder's, or a language model's own.
            attention_mask: [B, S], 0 on padding; None for all ones.
            decoder_input_ids: [B, T], for an encoder-decoder; None for the labels shifted right.
            decoder_attention_mask: [B, T], as attention_mask.
            labels: what the loss is of; -100 counts for nothing. For an encoder-decoder [B, T],
                the token to say at each position; for a language model [B, S], as input_ids.

        Raises:
            ValueError: an argument that does not exist or is missing, a token that the
                vocabulary lacks, or shapes that do not go together.
        """
        decoder_side = {"decoder_input_ids": decoder_input_ids}
        decoder_side["decoder_attention_mask"] = decoder_attention_mask
        self._check_arguments(unknown, decoder_side)
        tokens = self._tokens("input_ids", input_ids)
        mask = inputs.check_mask("attention_mask", attention_mask, tokens)
        targets = None if labels is None else self._tokens("labels", labels, ignored=True)
        if self._encodes:
            batch = inputs.side("encoder", tokens, mask)
            batch |= self._decoder_side(decoder_input_ids, decoder_attention_mask, targets)
        else:
            batch = inputs.side("decoder", tokens, mask)
            targets = None if targets is None else inputs.shift_left(targets)
        if targets is not None and targets.shape != batch["decoder_input_tokens"].shape:
            read = list(batch["decoder_input_tokens"].shape)
            raise ValueError(
                f"labels has shape {list(targets.shape)}, what the decoder reads {read}"
            )
        with self.layout():
            return ModelOutput(*self._forward(self.params, batch, targets))

    def generate(
        self, input_ids: ArrayLike, attention_mask: ArrayLike | None = None, **settings: Any
    ) -> Int[np.ndarray, "B L"]:
        """Continues a language model's prompts, or writes what an encoder-decoder's decoder says.

        Code is compiled once for each shape of input_ids and each set of settings.

        Args:
            input_ids: [B, S]; for a language model padded on the left.
            attention_mask: [B, S], 0 on padding; None to take pad_token_id for padding.
            settings: fields of `hf.generation.GenerationSettings`: max_new_tokens, num_beams,
                do_sample, temperature, top_k, top_p, length_penalty, early_stopping, ...

        Returns:
            Int32 tokens as long as the longest row: the prompt, or the decoder's start token, then
            what was generated up to and with the end token, then padding. With
            num_return_sequences=n, n rows for each input, best first.

        Raises:
            ValueError: a model that writes no text, a setting that does not exist or is out of
                range, or a prompt padded on the right.
        """
        wanted, tokens, mask = self._prompts(input_ids, attention_mask, settings)
        with self.layout():
            return self.generator.generate(tokens, mask, wanted)

    def stream(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        callback: Callable[[StreamStep], bool | None],
        **settings: Any,
    ) -> Generated:
        """Generates as `generate` does, and tells of every token as it comes.

        Args:
            input_ids, attention_mask, settings: as for `generate`.
            callback: gets a `decoding.StreamStep` per token, and may end it by returning True.

        Returns:
            What was generated, without the prompt.

        Raises:
            ValueError: as `generate`, or beams, of which none is the text until the end.
        """
        wanted, tokens, mask = self._prompts(input_ids, attention_mask, settings)
        with self.layout():
            return self.generator.stream(tokens, mask, wanted, callback=callback)

    def _prompts(
        self, input_ids: ArrayLike, attention_mask: ArrayLike | None, settings: Mapping[str, Any]
    ) -> tuple[GenerationSettings, inputs.Tokens, np.ndarray]:
        """The settings of a call, and what the network reads, all checked."""
        if not self.module.generates:
            raise ValueError(
                f"this {self.system} does not generate text: a decoder or an encoder-decoder does"
            )
        wanted = self.generation.override(settings)
        tokens = self._tokens("input_ids", input_ids)
        mask = (
            inputs.infer_mask(tokens, wanted)
            if attention_mask is None
            else inputs.check_mask("attention_mask", attention_mask, tokens)
        )
        if not self._encodes and not mask[:, -1].all():
            raise ValueError("input_ids is padded on the right: pad it on the left to generate")
        return wanted, tokens, mask != 0

    def save_pretrained(
        self, folder: str | os.PathLike, *, max_shard_size: int = 5 * 10**9
    ) -> None:
        """Writes a folder that Hugging Face loads: settings, and tensors of the parameters' dtype.

        Of a pretraining run with two networks only the one that is kept is written.

        Args:
            max_shard_size: bytes of a file, above which the tensors are spread over several.

        Raises:
            ValueError: Hugging Face has no such network, or the folder is that of a run.
        """
        path = pathlib.Path(folder).expanduser()
        old = path / files.CONFIG
        if old.exists() and "model_type" not in files.read_json(old):
            raise ValueError(
                f"{path} already holds a {files.CONFIG} that Hugging Face did not write; choose "
                "another folder"
            )
        record = hf.find(self.system)
        ids = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        config = record.to_config(self.config, model_type=self.model_type)
        # What the system says of a token goes before what `generate` would do with it.
        config = {name: getattr(self.generation, name) for name in ids} | config
        left_out = record.not_exported
        kept = {name: part for name, part in self.params.items() if name not in left_out}
        flat = flax.traverse_util.flatten_dict(jax.device_get(kept), sep="/")
        config["dtype"] = next(iter(flat.values())).dtype.name
        parts = weight_map.pieces(record.weights, {name: x.shape for name, x in flat.items()})
        path.mkdir(parents=True, exist_ok=True)
        files.write_json(old, config)
        write_generation(path, self.generation)
        files.write_tensors(
            path, weight_map.disassemble(flat, parts), max_shard_size=max_shard_size
        )

    @property
    def generator(self) -> Generator:
        """Generates with the parameters that the model has now."""
        leaves = jax.tree.leaves(self.params)
        if self._generator is None or any(map(operator.is_not, self._generator[0], leaves)):
            self._generator = leaves, Generator(self.module, self.params)
        return self._generator[1]

    def layout(self) -> contextlib.AbstractContextManager[None]:
        """The layout of the mesh, within which the parameters are used."""
        return contextlib.nullcontext() if self.mesh is None else partitioning.layout(self.mesh)

    def put(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """A global batch, the same on all processes, as arrays where the parameters are."""
        if self.mesh is None:
            return batch
        index, number = partitioning.batch_slice(self.mesh)
        mine = {name: np.split(rows, number)[index] for name, rows in batch.items()}
        return partitioning.shard_batch(mine, self.mesh)

    @property
    def _encodes(self) -> bool:
        return self.module.sides == ("encoder", "decoder")

    def _tokens(self, name: str, tokens: ArrayLike, *, ignored: bool = False) -> inputs.Tokens:
        size = self.config["vocab_size"]
        return inputs.check_tokens(name, tokens, vocab_size=size, ignored=ignored)

    def _check_arguments(self, unknown: dict[str, Any], decoder_side: dict[str, Any]) -> None:
        allowed = ["input_ids", "attention_mask", "labels"]
        if self._encodes:
            allowed += decoder_side
        else:
            unknown |= {name: value for name, value in decoder_side.items() if value is not None}
        for name in unknown:
            raise ValueError(f"this {self.system} takes no argument {name!r}.{hint(name, allowed)}")

    def _decoder_side(
        self, tokens: ArrayLike | None, mask: ArrayLike | None, labels: inputs.Tokens | None
    ) -> dict[str, Any]:
        if tokens is not None:
            read = self._tokens("decoder_input_ids", tokens)
        elif labels is not None:
            read = inputs.shift_right(labels, self.generation)
        else:
            raise ValueError("decoder_input_ids or labels are needed: this model has a decoder")
        return inputs.side("decoder", read, inputs.check_mask("decoder_attention_mask", mask, read))

    @functools.cached_property
    def _forward(self) -> Callable[..., tuple[Array, Array | None]]:
        def forward(params: PyTree, batch: Any, targets: Array | None) -> Any:
            logits = self.module.apply({"params": params}, batch)
            if targets is None:
                return logits, None
            counted = targets != inputs.IGNORED_LABEL
            places = jnp.where(counted, targets, 0)[..., None]
            log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), places, axis=-1)[..., 0]
            return logits, -jnp.mean(log_probs, where=counted)

        return jax.jit(forward)
