"""The random numbers of TensorFlow's data sets and stateless functions, in NumPy.

Both are Philox 4x32-10, the counter-based generator of Salmon et al. 2011 (Parallel random numbers:
as easy as 1, 2, 3), section 4.3. With the same seeds as in seqio's preprocessors an objective
makes the same noise, so that its examples are identical byte for byte.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64, UInt32, UInt64

_WORD = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
# TensorFlow's default graph seed, and the key with which it mixes stateless seeds.
_GRAPH_SEED = 87654321
_MIXING_KEY = 0x3EC8F720, 0x02461E29
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


class Draws:
    """The stateless random numbers of several pairs of seeds, each seed below 2^32.

    Args:
        seeds: as passed to `tf.random.stateless_uniform`.
    """

    def __init__(self, seeds: Int64[np.ndarray, "N 2"]):
        counters = np.zeros([len(seeds), 4], np.uint64)
        counters[:, ::2] = seeds
        keys = np.broadcast_to(np.array(_MIXING_KEY, np.uint64), (len(seeds), 2))
        mixed = philox(counters, keys)
        self._keys, self._high = mixed[:, :2], mixed[:, 2:]

    def words(self, sizes: Sequence[int]) -> list[UInt32[np.ndarray, "?"]]:
        """Return the first `sizes[n]` words of the n-th pair of seeds, for each n."""
        groups = [-(-size // 4) for size in sizes]
        owner = np.repeat(np.arange(len(groups)), groups)
        counters = np.zeros([len(owner), 4], np.uint64)
        counters[:, 0] = np.concatenate([np.arange(one, dtype=np.uint64) for one in groups])
        counters[:, 2:] = self._high[owner]
        words = philox(counters, self._keys[owner]).astype(np.uint32).reshape(-1)
        starts = 4 * np.cumsum([0, *groups[:-1]])
        return [words[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def uniform(self, sizes: Sequence[int]) -> list[Float32[np.ndarray, "?"]]:
        """Return numbers in [0, 1), with 23 bits, like `tf.random.stateless_uniform`."""
        one = np.uint32(127 << 23)  # the exponent of numbers in [1, 2)
        return [
            ((words & np.uint32(2**23 - 1)) | one).view(np.float32) - np.float32(1)
            for words in self.words(sizes)
        ]
