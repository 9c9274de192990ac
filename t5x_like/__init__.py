"""Pretrained language models in JAX and Flax, from the Transformer on."""

import glob
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t5x_like.pretrained import Pretrained, from_pretrained

__all__ = ["Pretrained", "from_pretrained"]

# Else epath reads buckets by TensorFlow wherever that is installed.
os.environ.setdefault("EPATH_USE_TF", "false")

if not glob.glob("/dev/accel*") + glob.glob("/dev/vfio/*"):
    # Without a TPU, but with libtpu installed for `plan`, JAX still starts libtpu, which prints
    # warnings about these variables, which only Cloud TPU's machines set.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def __getattr__(name: str) -> Any:
    """Import the networks on first use, so that `--help` does not wait for them."""
    if name not in __all__:
        raise AttributeError(f"module 't5x_like' has no attribute {name!r}")
    from t5x_like import pretrained

    return getattr(pretrained, name)
