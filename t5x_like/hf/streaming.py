"""A model's text as it comes: each token to a callback, asked for by Hugging Face's names."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from t5x_like import decoding
from t5x_like.decoding.generation import Generated, StreamStep
from t5x_like.hf import inputs
from t5x_like.hf.generation import decoding_request
from t5x_like.hf.pretrained import Pretrained
from t5x_like.models.transformer import EncoderDecoder


class Streamer:
    """Generates as `Pretrained.generate` does, and tells of every token at once.

    Code is compiled once for each shape of prompts and each set of settings.
    """

    def __init__(self, model: Pretrained):
        self._model, self._module = model, model.module

    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        callback: Callable[[StreamStep], bool | None],
        **settings: Any,
    ) -> Generated:
        """What is generated, without the prompt; `callback` may end it by returning True.

        Args:
            input_ids: [B, S]; for a language model padded on the left.
            attention_mask: [B, S], 0 on padding; None for all ones.
            callback: gets a `decoding.StreamStep` per token.
            settings: fields of `hf.generation.GenerationSettings`.

        Raises:
            ValueError: as `Pretrained.generate`, or beams, of which none is the text until the end.
        """
        wanted = self._model.generation.override(settings)
        if wanted.num_beams > 1:
            raise ValueError(
                f"num_beams={wanted.num_beams}: a stream needs num_beams=1, as beams are chosen "
                "from only at the end"
            )
        size = self._model.config["vocab_size"]
        tokens = inputs.check_tokens("input_ids", input_ids, vocab_size=size)
        mask = inputs.check_mask("attention_mask", attention_mask, tokens) != 0
        if isinstance(self._module, EncoderDecoder):
            prompt = np.full((len(tokens), 1), wanted.decoder_start_token_id, np.int32)
            arguments = {"encoder_input_tokens": tokens, "encoder_mask": mask}
        else:
            prompt, arguments = tokens, {"decoder_mask": mask}
        least, most = wanted.new_tokens(prompt=prompt.shape[1])
        arguments["decoder_input_tokens"] = prompt
        start = self._prefill(self._model.params, arguments, cache_length=prompt.shape[1] + most)
        extend = jax.tree_util.Partial(self._extend, self._model.params)
        request = decoding_request(wanted, least=least, most=most)
        return decoding.stream(extend, *start, callback=callback, **request)

    @functools.cached_property
    def _prefill(self) -> Callable[..., tuple[Array, Any]]:
        def prefill(params: PyTree, arguments: Any, *, cache_length: int) -> tuple[Array, Any]:
            call = {"cache_length": cache_length, "method": "prefill", **arguments}
            return self._module.apply({"params": params}, **call)

        return jax.jit(prefill, static_argnames="cache_length")

    @functools.cached_property
    def _extend(self) -> Callable[..., tuple[Array, Any]]:
        # One function for all calls: compiled decoders are found again by it.
        def extend(params: PyTree, tokens: Array, cache: Any) -> tuple[Array, Any]:
            return self._module.apply({"params": params}, tokens, cache, method="extend")

        return extend
