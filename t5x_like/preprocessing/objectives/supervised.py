"""Supervised pairs: text in, text out (T5, section 2.4)."""

import seqio

from t5x_like.preprocessing.objectives.objective import Objective


def text_to_text() -> Objective:
    """{"inputs": string, "targets": string} -> their tokens, trimmed to fit and closed by EOS.

    For fine-tuning and for supervised tasks in a mixture. Other features pass through, and the
    strings stay as "inputs_pretokenized" and "targets_pretokenized", for metrics.
    """
    return Objective(
        name="text_to_text",
        preprocessors=(seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim),
        features=("inputs", "targets"),
        converters=("encoder_decoder", "prefix_lm"),
    )
