"""Weights and inputs of tiny models that are made again from their names, so no file holds them."""

import re
import zlib
from collections.abc import Mapping

import numpy as np

VOCABULARY = 41
_LENGTHS = {"big_bird": 19}  # shorter rows have no sparse attention


def mask(model_type: str) -> np.ndarray:
    """The mask of two rows, the second padded on the right; for XLNet, which reads ends, left."""
    found = np.ones((2, _LENGTHS.get(model_type, 9)), np.int32)
    found[1, 5:] = 0
    return found[:, ::-1] if model_type == "xlnet" else found


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 tensor of a name: as far from its usual initial value as trained ones are."""
    # RandomState draws the same numbers in every version of NumPy.
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if re.search(r"norm|ln_", name.lower()) and name.endswith("weight"):
        drawn = 1 + 0.3 * noise
    elif len(shape) == 1 or "embed" in name or re.search(r"shared|wte|wpe|logits_bias", name):
        drawn = 0.5 * noise
    else:
        # T5's scores are not divided by a width, XLNet's kernels have their inputs first; sharper
        # attention would amplify rounding errors.
        gain = 0.3 if name.endswith((".q.weight", ".q")) else 1.5
        drawn = gain * noise * shape[-1] ** -0.5
    return drawn.astype(np.float32)


def inputs(config: Mapping[str, object], *, sides: str, base: Mapping[str, object]) -> dict:
    """Two rows, the second padded, as the settings write padding and ends.

    Args:
        config: the settings of a config.json.
        sides: "encoder", "segments" (an encoder with token types), "decoder" or "both".
        base: the settings before one was changed, where `config` has no token of a kind.
    """

    def token(name: str) -> int:
        found = config.get(name)
        return found if type(found) is int else base.get(name) or 0

    random = np.random.RandomState(0)
    attended = mask(str(base["model_type"]))
    tokens, target = random.randint(10, VOCABULARY, (2, *attended.shape))
    if base["model_type"] == "bart":  # whose class is read at the token that ends a text
        for row, size in enumerate(attended.sum(axis=1)):
            tokens[row, size - 1] = token("eos_token_id")
    batch = {
        "input_ids": np.where(attended == 1, tokens, token("pad_token_id")),
        "attention_mask": attended,
    }
    if sides == "segments":
        batch["token_type_ids"] = random.randint(0, 2, tokens.shape) * attended
    if sides == "both":
        batch |= {"decoder_input_ids": target, "decoder_attention_mask": attended}
    return {name: array.astype(np.int32) for name, array in batch.items()}


def sample(outputs: Mapping[str, np.ndarray], *, model_type: str) -> np.ndarray:
    """Some numbers of each output, none of them at padding."""
    attended = mask(model_type)
    found = []
    for name in sorted(outputs):
        array = np.asarray(outputs[name], np.float32)
        if array.shape[:2] == attended.shape:
            array = array[attended == 1]
        flat = array.ravel()
        found.append(flat[:: max(1, len(flat) // 24)])
    return np.concatenate(found)
