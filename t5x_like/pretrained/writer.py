"""What writes text: a network whose layers lie apart, its prompt read and its next token asked."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, PyTree

from t5x_like import systems
from t5x_like.decoding.interface import Extend
from t5x_like.models.blocks.stack import unstack_layers


class Writer:
    """Reads prompts and goes on with them; code is compiled once for each shape.

    A scanned stack copies a layer's weights and cache out of the stack whenever it comes to it,
    which at one token a row is most of the time: three times a token's on a CPU. So the layers are
    taken apart here, once. (A network loaded with loop="unroll" has them apart, and once only.)

    Args:
        system, config: what the network was built as; it must have `prefill` and `extend`.
        params: its parameters.
    """

    def __init__(self, system: str, config: Mapping[str, Any], params: PyTree):
        self._module = systems.build(system, {**config, "loop": "unroll"})
        apart = config["loop"] == "unroll"
        self._params = params if apart else jax.jit(_unstack)(params)
        self._prefill = jax.jit(self._read, static_argnames="cache_length")
        # One function for all calls: compiled decoders are found again by it.
        self._extend = self._go_on

    def prefill(
        self, arguments: Mapping[str, Any], *, cache_length: int
    ) -> tuple[Float[Array, "B V"], Any]:
        """The logits after a prompt, and its cache; `arguments` are those of the network's."""
        return self._prefill(self._params, arguments, cache_length=cache_length)

    @property
    def extend(self) -> Extend:
        """What `decoding` calls for each token."""
        return jax.tree_util.Partial(self._extend, self._params)

    def _read(self, params: PyTree, arguments: Any, *, cache_length: int) -> tuple[Array, Any]:
        call = {"cache_length": cache_length, "method": "prefill", **arguments}
        return self._module.apply({"params": params}, **call)

    def _go_on(self, params: PyTree, tokens: Array, cache: Any) -> tuple[Array, Any]:
        return self._module.apply({"params": params}, tokens, cache, method="extend")


def _unstack(params: PyTree) -> PyTree:
    """Parameters of scanned stacks, wherever they are, as those of looped ones."""
    if not isinstance(params, Mapping):
        return params
    if set(params) == {"block"}:
        layers = jax.tree.leaves(params)[0].shape[0]
        return unstack_layers(params, layers=layers)
    return {name: _unstack(part) for name, part in params.items()}
