"""Measure the data pipeline: tokens/s, and the time and size of saving its position.

    python -m benchmarks.data_pipeline --vocabulary=vocabulary.model
    python -m benchmarks.data_pipeline --vocabulary=vocabulary.model --shards=8 --pack=1

Tokens are counted in inputs and targets, without padding. The rate of a core is tokens divided by
the CPU seconds of all threads, so that it nearly holds on a busy machine too. The steady state
should last several epochs (pydocs: 290 batches of 32), since filling the shuffle buffer is work
done before.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches


def main(arguments: Sequence[str]) -> None:
    """Print the figures of a pipeline, one per line."""
    flags = _parse(arguments)
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


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.data_pipeline")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--data", default="data/pydocs.py")
    parser.add_argument("--task", default="pydocs")
    parser.add_argument("--objective", default="span_corruption")
    parser.add_argument("--inputs", type=count, default=512)
    parser.add_argument("--targets", type=count, default=114)
    parser.add_argument("--batch_size", type=count, default=32)
    parser.add_argument("--batches", type=count, default=1500)
    parser.add_argument("--shards", type=count, default=1)
    parser.add_argument("--shuffle_buffer", type=count, default=10_000)
    parser.add_argument("--pack", type=int, default=0, choices=(0, 1))
    return parser.parse_args(arguments)


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
    main(sys.argv[1:])
