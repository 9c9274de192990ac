"""Check the arguments of a call, with Hugging Face's names, and make batches from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from t5x_like.decoding.settings import GenerationSettings

IGNORED_LABEL = -100

Tokens = np.ndarray  # [B, L] int32


def check_tokens(
    name: str,
    tokens: ArrayLike,
    *,
    vocab_size: int,
    ignored: bool = False,
    shape: Sequence[str] = ("rows", "length"),
) -> Tokens:
    """Check token ids, and return them as int32.

    Args:
        name: the argument, for error messages.
        ignored: whether -100 is allowed, as in labels.
        shape: the names of the axes, for their number and error messages.

    Raises:
        ValueError: the tokens are not integers of this shape, or an id is outside the vocabulary.
    """
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise ValueError(f"{name} has rows of unequal lengths: pad them") from error
    if array.ndim != len(shape) or not np.issubdtype(array.dtype, np.integer) or not array.size:
        raise ValueError(
            f"{name} must be integers of shape [{', '.join(shape)}], not {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    bad = (array < 0) | (array >= vocab_size)
    if ignored:
        bad &= array != IGNORED_LABEL
    if bad.any():
        raise ValueError(
            f"{name} contains the id {array[bad][0]}; the vocabulary has 0 to {vocab_size - 1}"
        )
    return array.astype(np.int32)


def check_mask(name: str, mask: ArrayLike | None, tokens: Tokens) -> np.ndarray:
    """Check a mask, and return it as int32 ones and zeros [B, L]; None stands for all ones.

    Raises:
        ValueError: the mask and the tokens have different shapes.
    """
    if mask is None:
        return np.ones_like(tokens)
    array = np.asarray(mask)
    if array.shape != tokens.shape:
        raise ValueError(
            f"{name} has shape {list(array.shape)}; its tokens have {list(tokens.shape)}"
        )
    return (array != 0).astype(np.int32)


def infer_mask(tokens: Tokens, settings: GenerationSettings) -> np.ndarray:
    """Return the default attention mask of `generate`: 0 at each pad_token_id, 1 elsewhere.

    It is all ones if there is no pad_token_id, or if it is also an end token, which may belong to
    the text.
    """
    if settings.pad_token_id is None or settings.pad_token_id in settings.ends:
        return np.ones_like(tokens)
    return (tokens != settings.pad_token_id).astype(np.int32)


def shift_right(labels: Tokens, settings: GenerationSettings) -> Tokens:
    """Return the decoder's inputs: the start token, then the labels; -100 becomes padding."""
    start = np.full((len(labels), 1), settings.decoder_start_token_id, np.int32)
    shifted = np.concatenate([start, labels[:, :-1]], axis=1)
    return np.where(shifted == IGNORED_LABEL, settings.padding, shifted).astype(np.int32)


def shift_left(labels: Tokens) -> Tokens:
    """Return the targets of a language model: at each position the label of the next position."""
    nothing = np.full((len(labels), 1), IGNORED_LABEL, np.int32)
    return np.concatenate([labels[:, 1:], nothing], axis=1)


def side(name: str, tokens: Tokens, mask: np.ndarray) -> dict[str, Any]:
    """Return the batch features of one side, `encoder` or `decoder`, with one document per row."""
    return {f"{name}_input_tokens": tokens, f"{name}_segment_ids": mask}


def encoder_side(tokens: Tokens, mask: np.ndarray) -> dict[str, Any]:
    """Return the batch features of the encoder, whose rows may be padded anywhere."""
    batch = side("encoder", tokens, mask)
    # With padding before text, attention must not reduce the mask to a length for each row.
    if np.any(mask[..., 1:] > mask[..., :-1]):
        batch["encoder_readers"] = np.ones_like(mask)
    return batch
