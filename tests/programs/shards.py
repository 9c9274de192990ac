"""Parts of the test files, of which a run takes one: `pytest --shard=3/8`."""

import pathlib
import re
import zlib


def parse(text: str) -> tuple[int, int]:
    """The part of `3/8`, counted from 1, and how many parts there are.

    Raises:
        ValueError: it has another form, or there is no such part.
    """
    if not (found := re.fullmatch(r"(\d+)/(\d+)", text)) or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--shard={text!r}: a part and the number of parts, such as 3/8")
    return int(found[1]), int(found[2])


def has(shard: tuple[int, int], path: pathlib.Path) -> bool:
    """Whether a file is in the part: by its name, so that another file more changes nothing."""
    part, parts = shard
    return zlib.crc32("/".join(path.parts[-2:]).encode()) % parts == part - 1
