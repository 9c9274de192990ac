"""The choice of an attention core by its name."""

from typing import Any

import jax
import jax.numpy as jnp

from t5x_like.models.attention.blockwise import blockwise_core, unfused_core
from t5x_like.models.attention.cores import Core, dense_core
from t5x_like.models.attention.cudnn import cudnn_core
from t5x_like.models.attention.relative_flash import relative_flash_core
from t5x_like.models.attention.splash import splash_core
from t5x_like.names import choose

_CORES: dict[str, Core] = {
    "dense": dense_core,
    "blockwise": blockwise_core,
    "cudnn": cudnn_core,
    "splash": splash_core,
    "relative_flash": relative_flash_core,
}


def select_core(name: str, *, dtype: Any, dropout: float, dropout_broadcast: bool = False) -> Core:
    """The core with this name in `_CORES`, or `auto` for one by the device.

    `auto` is `cudnn` on an NVIDIA GPU for 16-bit types, where dropout has one mask for all queries
    of a head or there is none; `blockwise` on a CPU for float32, `dense` elsewhere.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        drops_singly = dropout > 0.0 and not dropout_broadcast
        on_gpu = jax.default_backend() == "gpu" and jnp.dtype(dtype).itemsize == 2
        return cudnn_core if on_gpu and not drops_singly else unfused_core
    return choose("model.attention", name, {"auto": unfused_core, **_CORES})
