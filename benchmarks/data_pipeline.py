"""How fast text becomes batches, what it costs to save the position, and how large that is.

    python benchmarks/data_pipeline.py --vocabulary=vocabulary.model
    python benchmarks/data_pipeline.py --vocabulary=vocabulary.model --shards=8 --pack=1

Tokens are those of the rows, inputs and targets, without padding. A core's rate is tokens by the
seconds of CPU time that all threads took, so it holds on a busy machine too, nearly.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from t5x_like.preprocessing import objectives, sources, vocabularies
from t5x_like.preprocessing.pipeline import Batches


def main() -> None:
    """Prints the figures of a pipeline, one a line."""
    flags = _parse()
    module = sources.load_module(flags.data)
    module.register(vocabularies.load(flags.vocabulary), objectives.build(flags.objective))

    def make() -> Batches:
        return Batches(
            flags.task,
            split="train",
            batch_size=flags.batch_size,
            lengths={"inputs": flags.inputs, "targets": flags.targets},
            pack=bool(flags.pack),
            shards=flags.shards,
            shuffle_buffer=flags.shuffle_buffer,
        )

    batches = make()
    report("first batch", lambda: next(batches))
    report("steady state", lambda: [next(batches) for _ in range(flags.batches)])
    position = report("save the position", batches.state)
    print(f"{'position':18} {sum(map(len, position.values())) / 1e6:.2f} MB")
    resumed = make()
    report("restore it", lambda: (resumed.restore(position), next(resumed))[1])


def report(what, work):
    """Runs some work, prints its time and, if it gives batches, its rate; gives what it gave."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    line = f"{what:18} {wall:7.2f} s, {cpu:7.2f} s of CPU"
    if isinstance(result, list):
        tokens = sum(
            int((batch[name] > 0).sum())
            for batch in result
            for name in ("encoder_input_tokens", "decoder_target_tokens")
        )
        room = sum(
            batch[name].size
            for batch in result
            for name in ("encoder_input_tokens", "decoder_target_tokens")
        )
        line += f", {tokens / wall:,.0f} tokens/s, {tokens / cpu:,.0f} tokens/s a core"
        line += f", rows {tokens / room:.1%} full"
    print(line, flush=True)
    return result


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", required=True)
    for name, default in {
        "data": "data/pydocs.py",
        "task": "pydocs",
        "objective": "span_corruption",
        "inputs": 512,
        "targets": 114,
        "batch_size": 32,
        "batches": 300,
        "pack": 0,
        "shards": 1,
        "shuffle_buffer": 10_000,
    }.items():
        parser.add_argument(f"--{name}", default=default, type=type(default))
    return parser.parse_args()


if __name__ == "__main__":
    main()
