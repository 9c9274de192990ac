"""The object through which training, evaluation and inference generate text with a network."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import decoding, partitioning
from t5x_like.decoding.decoder_contract import Extend, check_room, longest_rows
from t5x_like.decoding.generation import Generated, StreamStep
from t5x_like.decoding.settings import GenerationSettings, decoding_request
from t5x_like.decoding.transposed_kernels import LayerKernel, arrange, kernels_of_extend, pays
from t5x_like.nn.compute import Compute, change_settings
from t5x_like.nn.moe import undropped
from t5x_like.nn.stack import Stack, unstack_layers
from t5x_like.partitioning import fetch

_MANY_SLOTS = 1 << 20  # cache slots of all rows; fewer fit into any memory and are not checked
_SHORTEST, _STEP = 16, 256  # tokens of padded prompts, see `padded_length`


class _Prefilled(NamedTuple):
    """The decoder's prompt after the forward pass over it.

    Attributes:
        prompt: the prompt of a language model, or the decoder's start token of an encoder-decoder.
        counted: the padded prompt, as `no_repeat_ngram_size` counts it; -1 at other tokens.
        logits: the logits of the first new token.
        cache: the key-value cache of the prompt.
        least, most: the smallest and largest number of new tokens that the settings allow.
    """

    prompt: Int[np.ndarray, "B P"]
    counted: Int[Array, "B L"]
    logits: Float[Array, "B V"]
    cache: Any
    least: int
    most: int


class Generator:
    """Generates text with a network and its parameters; code is compiled once for each shape.

    Prompts are padded to one of a few lengths (`padded_length`), so that prompts of other lengths
    mostly find compiled code. Padding changes no token.

    A scanned stack copies each layer's weights and cache out of the stacked arrays, which with one
    token per row takes most of the time (on a CPU three times as long as the computation). So
    scanned layers are unrolled here, once for all calls, and on a CPU the kernels of a large
    decoder are transposed (`transposed_kernels.py`). Experts drop no tokens (`moe.py`).

    Call `generate` and `stream` outside jit. Inside a jitted function, call `prefill`, and
    `decoding.generate` with `extend`.

    Args:
        module: a network that declares `generates` and the `sides` of a batch that it reads.
        params: the unboxed parameters; if they are on a mesh, call all methods within its layout.

    Raises:
        ValueError: the network does not generate text.
    """

    def __init__(self, module: nn.Module, params: PyTree):
        if not module.generates:
            raise ValueError(f"the network {type(module).__name__} does not generate text")
        complete = undropped(module)
        self._module = unrolled(complete)
        self._stacked = self._module is not complete
        self._encodes = module.sides == ("encoder", "decoder")
        longest = longest_rows(module)
        self._longest, self._longest_prompt = (longest.get(module.sides[n]) for n in (-1, 0))
        self._pads = not self._encodes or getattr(module, "any_padding", False)
        self._kernels: tuple[LayerKernel, ...] = ()
        if pays(params):
            shapes = jax.eval_shape(unstack, params) if self._stacked else params
            self._kernels = kernels_of_extend(self._module, shapes, encodes=self._encodes)
        self._variables = self._arrange(params)
        self._prefill, self._extend = _programs(self._module)

    def with_params(self, params: PyTree) -> "Generator":
        """Return a generator with other parameters and the same compiled code.

        Args:
            params: parameters of the same network; None for a generator that holds no parameters
                and only keeps the compiled code.
        """
        other = copy.copy(self)
        other._variables = {} if params is None else self._arrange(params)
        return other

    def prefill(
        self, arguments: Mapping[str, Any], *, cache_length: int
    ) -> tuple[Float[Array, "B V"], Any]:
        """Run the forward pass over a prompt; return the next token's logits and the cache.

        Args:
            arguments: the arguments of the module's `prefill`.
            cache_length: cache slots for the prompt and its continuation.
        """
        return self._prefill(self._variables, arguments, cache_length=cache_length)

    @property
    def extend(self) -> Extend:
        """(tokens [B, 1], cache) -> (logits [B, 1, V], cache), for the functions of `decoding`."""
        return jax.tree_util.Partial(self._extend, self._variables)

    def generate(
        self,
        tokens: Int[np.ndarray, "B S"],
        mask: Bool[np.ndarray, "B S"],
        settings: GenerationSettings,
        *,
        padding_counts: bool = True,
    ) -> Int[np.ndarray, "R L"]:
        """Generate after each prompt: greedily, by sampling or by beam search.

        With several processes, call it on all, with the same prompts.

        Args:
            tokens: the encoder's inputs, or a language model's prompts, padded on the left.
            mask: True on real tokens, False on padding.
            padding_counts: whether `no_repeat_ngram_size` counts padding, as in transformers.

        Returns:
            Int32 rows: the prompt (or the decoder's start token), the generated tokens up to and
            including the end token, and padding to the length of the longest row. There are
            `num_return_sequences` rows for each prompt, best first.

        Raises:
            ValueError: the settings leave no room for a new token, the network has too few
                positions, or the cache does not fit into memory.
        """
        prefilled = self._prefill_prompts(tokens, mask, settings, padding_counts=padding_counts)
        request = self._request(settings, prefilled)
        output: decoding.Beams | Generated
        if settings.num_beams > 1:
            output = decoding.beam_search(
                self.extend, prefilled.logits, prefilled.cache, prompt=prefilled.counted, **request
            )
        else:
            output = decoding.generate(
                self.extend, prefilled.logits, prefilled.cache, prompt=prefilled.counted, **request
            )
        generated, lengths = fetch((output.tokens, output.lengths))
        new = generated.reshape(-1, prefilled.most)
        prompts = np.repeat(prefilled.prompt, len(new) // len(prefilled.prompt), axis=0)
        return np.concatenate([prompts, new[:, : lengths.max()]], axis=1)

    def stream(
        self,
        tokens: Int[np.ndarray, "B S"],
        mask: Bool[np.ndarray, "B S"],
        settings: GenerationSettings,
        *,
        callback: Callable[[StreamStep], bool | None],
        padding_counts: bool = True,
    ) -> Generated:
        """Generate like `generate`, and call `callback` after each step; for one process.

        Args:
            tokens, mask, padding_counts: see `generate`.
            callback: called with a `StreamStep` for each step; it ends generation by returning
                True.

        Raises:
            ValueError: see `generate`; or the settings ask for beam search, which chooses its text
                only at the end.
        """
        if settings.num_beams > 1:
            raise ValueError(
                f"num_beams={settings.num_beams}: a stream needs num_beams=1, as beam search "
                "chooses its text at the end"
            )
        prefilled = self._prefill_prompts(tokens, mask, settings, padding_counts=padding_counts)
        request = self._request(settings, prefilled)
        return decoding.stream(
            self.extend,
            prefilled.logits,
            prefilled.cache,
            callback=callback,
            prompt=prefilled.counted,
            **request,
        )

    def _request(self, settings: GenerationSettings, prefilled: _Prefilled) -> dict[str, Any]:
        if prefilled.prompt.shape[1] > 1:  # as in transformers, it is forced after a single token
            settings = dataclasses.replace(settings, forced_bos_token_id=None)
        return decoding_request(settings, least=prefilled.least, most=prefilled.most)

    def _prefill_prompts(
        self,
        tokens: np.ndarray,
        mask: np.ndarray,
        settings: GenerationSettings,
        *,
        padding_counts: bool,
    ) -> _Prefilled:
        least, most = settings.new_tokens(
            prompt=1 if self._encodes else tokens.shape[1], read=tokens.shape[1]
        )
        padding = self._padding(tokens.shape[1], new=most)
        if self._encodes:
            prompt = np.full((len(tokens), 1), settings.decoder_start_token_id, np.int32)
            sides = [(0, 0), (0, padding)]
            arguments = {
                "encoder_input_tokens": np.pad(tokens, sides),
                "encoder_mask": np.pad(mask, sides),
                "decoder_input_tokens": prompt,
            }
            counted, read = prompt, 1
        else:
            prompt, sides = tokens, [(0, 0), (padding, 0)]
            arguments = {
                "decoder_input_tokens": np.pad(tokens, sides),
                "decoder_mask": np.pad(mask, sides),
            }
            counted = tokens if padding_counts else np.where(mask, tokens, -1)
            counted = np.pad(counted, sides, constant_values=-1)
            read = int(mask.sum(axis=1).max())
        check_room(self._longest, prompt=read, new=most)
        slots = arguments["decoder_input_tokens"].shape[1] + most
        self._check_memory(arguments, settings, length=slots)
        logits, cache = self.prefill(arguments, cache_length=slots)
        return _Prefilled(prompt, jnp.asarray(counted, jnp.int32), logits, cache, least, most)

    def _padding(self, length: int, *, new: int = 0) -> int:
        """Return the number of tokens by which prompts of a length are padded.

        Args:
            length: tokens of the longest prompt.
            new: tokens to generate, which share the positions of a prompt without an encoder.
        """
        if not self._pads:
            return 0
        padded = padded_length(length)
        if self._longest_prompt is not None:
            padded = min(padded, self._longest_prompt - (0 if self._encodes else new))
        return max(0, padded - length)

    def _check_memory(
        self, arguments: dict[str, Any], settings: GenerationSettings, *, length: int
    ) -> None:
        rows = len(arguments["decoder_input_tokens"])
        copies = max(settings.num_beams, settings.num_return_sequences)
        if rows * copies * length < _MANY_SLOTS:  # a small cache is faster made than traced
            return
        trace = functools.partial(self._prefill, cache_length=length)
        _, cache = jax.eval_shape(trace, self._variables, arguments)
        needed = copies * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
        partitioning.check_memory(
            f"max_new_tokens={settings.max_new_tokens}, num_beams={settings.num_beams}, "
            f"num_return_sequences={settings.num_return_sequences}: the keys and values of "
            f"{length:,} tokens in each of {rows * copies:,} rows",
            needed,
            partitioning.memory(),
        )

    def _arrange(self, params: PyTree) -> dict[str, PyTree]:
        flat = traverse_util.flatten_dict(unstack(params) if self._stacked else params)
        return arrange(flat, self._kernels)


def padded_length(length: int) -> int:
    """Return the length to which rows are padded: 16, 32, 64, 128, 256, 512, 768, 1024, ..."""
    return -(-length // _STEP) * _STEP if length > _STEP else power_of_two(length)


def power_of_two(length: int) -> int:
    """Round a length up to a power of two, 16 or more, so that few programs are compiled."""
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def _programs(module: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make `prefill` and `extend`, functions of the variables, for any parameters of the network.

    jit keys compiled code by these function objects and keeps both alive, so the functions must not
    hold parameters.
    """

    def prefill(variables: PyTree, arguments: Any, *, cache_length: int) -> tuple[Array, Any]:
        call = {"cache_length": cache_length, "method": "prefill", **arguments}
        return module.apply(variables, **call)

    def extend(variables: PyTree, tokens: Array, cache: Any) -> tuple[Array, Any]:
        return module.apply(variables, tokens, cache, method="extend")

    return jax.jit(prefill, static_argnames="cache_length"), extend


def unrolled(module: nn.Module) -> nn.Module:
    """Return the network with every `Stack` unrolled; the network itself if none is scanned."""

    def unroll(factory: functools.partial) -> Mapping[str, Any]:
        compute = factory.keywords.get("compute", Compute())
        if compute.loop == "unroll":
            return {}
        return {"compute": dataclasses.replace(compute, loop="unroll")}

    return change_settings(module, Stack, unroll)


def unstack(params: PyTree) -> PyTree:
    """Convert the parameters of all scanned stacks to the form of unrolled stacks."""
    if not isinstance(params, Mapping):
        return params
    if set(params) == {"block"}:
        return _layers_of(params)
    return {name: unstack(part) for name, part in params.items()}


def stacks(params: PyTree) -> list[PyTree]:
    """Return the parameters of each scanned stack of a network, which a `Generator` copies."""
    if not isinstance(params, Mapping):
        return []
    if set(params) == {"block"}:
        return [params]
    return [stack for part in params.values() for stack in stacks(part)]


# Jitted per stack: jitting over all parameters would copy all that are only passed through.
@jax.jit
def _layers_of(stack: PyTree) -> PyTree:
    return unstack_layers(stack, layers=jax.tree.leaves(stack)[0].shape[0])
