"""Write a model as StableHLO programs, which JAX runs without this package.

A folder contains `forward.stablehlo` and, for a model that generates, `prefill.stablehlo` and
`decode_step.stablehlo`, all serialized by `jax.export`; `model.safetensors` with the parameters;
and `program.json`, which describes the inputs and outputs. Each program runs on CPUs, NVIDIA GPUs
and TPUs. Batch size and lengths are symbolic (any size) unless they are fixed.
"""

import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import PyTree

from t5x_like import systems
from t5x_like.decoding.generator import unrolled, unstack
from t5x_like.hf import folder as files
from t5x_like.hf.weight_map import Tensor
from t5x_like.nn.moe import undropped
from t5x_like.pretrained import int8_weights, model
from t5x_like.pretrained.model import Pretrained

PLATFORMS = ("cpu", "cuda", "tpu")
# Symbolic sizes of the inputs. `slots` is the length of the key-value cache: of a prompt and its
# continuation.
SIZES = ("batch", "length", "target_length", "slots")

# The inputs of a function by name: arrays, or trees of arrays.
_Inputs = Mapping[str, Any]
_Function = Callable[[PyTree, _Inputs], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class _Network:
    """A network to export; if it generates, its scan over layers is unrolled."""

    module: nn.Module
    params: dict[str, jax.Array]

    def apply(self, params: Mapping[str, jax.Array], *arguments: Any, **named: Any) -> Any:
        """Apply the network with parameters by their path, `decoder/layers_0/...`, or in 8 bits."""
        tree = flax.traverse_util.unflatten_dict(int8_weights.of_arrays(params), sep="/")
        return self.module.apply({"params": tree}, *arguments, **named)


def save(
    model: Pretrained, folder: pathlib.Path, *, sizes: Mapping[str, int], int8: bool = False
) -> float:
    """Write the programs, the parameters and `program.json` to a folder.

    Args:
        sizes: sizes to fix, by their names in `SIZES`; the others stay symbolic.
        int8: whether to write the weights in 8 bits, see `int8_weights`; the programs compute in
            float32.

    Returns:
        The largest change of an output by rounding the weights, on random tokens, divided by the
        largest absolute value of this output; 0 without `int8`.

    Raises:
        ValueError: the network has several heads, does not read tokens, or cannot run with sizes
            that are not fixed.
    """
    exact = network = _network(model)
    if int8:
        rounded = flax.traverse_util.unflatten_dict(exact.params, sep="/")
        rounded = flax.traverse_util.flatten_dict(int8_weights.quantize(rounded), sep="/")
        network = dataclasses.replace(exact, params=int8_weights.to_arrays(rounded))
    programs = _programs(model, network, sizes)
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        (folder / f"{name}.stablehlo").write_bytes(program.serialize())
    tensors = [
        Tensor(name, x.shape, np.dtype(x.dtype), functools.partial(np.asarray, x))
        for name, x in network.params.items()
    ]
    files.write_tensors(folder, tensors, max_shard_size=2**62)
    files.write_json(folder / "program.json", _description(model, programs))
    return _change(model, exact.params, network) if int8 else 0.0


_TRIED = 4, 32  # rows and length of the random tokens


def _change(model: Pretrained, exact: Mapping[str, jax.Array], network: _Network) -> float:
    rows, length = _TRIED
    length = min(length, model.config.get("positions") or length)
    tokens = np.random.default_rng(0).integers(0, model.config["vocab_size"], (rows, length))
    inputs = dict.fromkeys(("input_ids", "attention_mask"), np.ones_like(tokens, np.int32))
    inputs["input_ids"] = tokens.astype(np.int32)
    if len(model.module.sides) == 2:
        inputs |= {f"decoder_{name}": array for name, array in inputs.items()}
    run = jax.jit(_forward(network) if model.module.generates else _encode(network))
    outputs, rounded = run(exact, inputs), run(network.params, inputs)
    return max(
        float(jnp.max(jnp.abs(rounded[name] - output)) / jnp.max(jnp.abs(output)))
        for name, output in outputs.items()
    )


@dataclasses.dataclass(frozen=True)
class _Array:
    """The description of an array in `program.json`: sizes are numbers, or names in `SIZES`."""

    shape: tuple[int | str, ...]
    dtype: Any = jnp.int32


def _opened(inputs: Mapping[str, Any], *, most: int, prompt: str = "") -> dict[str, Any]:
    """Return a `jax.ShapeDtypeStruct` of each input, with bounded symbolic sizes in one scope.

    Args:
        inputs: a tree of `_Array`.
        most: the largest length of a text; 0 for any length.
        prompt: the name of the input that must fit into the slots, or "".
    """
    arrays = jax.tree.leaves(inputs)
    used = {
        name for array in arrays for size in array.shape for name in re.findall(r"\w+", str(size))
    }
    bounds = [f"{size} <= {most}" for size in SIZES[1:] if size in used and most]
    if prompt:
        bounds.append(f"{inputs['slots'].shape[0]} >= {inputs[prompt].shape[1]}")
    scope = export.SymbolicScope(bounds)

    def opened(array: _Array) -> jax.ShapeDtypeStruct:
        sizes = ",".join(map(str, array.shape))
        shape = export.symbolic_shape(sizes, scope=scope) if array.shape else ()
        return jax.ShapeDtypeStruct(shape, array.dtype)

    return jax.tree.map(opened, inputs)


def _stated(tree: Any) -> Any:
    """Convert the arrays of a tree to `_Array`, with the names of their symbolic sizes."""

    def stated(leaf: Any) -> _Array:
        return _Array(tuple(n if isinstance(n, int) else str(n) for n in leaf.shape), leaf.dtype)

    return jax.tree.map(stated, tree)


def _network(model: Pretrained) -> _Network:
    """Return the network with dense attention, which runs on all platforms.

    Raises:
        ValueError: the network has the heads of several tasks, or reads characters.
    """
    if isinstance(model.config.get("head"), Mapping):
        raise ValueError(f"this {model.system} has several heads: --format=stablehlo takes one")
    if "encoder_characters" in model.module.example_batch():
        raise ValueError(f"this {model.system} reads characters: --format=stablehlo takes tokens")
    module, params = model.module, model.params
    if "attention" in model.config:
        module = systems.build(model.system, model.config | {"attention": "dense"})
    if module.generates:
        stacked, module = module, unrolled(module)
        params = params if module is stacked else unstack(params)
    return _Network(module, flax.traverse_util.flatten_dict(params, sep="/"))


def _programs(
    model: Pretrained, network: _Network, fixed: Mapping[str, int]
) -> dict[str, export.Exported]:
    """Export the functions of the network, by name."""
    most, params = model.config.get("positions", 0), network.params

    def array(*axes: str | int) -> _Array:
        return _Array(tuple(fixed.get(str(axis), axis) for axis in axes))

    def exported(function: _Function, inputs: _Inputs, prompt: str = "") -> export.Exported:
        return _exported(function, params, _opened(inputs, most=most, prompt=prompt))

    read = dict.fromkeys(("input_ids", "attention_mask"), array("batch", "length"))
    if not model.module.generates:
        if model.config.get("token_types"):
            read["token_type_ids"] = read["input_ids"]
        return {"forward": exported(_encode(network), read)}
    targets, masks = {}, {}
    if len(model.module.sides) == 2:
        targets = {"decoder_input_ids": array("batch", "target_length")}
        masks = {"decoder_attention_mask": array("batch", "target_length")}
    prompt = read | targets | {"slots": array("slots")}
    generating = dataclasses.replace(network, module=undropped(network.module))
    prefill = _prefill(generating)
    first = "decoder_input_ids" if targets else "input_ids"
    cache = _cache(prefill, params, _opened(prompt, most=most, prompt=first))
    step = {"input_ids": array("batch", 1), "cache": _stated(_by_name(cache))}
    return {
        "forward": exported(_forward(network), read | targets | masks),
        "prefill": exported(_naming_cache(prefill), prompt, first),
        "decode_step": exported(_decode_step(generating, jax.tree.structure(cache)), step),
    }


@contextlib.contextmanager
def _one_line_of_open_sizes(inputs: _Inputs) -> Iterator[None]:
    """Raise a ValueError with a one-line reason if the network needs a symbolic size fixed."""
    try:
        yield
    except (jax.errors.InconclusiveDimensionOperation, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"this network does not run with open sizes ({reason}): fix some or all of them with "
            "--sizes=" + ",".join(f"{name}=..." for name in SIZES if name in str(inputs))
        ) from error


def _exported(function: _Function, params: PyTree, inputs: _Inputs) -> export.Exported:
    """Export a function of parameters and inputs for all platforms."""
    # Keep an input whose values are not read, such as `slots`: its size is read.
    exporter = export.export(jax.jit(function, keep_unused=True), platforms=PLATFORMS)
    with _one_line_of_open_sizes(inputs):
        return exporter(jax.tree.map(jax.typeof, params), inputs)


def _cache(prefill: Callable[..., Any], params: PyTree, prompt: _Inputs) -> Any:
    """Return the shapes of the cache that `prefill` returns."""
    with _one_line_of_open_sizes(prompt):
        return jax.eval_shape(prefill, params, prompt)[1]


def _encode(network: _Network) -> _Function:
    def forward(params: PyTree, inputs: _Inputs) -> dict[str, Any]:
        batch = model.side("encoder", inputs["input_ids"], inputs["attention_mask"])
        if "token_type_ids" in inputs:
            batch["encoder_token_types"] = inputs["token_type_ids"]
        return dict(network.apply(params, batch))

    return forward


def _forward(network: _Network) -> _Function:
    def forward(params: PyTree, inputs: _Inputs) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        prefixes = {"encoder": "", "decoder": "decoder_"}
        if len(network.module.sides) == 1:
            prefixes = {"decoder": ""}
        for side, prefix in prefixes.items():
            ids, mask = inputs[f"{prefix}input_ids"], inputs[f"{prefix}attention_mask"]
            batch |= model.side(side, ids, mask)
        return {"logits": network.apply(params, batch)}

    return forward


def _prefill(network: _Network) -> Callable[[PyTree, _Inputs], tuple[jax.Array, Any]]:
    def prefill(params: PyTree, inputs: _Inputs) -> tuple[jax.Array, Any]:
        ids, real = inputs["input_ids"], inputs["attention_mask"] != 0
        batch = {"decoder_input_tokens": ids, "decoder_mask": real}
        if "decoder_input_ids" in inputs:
            batch = {"encoder_input_tokens": ids, "encoder_mask": real}
            batch["decoder_input_tokens"] = inputs["decoder_input_ids"]
        slots = inputs["slots"].shape[0]
        return network.apply(params, **batch, cache_length=slots, method="prefill")

    return prefill


def _naming_cache(prefill: Callable[[PyTree, _Inputs], tuple[jax.Array, Any]]) -> _Function:
    def run(params: PyTree, inputs: _Inputs) -> dict[str, Any]:
        logits, cache = prefill(params, inputs)
        return {"logits": logits, "cache": _by_name(cache)}

    return run


def _decode_step(network: _Network, structure: Any) -> _Function:
    def decode_step(params: PyTree, inputs: _Inputs) -> dict[str, Any]:
        cache = jax.tree.unflatten(structure, [inputs["cache"][n] for n in _names(structure)])
        logits, cache = network.apply(params, inputs["input_ids"], cache, method="extend")
        return {"logits": logits[:, -1], "cache": _by_name(cache)}

    return decode_step


def _by_name(cache: Any) -> dict[str, Any]:
    """Return the arrays of a cache by path: exported programs cannot use this package's classes."""
    return dict(zip(_names(jax.tree.structure(cache)), jax.tree.leaves(cache), strict=True))


def _names(structure: Any) -> list[str]:
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def _description(model: Pretrained, exported: Mapping[str, export.Exported]) -> dict[str, Any]:
    """Return the content of `program.json`, which a program that runs the functions needs."""

    def described(tree: Any) -> Any:
        def description(array: _Array) -> dict[str, Any]:
            return {"shape": list(array.shape), "dtype": jnp.dtype(array.dtype).name}

        return jax.tree.map(description, _stated(tree))

    functions = {}
    for name, program in exported.items():
        (_, inputs), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
        outputs = jax.tree.unflatten(program.out_tree, program.out_avals)
        functions[name] = {"inputs": described(inputs), "outputs": described(outputs)}
    return {
        "system": model.system,
        "vocab_size": model.config["vocab_size"],
        "positions": model.config.get("positions", 0),  # 0: any number
        "platforms": list(PLATFORMS),
        "functions": functions,
        "generation": dataclasses.asdict(model.generation) if model.module.generates else None,
    }
