"""What TensorFlow computes for held-out documents and for seeds, in Python and NumPy.

FarmHash's 64-bit fingerprint of a string decides which documents are held out; Philox gives the
random numbers of `tf.data.Dataset.random`.
"""

import struct
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt64

_ALL = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_BLOCK = 64


def fingerprint(text: bytes) -> int:
    """Return the fingerprint of a string of bytes, from 0 to 2^64 - 1."""
    size = len(text)
    if size > _BLOCK:
        return _long(text)
    if size > 32:
        return _up_to_64(text, size)
    return _up_to_32(text, size) if size > 16 else _up_to_16(text, size)


def _word(text: bytes, offset: int) -> int:
    return int.from_bytes(text[offset : offset + 8], "little")


def _rotate(value: int, bits: int) -> int:
    value &= _ALL
    return (value >> bits | value << (64 - bits)) & _ALL


def _shift_mix(value: int) -> int:
    value &= _ALL
    return value ^ value >> 47


def _mix(first: int, other: int, multiplier: int) -> int:
    low = _shift_mix((first ^ other) * multiplier)
    high = _shift_mix((other ^ low) * multiplier)
    return high * multiplier & _ALL


def _up_to_16(text: bytes, size: int) -> int:
    multiplier = _K2 + 2 * size
    if size >= 8:
        a, b = _word(text, 0) + _K2 & _ALL, _word(text, size - 8)
        c = _rotate(b, 37) * multiplier + a & _ALL
        d = (_rotate(a, 25) + b) * multiplier & _ALL
        return _mix(c, d, multiplier)
    if size >= 4:
        a = int.from_bytes(text[:4], "little")
        b = int.from_bytes(text[size - 4 :], "little")
        return _mix(size + (a << 3), b, multiplier)
    if size:
        y = text[0] + (text[size >> 1] << 8)
        z = size + (text[-1] << 2)
        return _shift_mix(y * _K2 ^ z * _K0) * _K2 & _ALL
    return _K2


def _up_to_32(text: bytes, size: int) -> int:
    multiplier = _K2 + 2 * size
    a, b = _word(text, 0) * _K1, _word(text, 8)
    c, d = _word(text, size - 8) * multiplier, _word(text, size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _ALL
    return _mix(y, a + _rotate(b + _K2, 18) + c & _ALL, multiplier)


def _up_to_64(text: bytes, size: int) -> int:
    multiplier = _K2 + 2 * size
    a, b = _word(text, 0) * _K2, _word(text, 8)
    c, d = _word(text, size - 8) * multiplier, _word(text, size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _ALL
    z = _mix(y, a + _rotate(b + _K2, 18) + c & _ALL, multiplier)
    e, f = _word(text, 16) * multiplier, _word(text, 24)
    g, h = (y + _word(text, size - 32)) * multiplier, (z + _word(text, size - 24)) * multiplier
    last = _rotate(e + f, 43) + _rotate(g, 30) + h & _ALL
    return _mix(last, e + _rotate(f + a, 18) + g & _ALL, multiplier)


def _long(text: bytes) -> int:
    x, y, z = 81, (81 * _K1 + 113) & _ALL, 0
    z = _shift_mix(y * _K2 + 113) * _K2 & _ALL
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _word(text, 0) & _ALL
    last = len(text) - 1
    for offset in range(0, last // _BLOCK * _BLOCK, _BLOCK):
        x, y, z, v, w = _step(text, offset, (x, y, z, v, w), _K1, 1)
    # The last 64 bytes, which may overlap with the block before them.
    multiplier = _K1 + ((z & 0xFF) << 1) & _ALL
    w = (w[0] + (last & _BLOCK - 1) & _ALL, w[1])
    v = (v[0] + w[0] & _ALL, v[1])
    w = (w[0] + v[0] & _ALL, w[1])
    x, y, z, v, w = _step(text, len(text) - _BLOCK, (x, y, z, v, w), multiplier, 9)
    return _mix(
        _mix(v[0], w[0], multiplier) + _shift_mix(y) * _K0 + z & _ALL,
        _mix(v[1], w[1], multiplier) + x & _ALL,
        multiplier,
    )


def _step(text: bytes, offset: int, state: tuple, multiplier: int, weight: int) -> tuple:
    """Return the state after a block of 64 bytes."""
    x, y, z, v, w = state
    words = struct.unpack_from("<8Q", text, offset)
    x = _rotate(x + y + v[0] + words[1], 37) * multiplier & _ALL
    y = _rotate(y + v[1] + words[6], 42) * multiplier & _ALL
    x ^= w[1] * weight & _ALL
    y = y + v[0] * weight + words[5] & _ALL
    z = _rotate(z + w[0], 33) * multiplier & _ALL
    v = _weak(words[:4], v[1] * multiplier, x + w[0])
    w = _weak(words[4:], z + w[1], y + words[2])
    return z, y, x, v, w


def _weak(words: tuple[int, ...], a: int, b: int) -> tuple[int, int]:
    a = a + words[0] & _ALL
    b = _rotate(b + a + words[3], 21)
    total = a + words[1] + words[2] & _ALL
    return total + words[3] & _ALL, b + _rotate(total, 44) + a & _ALL


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
    reduced_seeds = np.array([seed % _MOST for seed in seeds], np.uint64)
    counters = np.zeros([len(reduced_seeds), len(groups), 4], np.uint64)
    counters[..., 0], counters[..., 1] = groups & _LOW, groups >> _WORD
    counters[..., 2] = reduced_seeds[:, None]
    keys = np.broadcast_to(np.array([_GRAPH_SEED, 0], np.uint64), (counters[..., 0].size, 2))
    words = philox(counters.reshape(-1, 4), keys).reshape(len(reduced_seeds), -1)
    return words[:, first - 4 * begin :][:, :count].astype(np.int64)
