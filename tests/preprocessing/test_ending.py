"""The end of a process whose preprocessors are Python functions, at work in the background."""

import subprocess
import sys

import pytest

DROPPED = """
import time
import seqio
import tensorflow as tf
from t5x_like.preprocessing.pipeline import SeqioBatches

def slowly(tokens):
    time.sleep(0.01)
    return tokens

def in_python(dataset):
    def pair(x):
        tokens = tf.ensure_shape(tf.numpy_function(slowly, [x["inputs"]], tf.int32), [4])
        return {"inputs": tokens, "targets": tokens}
    return dataset.map(pair, num_parallel_calls=4)

feature = seqio.Feature(seqio.PassThroughVocabulary(9))
seqio.TaskRegistry.add(
    "task",
    source=seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {"inputs": tf.ones([1000, 4], tf.int32)}
        ),
        splits=["train"],
    ),
    preprocessors=[in_python],
    output_features=dict.fromkeys(
        ("inputs", "targets"), seqio.Feature(seqio.PassThroughVocabulary(9))
    ),
)
lengths = {"inputs": 4, "targets": 4}
batches = SeqioBatches("task", split="train", batch_size=2, lengths=lengths, shuffle=False)
next(batches)
"""


@pytest.mark.slow
def test_a_process_ends_while_python_functions_are_at_work():
    # Without `_stop` it hangs for ever, at the end.
    subprocess.run([sys.executable, "-c", DROPPED], timeout=120, check=True)
