"""Check the arguments of a call, named as in Hugging Face, and make batches of them."""

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
        ignored: whether -100 is allowed, as in labels.
        shape: names of the axes.

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
    """Check a mask, and return it as [B, L] int32 of ones and zeros; None is all ones.

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
    """The default attention mask of `generate`: 0 where the token is pad_token_id, else 1.

    It is all ones without such a token, and where it is also an end token, which may belong to the
    text.
    """
    if settings.pad_token_id is None or settings.pad_token_id in settings.ends:
        return np.ones_like(tokens)
    return (tokens != settings.pad_token_id).astype(np.int32)


def shift_right(labels: Tokens, settings: GenerationSettings) -> Tokens:
    """The decoder's inputs that predict the labels: its start token first, -100 as padding."""
    start = np.full((len(labels), 1), settings.decoder_start_token_id, np.int32)
    shifted = np.concatenate([start, labels[:, :-1]], axis=1)
    return np.where(shifted == IGNORED_LABEL, settings.padding, shifted).astype(np.int32)


def shift_left(labels: Tokens) -> Tokens:
    """The targets of a language model: at each position the label of the next one."""
    nothing = np.full((len(labels), 1), IGNORED_LABEL, np.int32)
    return np.concatenate([labels[:, 1:], nothing], axis=1)


def side(name: str, tokens: Tokens, mask: np.ndarray) -> dict[str, Any]:
    """The batch features of one side, `encoder` or `decoder`, with one document per row."""
    return {f"{name}_input_tokens": tokens, f"{name}_segment_ids": mask}


def encoder_side(tokens: Tokens, mask: np.ndarray) -> dict[str, Any]:
    """The batch features of the encoder, whose rows may be padded anywhere."""
    batch = side("encoder", tokens, mask)
    if np.any(mask[..., 1:] > mask[..., :-1]):  # cores may not read a length for each row
        batch["encoder_readers"] = np.ones_like(mask)
    return batch
