r"""Generates from a checkpoint: a line of text in, a line of JSON out.

    python -m t5x_like.infer --config=configs/t5.py:small --config.workdir=runs/small \
        --input=questions.txt --output=answers.jsonl --config.decode.num_beams=4
    echo "The cat <extra_id_0> on the mat." | python -m t5x_like.infer --config=... --input=-
    python -m t5x_like.infer --config=configs/t5.py:demo --examples=5

Input is a text file or .jsonl (field `inputs`, or `text`), or - for standard input; output lines
have `inputs` and `prediction`. With --examples=N instead, N held-out examples of the config's task
are shown with what the model made of them beside what was there.
"""

import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import ml_collections
import numpy as np
from absl import flags

from t5x_like import config, experiment, hf, inputs
from t5x_like.config import one_line_errors

if TYPE_CHECKING:
    import seqio  # at run time after preprocessing, which silences TensorFlow

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


def infer(settings: ml_collections.ConfigDict) -> None:
    """Generates for each input, in batches."""
    arguments = flags.FLAGS
    with one_line_errors():
        if bool(arguments.input) == bool(arguments.examples):
            raise ValueError("one of --input=FILE (or -) and --examples=N is needed")
        model = experiment.build(settings)
        settings = config.phases(settings)[-1].settings
        data = inputs.build(settings, model.mesh)
        path = arguments.checkpoint or pathlib.Path(settings.workdir) / "checkpoints"
        pretrained = hf.from_pretrained(path)
        texts = None if arguments.examples else _read(arguments.input)
    generator = Generator(pretrained, data, settings)
    if texts is None:
        _show_examples(generator, data, count=arguments.examples)
        return
    with _output(arguments.output) as out:
        for text, prediction in generator.texts(texts):
            out.write(json.dumps({"inputs": text, "prediction": prediction}) + "\n")
            out.flush()


class Generator:
    """Generates from tokens or texts, `data.batch_size` at once, as the config's `decode` says."""

    def __init__(
        self, pretrained: hf.Pretrained, data: inputs.Inputs, settings: ml_collections.ConfigDict
    ):
        self._model, self._vocabulary = pretrained, data.vocabulary
        self._batch_size = settings.data.batch_size
        self._length = settings.data.lengths.inputs
        self._settings = settings.decode.to_dict()

    def tokens(self, rows: Sequence[np.ndarray]) -> list[list[int]]:
        """What is generated for each row of tokens, up to its end; rows may be of any length."""
        # One shape for all batches, so that one compiled program serves them all.
        batch = np.zeros((self._batch_size, self._length), np.int32)
        for number, row in enumerate(rows):
            batch[number, : len(row)] = row
        out = self._model.generate(batch, attention_mask=batch != 0, **self._settings)
        return [_until_eos(row, self._vocabulary) for row in out[: len(rows), 1:]]

    def texts(self, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Each text with what is generated for it; longer ones lose their end."""
        for some in _batched(texts, self._batch_size):
            rows = [
                np.array([*self._vocabulary.encode(text)[: self._length - 1], self._eos])
                for text in some
            ]
            for text, tokens in zip(some, self.tokens(rows), strict=True):
                yield text, self._vocabulary.decode(tokens)

    @property
    def _eos(self) -> int:
        return self._vocabulary.eos_id


def fill(masked: str, spans: str) -> str:
    """A text with its sentinels replaced by what follows each of them in `spans`, in [brackets]."""
    pieces = _SENTINEL.split(spans)
    filled = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return _SENTINEL.sub(lambda match: f" [{filled.get(match[1], '').strip()}] ", masked)


def _show_examples(generator: Generator, data: inputs.Inputs, *, count: int) -> None:
    examples = list(itertools.islice(inputs.rows(data.eval_batches(data.eval_tasks[0])), count))
    masked = [example["encoder_input_tokens"] for example in examples]
    guesses = generator.tokens(masked)
    decode = data.vocabulary.decode
    for example, guess in zip(examples, guesses, strict=True):
        text = decode(_until_eos(example["encoder_input_tokens"], data.vocabulary))
        targets = decode(_until_eos(example["decoder_target_tokens"], data.vocabulary))
        shown = {"inputs": text, "model": decode(guess), "original": targets}
        if _SENTINEL.search(text):
            shown = {"model": fill(text, shown["model"]), "original": fill(text, targets)}
        print()
        for name, value in shown.items():
            print(f"{name:>9}: {' '.join(value.split())}")


def _until_eos(tokens: Iterable[int], vocabulary: "seqio.Vocabulary") -> list[int]:
    ended = itertools.takewhile(lambda t: t not in (0, vocabulary.eos_id), map(int, tokens))
    return list(ended)


def _read(name: str) -> Iterable[str]:
    if name == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    path = pathlib.Path(name)
    lines = path.read_text().splitlines()
    if path.suffix != ".jsonl":
        return lines
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows, start=1):
        if "inputs" not in row and "text" not in row:
            raise ValueError(f"{name}:{number} has neither 'inputs' nor 'text', but {list(row)}")
    return [row.get("inputs", row.get("text")) for row in rows]


def _output(name: str):
    return open(os.dup(1) if name == "-" else name, "w")


def _batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "a checkpoint, or a folder of them")
    flags.DEFINE_string("input", None, "file of texts, or - for standard input")
    flags.DEFINE_string("output", "-", "JSON Lines file to write, or - for standard output")
    flags.DEFINE_integer("examples", 0, "held-out examples to show")
    config.run(infer)
