"""Check a tokenizer.json for damage that the library `tokenizers` does not report.

Rather than raising an error, the library panics or ends the whole process.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any


def check(content: Mapping[str, Any]) -> None:
    """Check the content of a tokenizer.json.

    Raises:
        ValueError: it is damaged.
    """
    for part in _parts(content):
        if part.get("type") == "Precompiled":
            _check_charsmap(part.get("precompiled_charsmap"))
        if part.get("type") == "TemplateProcessing":
            _check_template(part)
    model = content.get("model")
    if not isinstance(model, Mapping) or "vocab" not in model:
        raise ValueError(
            "tokenizer.json is not a tokenizer of the library `tokenizers`: it has no model with a "
            "vocab."
        )
    _check_prefix(model)
    tokens = content.get("added_tokens", [])
    if not isinstance(tokens, list):
        raise ValueError(f"tokenizer.json has added_tokens={tokens!r:.80}; allowed: a list.")
    for token in tokens:
        is_whole = isinstance(token, Mapping) and isinstance(token.get("content"), str)
        if not is_whole or type(token.get("id")) is not int or token["id"] < 0:
            raise ValueError(
                f"tokenizer.json has the added token {token!r:.80}; allowed: an object with "
                "`content`, a text, and `id`, an integer from 0."
            )


def _parts(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the normalizers and post-processors, including nested parts."""
    queue = [content.get("normalizer"), content.get("post_processor")]
    while queue:
        part = queue.pop()
        if isinstance(part, Mapping):
            yield part
            for name in ("normalizers", "processors"):
                within = part.get(name)
                queue += within if isinstance(within, list) else []


def _check_charsmap(charsmap: Any) -> None:
    try:
        content = base64.b64decode(charsmap, validate=True)
    except (TypeError, ValueError, binascii.Error):
        content = b""
    if not isinstance(charsmap, str) or len(content) < 4:
        raise ValueError(
            f"tokenizer.json has precompiled_charsmap={charsmap!r:.60}; allowed: bytes in base64."
        )


def _check_template(part: Mapping[str, Any]) -> None:
    known = part.get("special_tokens")
    for name in ("single", "pair"):
        for item in part.get(name) or ():
            token = item.get("SpecialToken") if isinstance(item, Mapping) else None
            text = token.get("id") if isinstance(token, Mapping) else None
            if text is not None and (not isinstance(known, Mapping) or text not in known):
                raise ValueError(
                    f"tokenizer.json has {text!r} in its post_processor, and no such token in the "
                    "special_tokens of the post_processor."
                )


def _check_prefix(model: Mapping[str, Any]) -> None:
    """Check that the second piece of each merge begins with the prefix, which merging removes."""
    prefix = model.get("continuing_subword_prefix")
    merges = model.get("merges")
    if not prefix or not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        second = pair[-1] if isinstance(pair, list) and pair else None
        if not isinstance(second, str) or not second.startswith(prefix):
            raise ValueError(
                f"tokenizer.json has continuing_subword_prefix={prefix!r}, and the merge "
                f"{merge!r:.60} without it."
            )
