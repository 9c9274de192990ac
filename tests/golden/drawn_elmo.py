"""A tiny ELMo in the layout of the released files, and texts for it."""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("elmo.npz")
FILTERS = ((1, 4), (2, 5), (3, 6))
HIGHWAYS, LAYERS, CELL, WIDTH, CHARACTERS = 2, 2, 7, 6, 50
CLIPS = (0.4, 0.15)  # of cells and of outputs: low, so that many numbers are clipped
LENGTHS = (8, 5)


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the authors' file, by their names there."""
    filters = sum(number for _, number in FILTERS)
    found = {"char_embed": (261, 16), "CNN_proj/W_proj": (filters, WIDTH)}
    found["CNN_proj/b_proj"] = (WIDTH,)
    for n, (width, number) in enumerate(FILTERS):
        found[f"CNN/W_cnn_{n}"] = (1, width, 16, number)
        found[f"CNN/b_cnn_{n}"] = (number,)
    for n in range(HIGHWAYS):
        for part in ("carry", "transform"):
            found[f"CNN_high_{n}/W_{part}"] = (filters, filters)
            found[f"CNN_high_{n}/b_{part}"] = (filters,)
    for direction in range(2):
        for layer in range(LAYERS):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found[f"{cell}/W_0"] = (2 * WIDTH, 4 * CELL)
            found[f"{cell}/B"] = (4 * CELL,)
            found[f"{cell}/W_P_0"] = (CELL, WIDTH)
    return found


def texts() -> list[np.ndarray]:
    """Characters [L, 50] of two texts, in the numbers of the file: 258 word 259 260 260 ..."""
    random = np.random.RandomState(0)
    found = []
    for length in LENGTHS:
        words = np.full([length, CHARACTERS], 260, np.int32)
        for word in words:
            size = random.randint(1, 12)
            word[: size + 2] = [258, *random.randint(0, 256, size), 259]
        words[0, 1:3], words[-1, 1:3] = (256, 259), (257, 259)
        words[[0, -1], 3:] = 260
        found.append(words)
    return found
