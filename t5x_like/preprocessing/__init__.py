"""Text to batches: vocabularies, cleaning, objectives, packing. TensorFlow lives here alone."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _native_messages_dropped() -> Iterator[None]:
    """Within it what libraries write to standard error themselves is lost; exceptions are not.

    TensorFlow tells there, before any setting of its can stop it, of instruction sets and of the
    GPUs that it lacks, and here it only reads text.
    """
    with contextlib.ExitStack() as stack:
        standard_error = os.dup(2)
        stack.callback(os.close, standard_error)
        stack.callback(os.dup2, standard_error, 2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield


with _native_messages_dropped():
    import tensorflow as tf

    # Left alone it would take the memory of every GPU, which is JAX's.
    tf.config.set_visible_devices([], "GPU")
