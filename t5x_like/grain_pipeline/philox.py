"""The random numbers of `tf.data.Dataset.random`, in NumPy.

They are Philox 4x32-10, the counter-based generator of Salmon et al. 2011 (Parallel random numbers:
as easy as 1, 2, 3), section 4.3. seqio seeds its preprocessors with them, and with the same seeds
an objective makes the same examples.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt64

_WORD = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_GRAPH_SEED = 87654321  # TensorFlow's default
# Seeds of data sets are taken modulo this.
_MOST = 2**31 - 1


def philox(counters: UInt64[np.ndarray, "N 4"], keys: UInt64[np.ndarray, "N 2"]):
    """Return the 4 words of each counter under its key, each below 2^32: uint64 [N, 4]."""
    a, b, c, d = np.moveaxis(counters, 1, 0)
    low, high = np.moveaxis(keys, 1, 0)
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (second >> _WORD) ^ b ^ low,
            second & _LOW,
            (first >> _WORD) ^ d ^ high,
            first & _LOW,
        )
        low, high = (low + _STEPS[0]) & _LOW, (high + _STEPS[1]) & _LOW
    return np.stack([a, b, c, d], axis=1)


def dataset_words(seeds: Sequence[int], *, first: int, count: int) -> Int64[np.ndarray, "S count"]:
    """Return elements [first, first + count) of `tf.data.Dataset.random(seed)` for each seed."""
    begin = first // 4
    groups = np.arange(begin, -(-(first + count) // 4), dtype=np.uint64)
    own = np.array([seed % _MOST for seed in seeds], np.uint64)
    counters = np.zeros([len(own), len(groups), 4], np.uint64)
    counters[..., 0], counters[..., 1] = groups & _LOW, groups >> _WORD
    counters[..., 2] = own[:, None]
    keys = np.broadcast_to(np.array([_GRAPH_SEED, 0], np.uint64), (counters[..., 0].size, 2))
    words = philox(counters.reshape(-1, 4), keys).reshape(len(own), -1)
    return words[:, first - 4 * begin :][:, :count].astype(np.int64)
