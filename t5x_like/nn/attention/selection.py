"""The choice of an attention core, by name or by device."""

from typing import Any

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.names import choose
from t5x_like.nn.attention import cudnn, splash
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import KEPT, Core, blockwise_core, dense_core, for_window
from t5x_like.nn.attention.cudnn import cudnn_core
from t5x_like.nn.attention.masks import AttentionMask
from t5x_like.nn.attention.relative_flash import relative_flash_core
from t5x_like.nn.attention.splash import splash_core


def _by_device(
    query: Float[Array, "B T H K"], keys_values: KeyValues, **settings: Any
) -> Float[Array, "B T H K"]:
    """Compute attention with the core that is fastest on the devices of this program."""
    core = _fastest(query, keys_values, **settings)
    run = for_window(core, bias=settings["bias"], mask=settings["mask"])
    out = run(query, keys_values, **settings)
    return out if core.names_output else checkpoint_name(out, KEPT)


def _fastest(
    query: Array,
    keys_values: KeyValues,
    *,
    bias: Any,
    mask: AttentionMask,
    dropout: float,
    dropout_rng: Array | None,
    dropout_broadcast: bool,
    **_: Any,
) -> Core:
    platform, rate = partitioning.platform(), 0.0 if dropout_rng is None else dropout
    if platform == "cpu" and query.dtype == jnp.float32:
        return blockwise_core
    if platform == "gpu" and cudnn.fits(
        query, keys_values, dropout=rate, dropout_broadcast=dropout_broadcast
    ):
        return cudnn_core
    if platform == "tpu" and mask.window is None:
        terms: dict[str, Any] = {"bias": bias, "mask": mask, "dropout": rate}
        return splash_core if splash.fits(query, keys_values, **terms) else dense_core
    return dense_core


by_device_core = Core(_by_device, names_output=True, has_scores=True, knows_windows=True)

_CORES: dict[str, Core] = {
    "dense": dense_core,
    "blockwise": blockwise_core,
    "cudnn": cudnn_core,
    "splash": splash_core,
    "relative_flash": relative_flash_core,
}


def select_core(name: str) -> Core:
    """Return the core with this name in `_CORES`; `auto` chooses it by device for each program.

    `auto` is `cudnn` on an NVIDIA GPU for 16-bit types, without dropout or with one dropout mask
    for all queries of a head (`cudnn.fits`); `blockwise` on a CPU for float32; `splash` on a TPU
    for 512 queries or more, without a window, if the kernel supports the attention (`splash.fits`);
    and otherwise `dense`.

    Raises:
        ValueError: the name is unknown.
    """
    return choose("model.attention", name, {"auto": by_device_core, **_CORES})
