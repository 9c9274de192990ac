"""Pretrained language models in JAX and Flax, from the Transformer on."""

import glob
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t5x_like.pretrained import Pretrained, from_pretrained

__all__ = ["Pretrained", "from_pretrained"]

if not glob.glob("/dev/accel*") + glob.glob("/dev/vfio/*"):
    # No TPU is here. Where libtpu is, for `plan`, JAX starts it nevertheless, and it would complain
    # on standard error of what Cloud TPU sets on its machines.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def __getattr__(name: str) -> Any:
    """Loads the networks only when they are asked for, so that `--help` need not wait for them."""
    if name not in __all__:
        raise AttributeError(f"module 't5x_like' has no attribute {name!r}")
    from t5x_like import pretrained

    return getattr(pretrained, name)
