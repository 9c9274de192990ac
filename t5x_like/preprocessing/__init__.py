"""Text to batches: cleaning, objectives, mixtures and tasks. Only this room uses TensorFlow."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _native_messages_dropped() -> Iterator[None]:
    """Discard what native libraries print to standard error; exceptions still propagate.

    On import, before any setting can prevent it, TensorFlow prints messages about instruction sets
    and missing GPUs, which do not matter for reading text.
    """
    with contextlib.ExitStack() as stack:
        standard_error = os.dup(2)
        stack.callback(os.close, standard_error)
        stack.callback(os.dup2, standard_error, 2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield


# oneDNN is useless for reading text, and its search for rewritable operations slows down the
# creation of iterators.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

with _native_messages_dropped():
    import tensorflow as tf

    # Otherwise TensorFlow reserves the memory of every GPU, which JAX needs. It refuses this
    # setting once it has run operations.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    # The mapped functions, on single examples, are too small for graph optimization to pay off.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
