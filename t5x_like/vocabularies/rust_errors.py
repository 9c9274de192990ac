"""Convert errors of the Rust library `tokenizers` to one-line `ValueError`s."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def as_value_errors(problem: str) -> Iterator[None]:
    """Re-raise errors in the block as one-line `ValueError`s that begin with `problem`.

    A ValueError of one line is raised unchanged. A panic in Rust is a `BaseException` whose class
    is not public.
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
