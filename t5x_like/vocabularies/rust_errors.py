"""Errors of the library `tokenizers`, which is written in Rust, as `ValueError`s of one line."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def as_value_errors(problem: str) -> Iterator[None]:
    """Raise a ValueError that begins with the problem for every other error of the block.

    A panic in Rust is a `BaseException` of no public class.
    """
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        first, _, rest = str(error).partition("\n")
        if isinstance(error, ValueError) and not rest:
            raise
        kind = "" if type(error) in (Exception, ValueError) or is_panic else type(error).__name__
        raise ValueError(f"{problem}: {kind}{': ' if kind else ''}{first.rstrip('.')}.") from error
