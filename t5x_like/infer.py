r"""Says what a checkpoint makes of texts: a line of text in, a line of JSON out.

    python -m t5x_like.infer --config=configs/t5.py:small --config.workdir=runs/small \
        --input=questions.txt --output=answers.jsonl --config.decode.num_beams=4
    echo "The cat <extra_id_0> on the mat." | python -m t5x_like.infer --config=... --input=-
    python -m t5x_like.infer --config=configs/t5.py:demo --examples=5

Input is a text file or .jsonl (field `inputs`, or `text`), or - for standard input; output lines
have `inputs` and `prediction`. With --examples=N instead, N held-out examples of the config's task
are shown with what the model made of them beside what was there.

An encoder says what its head is for (predictions.py): it fills in the marks [MASK] of a text, or
tells a class, a number, a tag for each word or an answer. Its .jsonl has the fields of
data/labelled_files.py without the label; a line of text is `text_a`, or the `words` of a tagger.

    echo "The [MASK] sat on the mat." | python -m t5x_like.infer --config=configs/run.py:runs/bert \
        --input=-
"""

import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import ml_collections
import numpy as np
from absl import flags

from t5x_like import config, experiment, fine_tuning, hf, initialization, inputs, predictions
from t5x_like.config import one_line_errors
from t5x_like.models.encoder import Encoder
from t5x_like.predictions import Predictor
from t5x_like.preprocessing import vocabularies

if TYPE_CHECKING:
    import seqio  # at run time after preprocessing, which silences TensorFlow

T = TypeVar("T")

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


Line = str | Mapping[str, Any]  # a text, or the fields of a .jsonl


def infer(settings: ml_collections.ConfigDict) -> None:
    """Generates or predicts for each input, in batches."""
    arguments = flags.FLAGS
    with one_line_errors():
        if bool(arguments.input) == bool(arguments.examples):
            raise ValueError("one of --input=FILE (or -) and --examples=N is needed")
        settings = initialization.complete(settings)
        settings = config.phases(settings)[-1].settings
        path = arguments.checkpoint or pathlib.Path(settings.workdir) / "checkpoints"
        pretrained = hf.from_pretrained(path)
        if isinstance(pretrained.module, Encoder):
            _predict(pretrained, settings)
        else:
            _generate(pretrained, settings)


def _predict(pretrained: hf.Pretrained, settings: ml_collections.ConfigDict) -> None:
    arguments = flags.FLAGS
    predictor = _predictor(pretrained, settings)
    if arguments.examples:
        _show_predictions(predictor, _inputs(settings), count=arguments.examples)
        return
    lines = _read(arguments.input, with_objects=True)
    _write(_predictions(predictor, lines, size=settings.data.batch_size), arguments.output)


def _generate(pretrained: hf.Pretrained, settings: ml_collections.ConfigDict) -> None:
    arguments = flags.FLAGS
    data = _inputs(settings)
    generator = Generator(pretrained, data, settings)
    if arguments.examples:
        _show_examples(generator, data, count=arguments.examples)
        return
    texts = map(str, _read(arguments.input, with_objects=False))
    said = generator.texts(texts)
    _write(({"inputs": text, "prediction": answer} for text, answer in said), arguments.output)


def _inputs(settings: ml_collections.ConfigDict) -> inputs.Inputs:
    return inputs.build(settings, experiment.build(settings).mesh)


def _write(answers: Iterable[Mapping[str, Any]], name: str) -> None:
    with open(os.dup(1) if name == "-" else name, "w") as out:
        for answer in answers:
            out.write(json.dumps(answer) + "\n")
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


def _predictor(pretrained: hf.Pretrained, settings: ml_collections.ConfigDict) -> Predictor:
    name, length = pretrained.config["head"], settings.data.lengths.inputs
    own = settings.data.objective_settings if name == "question_answering" else {}
    head = predictions.make_head(
        name,
        vocabulary=vocabularies.load(settings.data.vocabulary),
        labels=initialization.label_names(settings) if name in fine_tuning.LOSSES else (),
        length=length,
        settings={**own, **settings.predict},
    )
    return Predictor(
        pretrained.module,
        pretrained.params,
        head,
        length=length,
        batch_size=settings.data.batch_size,
    )


def _predictions(
    predictor: Predictor, lines: Iterable[Line], *, size: int
) -> Iterator[dict[str, Any]]:
    for some in _batched(lines, size):
        items = [{"text_a": line} if isinstance(line, str) else line for line in some]
        for line, said in zip(some, predictor(items), strict=True):
            yield {"inputs": line, **said}


def _show_predictions(predictor: Predictor, data: inputs.Inputs, *, count: int) -> None:
    task = data.eval_tasks[0]
    examples: Iterable[tuple[Mapping[str, Any], Any]]
    if data.config.model.head in fine_tuning.LOSSES:
        examples = map(_labelled, data.held_out_rows(task))
    else:
        rows = inputs.rows(data.eval_batches(task))
        mask = data.vocabulary.mask_id
        examples = (_masked(row, data) for row in rows if mask in row["encoder_input_tokens"])
    shown = list(itertools.islice(examples, count))
    said = predictor([item for item, _ in shown])
    for (item, original), answer in zip(shown, said, strict=True):
        print()
        for name, value in {**item, "model": answer["prediction"], "original": original}.items():
            print(f"{name:>9}: {value}")


def _labelled(row: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """What is asked of a row of labelled text, and what it is labelled."""
    asked = ("text_a", "text_b", "words", "question", "context")
    values = {name: _plain(value) for name, value in row.items()}
    label = next(values[name] for name in ("label", "value", "tags", "answers") if name in values)
    return {name: values[name] for name in asked if name in values}, label


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(one) for one in value] if np.ndim(value) else np.asarray(value).item()


def _masked(row: Mapping[str, np.ndarray], data: inputs.Inputs) -> tuple[dict[str, str], str]:
    """A row of a masked language model as one text or two, and the text without noise."""
    decode = data.vocabulary.decode
    size = int(np.sum(row["encoder_segment_ids"] > 0))
    types = row.get("encoder_token_types", np.zeros(size, np.int32))[:size]
    tokens = row["encoder_input_tokens"][:size]
    parts = [tokens[types == number][1 - number : -1] for number in (0, 1)]
    names = ("text_a", "text_b") if np.any(types) else ("text_a",)
    item = {name: decode(part) for name, part in zip(names, parts, strict=False)}
    return item, decode(row["encoder_target_tokens"][1 : size - 1])


def _until_eos(tokens: Iterable[int], vocabulary: "seqio.Vocabulary") -> list[int]:
    ended = itertools.takewhile(lambda t: t not in (0, vocabulary.eos_id), map(int, tokens))
    return list(ended)


def _read(name: str, *, with_objects: bool) -> Iterable[Line]:
    """The lines of a file, or of standard input for "-".

    Args:
        with_objects: a JSON object is one, and not only its text.
    """
    if name == "-":
        stream = (line.rstrip("\n") for line in sys.stdin)
        where = "a line of standard input"
        return (
            _object(line, where=where) if with_objects and line.startswith("{") else line
            for line in stream
        )
    path = pathlib.Path(name)
    lines = path.read_text().splitlines()
    if path.suffix != ".jsonl":
        return lines
    rows = [_object(line, where=f"{name}:{n}") for n, line in enumerate(lines, start=1)]
    if with_objects:
        return rows
    for number, row in enumerate(rows, start=1):
        if "inputs" not in row and "text" not in row:
            raise ValueError(f"{name}:{number} has neither 'inputs' nor 'text', but {list(row)}")
    return [row["inputs"] if "inputs" in row else row["text"] for row in rows]


def _object(line: str, *, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where} is no JSON object")
    return found


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "a checkpoint, or a folder of them")
    flags.DEFINE_string("input", None, "file of texts, or - for standard input")
    flags.DEFINE_string("output", "-", "JSON Lines file to write, or - for standard output")
    flags.DEFINE_integer("examples", 0, "held-out examples to show")
    config.run(infer)
