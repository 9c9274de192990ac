"""Clean documents inside tf.data: no text can stop a run, and every change is counted.

The rules of documents, in the order in which they are applied (the sides of pairs, which are often
code or tables, keep their white space):

1. Bytes that are not UTF-8 become U+FFFD. If these are more than a tenth of a document's
   characters, it is in another encoding, or not text, and is skipped.
2. Every kind of line break (CR, CRLF, VT, FF, NEL, U+2028, U+2029) becomes LF. The other control
   characters (Unicode's category Cc) and the byte-order mark are removed.
3. A run of blanks and tabs becomes one space, white space at either end of a line is removed, and
   several blank lines become one. A SentencePiece vocabulary reads all white space as a space
   anyway; a byte vocabulary does not.
4. A document with nothing left is skipped.
5. A document longer than `max_characters` is split into pieces of that length; no text is lost.

All rules are native TensorFlow operations on batches of rows; the counters are Python, called once
per batch. The counters (`batches/document_cleaning.py`) count for this process.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t5x_like.batches.document_cleaning import count

# Rows per batch: enough to make a call cheap, few enough for rows of a million characters.
_ROWS = 32
_LINE_BREAK = r"\r\n?|[\x0b\x0c\x{85}\x{2028}\x{2029}]"
_CONTROL = r"[\x00-\x08\x0e-\x1f\x7f-\x{84}\x{86}-\x{9f}\x{feff}]+"
_BLANKS = r"[ \t\x{a0}\x{1680}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}]+"


def clean(
    dataset: tf.data.Dataset, *, max_characters: int = 100_000, tidy: bool = True
) -> tf.data.Dataset:
    """Clean documents; a seqio preprocessor.

    Args:
        dataset: a dataset of {"text": scalar string}; other features are dropped, since a document
            may become several, or be skipped.
        max_characters: the most characters of a document; longer documents are split.
        tidy: whether to apply rules 2 and 3; False for text whose white space matters, as code's.

    Returns:
        A dataset of {"text": scalar string}: valid UTF-8, not empty, of the maximum length or less.

    Raises:
        ValueError: `max_characters` is below 1.
    """
    _check(max_characters)

    def clean_rows(rows):
        text, happened, skip = _tidy(rows) if tidy else _whole(rows)
        pieces = _cut(text, skip=skip, max_characters=max_characters, strip=tidy)
        happened["cut"] = ~skip & (_characters(text) > max_characters)
        _record(happened, documents=tf.size(rows), kept=tf.size(pieces))
        return {"text": pieces}

    rows = dataset.map(lambda example: example["text"]).batch(_ROWS)
    return rows.map(clean_rows, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def clean_pairs(
    dataset: tf.data.Dataset,
    *,
    features: Sequence[str] = ("inputs", "targets"),
    max_characters: int = 100_000,
) -> tf.data.Dataset:
    """Make the sides of text-to-text pairs valid text; a seqio preprocessor.

    Rules 1 and 4 hold, and a pair is skipped if either side is. A side that is too long is
    truncated to `max_characters`, since a pair cannot be cut in two. All else is as in the files,
    also indentation and white space at the ends. An event that happens to both sides of a pair
    counts once.

    Args:
        dataset: examples with a scalar string for each of `features`; others are dropped.
        features: names of the sides.
        max_characters: the most characters of a side.

    Returns:
        A dataset of {feature: scalar string}.

    Raises:
        ValueError: `max_characters` is below 1.
    """
    _check(max_characters)

    def clean_rows(rows):
        texts, events, skips = {}, [], []
        for feature in features:
            text, happened, skip = _whole(rows[feature])
            happened["cut"] = _characters(text) > max_characters
            texts[feature] = tf.strings.substr(text, 0, max_characters, unit="UTF8_CHAR")
            events.append(happened)
            skips.append(skip)
        keep = ~tf.reduce_any(skips, axis=0)
        happened = {name: tf.reduce_any([side[name] for side in events], 0) for name in events[0]}
        _record(happened, documents=tf.size(keep), kept=tf.math.count_nonzero(keep))
        return {name: tf.boolean_mask(text, keep) for name, text in texts.items()}

    sides = dataset.map(lambda example: {feature: example[feature] for feature in features})
    return sides.batch(_ROWS).map(clean_rows, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _check(max_characters: int) -> None:
    if max_characters < 1:
        raise ValueError(f"max_characters={max_characters!r} must be 1 or more.")


def _characters(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(text, unit="UTF8_CHAR")


def _decoded(raw: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Apply rule 1; return the texts and the events of each row, all [N]."""
    valid = tf.strings.unicode_transcode(raw, "UTF-8", "UTF-8", errors="replace")
    others = tf.strings.regex_replace(valid, r"\x{fffd}+", "")
    replaced = tf.strings.length(valid) - tf.strings.length(others)
    # U+FFFD is three bytes long.
    not_text = 10 * (replaced // 3) > _characters(valid)
    return valid, {"invalid_utf8": valid != raw, "not_text": not_text}


def _whole(raw: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
    """Apply rules 1 and 4, see `_tidy`."""
    text, happened = _decoded(raw)
    happened["empty"] = (tf.strings.strip(text) == "") & ~happened["not_text"]
    return text, happened, happened["not_text"] | happened["empty"]


def _tidy(raw: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
    """Apply rules 1 to 4; return the texts, the events of each row, and which to skip, all [N]."""
    replace = tf.strings.regex_replace
    valid, happened = _decoded(raw)
    lines = replace(valid, _LINE_BREAK, "\n")
    printable = replace(lines, _CONTROL, "")
    text = replace(printable, _BLANKS, " ")
    text = tf.strings.strip(replace(replace(text, r" ?\n ?", "\n"), r"\n{3,}", "\n\n"))
    happened["control_characters"] = printable != lines
    happened["empty"] = (text == "") & ~happened["not_text"]
    return text, happened, happened["not_text"] | happened["empty"]


def _cut(text: tf.Tensor, *, skip: tf.Tensor, max_characters: int, strip: bool) -> tf.Tensor:
    """Return the pieces [M] of the rows [N] that are not skipped, in order."""
    characters = tf.where(skip, 0, _characters(text))
    pieces = -(-characters // max_characters)
    starts = tf.ragged.range(pieces).flat_values * max_characters
    lengths = tf.minimum(max_characters, tf.repeat(characters, pieces) - starts)
    cut = tf.strings.substr(tf.repeat(text, pieces), starts, lengths, unit="UTF8_CHAR")
    if strip:  # a cut next to a space leaves it at the end of a piece, or as a piece
        cut = tf.strings.strip(cut)
    return tf.boolean_mask(cut, cut != "")


def _record(happened: dict[str, tf.Tensor], *, documents: tf.Tensor, kept: tf.Tensor) -> None:
    """Count the documents of a batch, those kept, and the true values in each of `happened`."""
    names = ["documents", "kept", *happened]
    totals = [documents, kept, *(tf.math.count_nonzero(rows) for rows in happened.values())]

    def add(values: np.ndarray) -> None:
        for name, value in zip(names, values, strict=True):
            count(name, int(value))

    tf.numpy_function(add, [tf.stack([tf.cast(total, tf.int64) for total in totals])], [])
