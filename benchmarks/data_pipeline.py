"""Measure the data pipeline: tokens/s, and the time and size of saving its position.

    python -m benchmarks.data_pipeline --vocabulary=vocabulary.model
    python -m benchmarks.data_pipeline --vocabulary=vocabulary.model --shards=8 --pack=1

Tokens are counted in inputs and targets, without padding. The rate of a core is tokens divided by
the CPU seconds of all threads, so that it nearly holds on a busy machine too. The steady state
should last several epochs (pydocs: 290 batches of 32), since filling the shuffle buffer is work
done before.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser, count

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.data_pipeline")
    PARSER.add_argument("--vocabulary", required=True)
    for NAME, DEFAULT in {
        "data": "data/pydocs.py",
        "task": "pydocs",
        "objective": "span_corruption",
        "inputs": 512,
        "targets": 114,
        "batch_size": 32,
        "batches": 1500,
        "shards": 1,
        "shuffle_buffer": 10_000,
    }.items():
        KIND = str if isinstance(DEFAULT, str) else count
        PARSER.add_argument(f"--{NAME}", default=DEFAULT, type=KIND)
    PARSER.add_argument("--pack", default=0, type=int, choices=(0, 1))
    ARGUMENTS = PARSER.parse_args()

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.config import one_line_errors
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches


def main(flags: argparse.Namespace) -> None:
    """Print the figures of a pipeline, one per line."""
    with one_line_errors():
        module = sources.load_module(flags.data)
        sources.check_settings(module.register, {})
        module.register(
            vocabularies.load(flags.vocabulary), seqio_objectives.build(flags.objective)
        )

    def make() -> SeqioBatches:
        return SeqioBatches(
            flags.task,
            split="train",
            batch_size=flags.batch_size,
            lengths={"inputs": flags.inputs, "targets": flags.targets},
            pack=bool(flags.pack),
            shards=flags.shards,
            shuffle_buffer=flags.shuffle_buffer,
        )

    with one_line_errors():
        batches = make()
    report("first batch", lambda: tokens_in(next(batches)))
    report("steady state", lambda: sum(tokens_in(next(batches)) for _ in range(flags.batches)))
    position = report("save the position", batches.state)
    print(f"{'position':18} {sum(map(len, position.values())) / 1e6:.2f} MB")
    resumed = make()
    report("restore it", lambda: (resumed.restore(position), next(resumed)))


def tokens_in(batch: dict[str, np.ndarray]) -> int:
    """Return the number of tokens in inputs and targets that are not padding."""
    return sum(
        int(np.count_nonzero(batch[name]))
        for name in ("encoder_input_tokens", "decoder_target_tokens")
    )


def report(what: str, work: Callable[[], Any]) -> Any:
    """Print the time of some work and, if it returns a number of tokens, its rate."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    line = f"{what:18} {wall:7.2f} s, {cpu:7.2f} s of CPU"
    if isinstance(result, int):
        line += f", {result / wall:,.0f} tokens/s, {result / cpu:,.0f} tokens/s a core"
    print(line, flush=True)
    return result


if __name__ == "__main__":
    main(ARGUMENTS)
