"""The number of tokens that a network has positions for: the rows of its position tables."""

from typing import Any

import flax.linen as nn
import jax

from t5x_like.nn.embeddings import LearnedPositions


def longest_rows(module: nn.Module) -> dict[str, int]:
    """Return {side: the largest number of tokens in a row}, for the sides `encoder` and `decoder`.

    A side without learned positions (with rotary, relative or sinusoidal positions) is not in the
    result. The network is only traced, on its example batch.
    """
    longest: dict[str, int] = {}

    def note(
        call: Any, arguments: Any, keywords: Any, context: nn.module.InterceptorContext
    ) -> Any:
        table = context.module
        if isinstance(table, LearnedPositions):
            side = module.sides[-1]
            if len(module.sides) > 1 and "encoder" in table.path:
                side = "encoder"
            rows = table.length - table.offset
            longest[side] = min(rows, longest.get(side, rows))
        return call(*arguments, **keywords)

    with nn.intercept_methods(note):
        jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    return longest


def check_room(longest: int | None, *, prompt: int, new: int) -> None:
    """Check that a network has positions for a prompt and its continuation.

    The last new token is not read, so it needs no position.

    Args:
        longest: a value of `longest_rows`; None if there is no limit.
        prompt: tokens of the longest prompt, without padding.
        new: tokens to generate.

    Raises:
        ValueError: it has too few positions.
    """
    if longest is None or prompt + new - 1 <= longest:
        return
    raise ValueError(
        f"max_new_tokens={new} after a prompt of {prompt} tokens needs {prompt + new - 1} "
        f"positions, and the model has {longest} (model.positions): at most "
        f"{max(0, longest - prompt + 1)} new tokens after this prompt, or a shorter prompt"
    )
