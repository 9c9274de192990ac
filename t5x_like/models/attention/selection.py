"""The choice of an attention core, by its name or by the devices."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.models.attention import splash
from t5x_like.models.attention.blockwise import blockwise_core
from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import KEPT, Core, dense_core
from t5x_like.models.attention.cudnn import cudnn_core
from t5x_like.models.attention.relative_flash import relative_flash_core
from t5x_like.models.attention.splash import splash_core
from t5x_like.names import choose


def _by_device(
    query: Float[Array, "B T H K"], keys_values: KeyValues, **settings: Any
) -> Float[Array, "B T H K"]:
    """Attention through the core that is the fastest on the devices of this program."""
    terms = {name: settings[name] for name in ("bias", "mask", "dropout")}
    if settings["dropout_rng"] is None:
        terms["dropout"] = 0.0
    platform, core = partitioning.platform(), dense_core
    if platform == "cpu" and query.dtype == jnp.float32:
        core = blockwise_core
    elif platform == "tpu" and splash.fits(query, keys_values, **terms):
        core = splash_core
    out = core(query, keys_values, **settings)
    return out if core.names_output else checkpoint_name(out, KEPT)


by_device_core = Core(_by_device, names_output=True, has_scores=True)

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
    of a head or there is none; `blockwise` on a CPU for float32; `splash` on a TPU for 512 queries
    or more where it has all that the attention needs (`splash.fits`); `dense` elsewhere.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        drops_singly = dropout > 0.0 and not dropout_broadcast
        on_gpu = jax.default_backend() == "gpu" and jnp.dtype(dtype).itemsize == 2
        return cudnn_core if on_gpu and not drops_singly else by_device_core
    return choose("model.attention", name, {"auto": by_device_core, **_CORES})
