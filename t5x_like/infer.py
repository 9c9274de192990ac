r"""Run a checkpoint on texts: a line of text in, a line of JSON out.

    python -m t5x_like.infer --config=configs/t5.py:small --config.workdir=runs/small \
        --input=questions.txt --output=answers.jsonl --config.decode.num_beams=4
    echo "The cat <extra_id_0> on the mat." | python -m t5x_like.infer --config=... --input=-
    python -m t5x_like.infer --config=configs/t5.py:demo --examples=5
    python -m t5x_like.infer --config=configs/run.py:runs/gpt2_demo --interactive
    python -m t5x_like.infer --config=configs/pretrained.py --config.initialize=FOLDER --input=-

Input is a text file or .jsonl (field `inputs`, or `text`), or - for standard input; output lines
have `inputs` and `prediction`, and with --log_probs the generated `tokens` and the natural log p of
each. A language model continues its input, and reads as many of its last tokens as
`decode.max_new_tokens` leaves room for; how many were cut, and by how much, is a line at the end on
standard error. With --stream the answers appear on the terminal token by
token, and not as JSON. --interactive reads prompts from the terminal, and shows the five likeliest
next tokens under each text (interactive.py); a model whose data has a chat template
(`data.settings.template`, data/preference_files.py) keeps a conversation there. Both are greedy, or
sample with `decode.do_sample`, where the config asks for beam search. With settings in `dialog`
--interactive talks with a dialog model, which ranks candidates (configs/lamda_dialogs.py).

With --examples=N instead, N held-out examples of the config's task are shown with what the model
predicts beside the original: the spans of a text with blanks, each right or wrong, or of a language
model's rows the second half. The share of spans filled exactly is that of at least 64 examples.

In a run of several tasks --task=NAME chooses the task, with its head, its data and its `decode`.

An encoder predicts what its head is for (predictions.py): the tokens [MASK] of a text, a class, a
number, a tag for each word or an answer. Its .jsonl has the fields of data/labelled_files.py
without the label; a line of text is `text_a`, or the `words` of a tagger.

    echo "The [MASK] sat on the mat." | python -m t5x_like.infer --config=configs/run.py:runs/bert \
        --input=-
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment import allocator, command_line

    allocator.use()
    CONFIG = command_line.read(
        __doc__,
        checkpoint=(None, "a checkpoint, or a folder of them; best: the run's best one"),
        average=(1, "newest checkpoints to average"),
        task=(None, "the task, in a run of several"),
        input=(None, "file of texts, or - for standard input"),
        output=("-", "JSON Lines file to write, or - for standard output"),
        examples=(0, "held-out examples to show"),
        interactive=(False, "read prompts from the terminal"),
        stream=(False, "show answers token by token"),
        log_probs=(False, "add the generated tokens and their log p"),
    )
    command_line.keep_compiled_programs(CONFIG)

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import ml_collections
import numpy as np
from absl import flags

from t5x_like import config, reading
from t5x_like.config import one_line_errors
from t5x_like.experiment import (
    command_line,
    completion,
    data_side,
    fingerprints,
    model_side,
    text_data,
)
from t5x_like.experiment.tasks import choose_task
from t5x_like.experiment.text_data import TextData
from t5x_like.inference import example_display, interactive, predictions, text_model
from t5x_like.inference.dialog import dialog_settings, terminal
from t5x_like.inference.dialog.dialog_model import DialogModel
from t5x_like.inference.predictor import Predictor
from t5x_like.inference.text_model import TextModel
from t5x_like.names import hint
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.pretrained.weight_source import open_source
from t5x_like.vocabularies.chat import find_template

T = TypeVar("T")

Line = str | Mapping[str, Any]  # a text, or the fields of a .jsonl

# The least number of examples over which the share of spans filled exactly is counted.
_COUNTED = 64

_ENDINGS = reading.with_endings((".txt", ".jsonl"))

# Settings of beam search, which has no text to show before its end.
_OF_BEAMS = (
    *("num_beams", "num_return_sequences"),
    *("length_penalty", "length_penalty_kind", "early_stopping"),
)


def infer(settings: ml_collections.ConfigDict) -> None:
    """Generate or predict for each input, in batches."""
    arguments = flags.FLAGS
    with one_line_errors():
        _check_flags()
        settings = completion.complete(settings)
        path = completion.model_folder(settings, checkpoint=arguments.checkpoint)
        dialog_settings.read(settings.dialog.to_dict())  # a mistake there is one before work
        task = choose_task(config.phases(settings)[-1].settings, name=arguments.task)
        settings = task.settings
        text = text_data.build(settings)
        before = open_source(path).run.get("fingerprints", {})
        fingerprints.check_vocabulary(
            before, text.vocabulary.digest, vocabulary=settings.data.vocabulary
        )
        pretrained = from_pretrained(path, average=arguments.average).for_task(task.name)
        predicted = predictions.name_of(pretrained)
        if predicted == predictions.TEXT:
            _generate(pretrained, settings, text)
            return
        for name in ("interactive", "stream", "log_probs"):
            if getattr(arguments, name):
                raise ValueError(
                    f"--{name} needs a model that generates text; this one predicts {predicted}"
                )
        _predict(pretrained, settings, text)


def _check_flags() -> None:
    """Check the flags beside the config.

    Raises:
        ValueError: they contradict each other, or a file cannot be read or written.
    """
    given = flags.FLAGS
    if sum(map(bool, (given.input, given.examples, given.interactive))) != 1:
        raise ValueError("one of --input=FILE (or -), --examples=N, --interactive is needed")
    if given.examples < 0:
        raise ValueError(f"--examples={given.examples} must be 1 or more")
    for name in ("interactive", "examples", "stream"):
        if given.log_probs and getattr(given, name):
            raise ValueError(f"--log_probs is for lines of JSON, --{name} shows texts: omit one")
    if given.stream and given.examples:
        raise ValueError("--stream shows the answers to --input, and --examples its own: omit one")
    reads_terminal = given.interactive or given.input == "-"
    if reads_terminal and (sys.stdin is None or sys.stdin.closed):
        raise ValueError("standard input is closed: give texts with --input=FILE")
    if given.output and given.output != "-":
        command_line.check_file("--output", given.output)
        paths = {pathlib.Path(one).resolve() for one in (given.input or "-", given.output)}
        if len(paths) == 1:
            raise ValueError(f"--output={given.output!r} is also the --input: give another file")


def _predict(pretrained: Pretrained, settings: ml_collections.ConfigDict, text: TextData) -> None:
    arguments = flags.FLAGS
    predictor = predictions.build(pretrained, settings, text)
    if arguments.examples:
        _show_predictions(predictor, _inputs(settings, text), count=arguments.examples)
        return
    lines = _read(arguments.input, with_objects=True)
    _write(_predictions(predictor, lines, size=settings.data.batch_size), arguments.output)


def _generate(pretrained: Pretrained, settings: ml_collections.ConfigDict, text: TextData) -> None:
    arguments = flags.FLAGS
    if arguments.interactive or arguments.stream:
        settings = without_beams(settings)
    model = text_model.build(pretrained, settings, text)
    if arguments.interactive:
        _converse(model, settings)
    elif arguments.examples:
        _show_examples(model, _inputs(settings, text), count=arguments.examples)
    elif arguments.stream:
        with contextlib.suppress(KeyboardInterrupt):  # what was typed stays
            for prompt in _counted(model, map(str, _read(arguments.input, with_objects=False))):
                interactive.type_out(model, prompt, out=sys.stdout)
    else:
        texts = _counted(model, map(str, _read(arguments.input, with_objects=False)))
        size = settings.data.batch_size
        _write(_answers(model, texts, size=size, log_probs=arguments.log_probs), arguments.output)


def _converse(model: TextModel, settings: ml_collections.ConfigDict) -> None:
    ends: dict[str, Any] = {"lines": sys.stdin, "out": sys.stdout}
    if settings.dialog:
        of_dialog = dialog_settings.read(settings.dialog.to_dict())
        terminal.talk(DialogModel(model, of_dialog), **ends)
    elif template := settings.data.settings.to_dict().get("template"):
        interactive.chat(model, find_template(template), **ends)
    else:
        interactive.converse(model, **ends)


def without_beams(settings: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """The config without beam search, unless the command line asks for it: then it is an error."""
    if any(word.startswith("--config.decode.num_beams=") for word in sys.argv):
        return settings
    settings = settings.copy_and_resolve_references()
    with settings.unlocked():
        for name in _OF_BEAMS:
            if name in settings.decode:
                del settings.decode[name]
    return settings


def _answers(
    model: TextModel, texts: Iterable[str], *, size: int, log_probs: bool
) -> Iterator[dict[str, Any]]:
    for some in _batched(texts, size):
        prompts = [model.prompt(text) for text in some]
        written = model.generate_tokens(prompts)
        scores = model.score_written(prompts, written) if log_probs else []
        for number, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
            answer: dict[str, Any] = {
                "inputs": some[number],
                "prediction": model.text(tokens, prompt=prompt),
            }
            if log_probs:
                answer["tokens"] = [model.piece(token) for token in tokens]
                answer["log_probs"] = scores[number].log_probs.tolist()
            yield answer


def _counted(model: TextModel, texts: Iterable[str]) -> Iterator[str]:
    """Pass texts on, and write a line at their end if some were too long as prompts."""
    lost = []
    for text in texts:
        lost.append(model.cut(model.prompt(text)))
        yield text
    if cut := [size for size in lost if size]:
        end = "end" if model.encodes else "beginning"
        setting = "data.lengths.inputs" if model.encodes else "data.lengths, decode.max_new_tokens"
        sys.stderr.write(
            f"{len(cut):,} of {len(lost):,} prompts were cut to {model.room:,} tokens ({setting}), "
            f"and lost their {end}: {sum(cut) / len(cut):,.1f} tokens on average, at most "
            f"{max(cut):,}\n"
        )


def _inputs(settings: ml_collections.ConfigDict, text: TextData) -> data_side.Inputs:
    return data_side.build(settings, model_side.build(settings).mesh, text=text)


def _write(answers: Iterable[Mapping[str, Any]], name: str) -> None:
    shown, file = ("standard output", os.dup(1)) if name == "-" else (name, name)
    with command_line.writing(shown), open(file, "w") as out:
        for answer in answers:
            out.write(json.dumps(answer) + "\n")
            out.flush()


def _show_examples(model: TextModel, data: data_side.Inputs, *, count: int) -> None:
    """Show examples; of spans also how many are filled exactly, over enough examples to compare."""
    rows = data_side.rows(data.eval_batches(data.eval_tasks[0]))
    pairs = [_prompt_of(row, model) for row in itertools.islice(rows, max(count, _COUNTED))]
    texts = [model.vocabulary.decode(model.until_end(prompt)) for prompt, _ in pairs]
    if not any(map(example_display.SENTINEL.search, texts)):
        pairs, texts = pairs[:count], texts[:count]
    width = shutil.get_terminal_size().columns
    spans: list[example_display.Span] = []
    answers = model.generate_tokens([prompt for prompt, _ in pairs])
    for number, (text, (prompt, original), new) in enumerate(
        zip(texts, pairs, answers, strict=True)
    ):
        shown = {"inputs": text, "model": model.text(new, prompt=prompt)}
        shown["original"] = model.text(original, prompt=prompt)
        own = example_display.spans(text, shown["model"], shown["original"])
        spans += own
        if number < count:
            print()
            if own:
                print(example_display.describe_spans(text, own, width=width))
            else:
                print(example_display.describe_fields(shown, width=width))
    if spans:
        print(f"\n{example_display.describe_share(spans, examples=len(pairs))}")


def _prompt_of(example: Mapping[str, np.ndarray], model: TextModel) -> tuple[list[int], list[int]]:
    """The prompt of an example, and the tokens after it there."""
    written = example["decoder_loss_weights"] > 0
    targets = example["decoder_target_tokens"]
    if model.encodes:
        read = example["encoder_input_tokens"]
        if "encoder_segment_ids" in example:  # the first text of a packed row
            read = read[example["encoder_segment_ids"] == 1]
        prompt = read[: np.max(np.flatnonzero(read), initial=-1) + 1]
    elif "decoder_causal_attention" in example:
        prompt = targets[~written & (example["decoder_segment_ids"] > 0)]
    else:
        written = written & (np.cumsum(written) > np.sum(written) // 2)
        # A row has several documents: the one in which its first half ends.
        prompt = targets[: np.argmax(written)]
        ends = [n + 1 for n, token in enumerate(prompt) if model.is_end(int(token))]
        prompt = prompt[max(ends, default=0) :]
    return [int(one) for one in prompt], model.until_end(targets[written])


def _predictions(
    predictor: Predictor, lines: Iterable[Line], *, size: int
) -> Iterator[dict[str, Any]]:
    for some in _batched(lines, size):
        items = [{"text_a": line} if isinstance(line, str) else line for line in some]
        for line, predicted in zip(some, predictor(items), strict=True):
            yield {"inputs": line, **predicted}


def _show_predictions(predictor: Predictor, data: data_side.Inputs, *, count: int) -> None:
    prediction, task = predictor.prediction, data.eval_tasks[0]
    rows: Iterable[Mapping[str, Any]] = data.held_out_rows(task)
    if prediction.from_batches:
        rows = data_side.rows(data.eval_batches(task))
    pairs = (prediction.example(row) for row in rows if prediction.can_predict(row))
    shown = list(itertools.islice(pairs, count))
    width = shutil.get_terminal_size().columns
    predicted = predictor([item for item, _ in shown])
    for (item, original), one in zip(shown, predicted, strict=True):
        fields = {**item, "model": one["prediction"], "original": original}
        print(f"\n{example_display.describe_fields(fields, width=width)}")


def _read(name: str, *, with_objects: bool) -> Iterable[Line]:
    """The lines of a file, or of standard input for "-".

    Args:
        with_objects: JSON objects stay whole, where else only their text is read.
    """
    if name == "-":
        where = "a line of standard input"
        stream = reading.lines_of(sys.stdin.buffer, "standard input")
        return (
            _object(line, where=where) if with_objects and line.startswith("{") else line
            for line in stream
        )
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        beside = [str(one) for one in path.parent.glob("*") if one.name.endswith(_ENDINGS)]
        raise ValueError(f"--input={str(path)!r} is not a file.{hint(str(path), beside)}")
    if not reading.uncompressed(path).endswith(".jsonl"):
        return _some(name, list(reading.lines(path)))
    rows = _some(name, list(reading.json_lines(path)))
    return [row if with_objects else _prompt(row, where=where) for where, row in rows]


def _some(name: str, lines: list[T]) -> list[T]:
    if not lines:
        raise ValueError(f"--input={name!r} is empty: give a file with a text on each line")
    return lines


def _prompt(row: Mapping[str, Any], *, where: str) -> str:
    """The text of a row of `--input`."""
    field = "inputs" if "inputs" in row else "text"
    if field not in row:
        raise ValueError(f"{where} has neither 'inputs' nor 'text', but {list(row)}")
    try:
        return reading.field_text(row, field)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _object(line: str, *, where: str) -> dict[str, Any]:
    try:
        return reading.json_object(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


if __name__ == "__main__":
    infer(CONFIG)
