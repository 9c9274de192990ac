r"""Run a checkpoint on texts: a line of text in, a line of JSON out.

    python -m t5x_like.infer --config=configs/t5.py:small --config.workdir=runs/small \
        --input=questions.txt --output=answers.jsonl --config.decode.num_beams=4
    echo "The cat <extra_id_0> on the mat." | python -m t5x_like.infer --config=... --input=-
    python -m t5x_like.infer --config=configs/t5.py:demo --examples=5
    python -m t5x_like.infer --config=configs/run.py:runs/gpt2_demo --interactive
    python -m t5x_like.infer --config=configs/pretrained.py --config.initialize=FOLDER --input=-

Input is a text file, a .jsonl, .tsv, .csv or .parquet file (field `inputs` or `text`, or the column
that `data.settings` names for it, or a conversation in `messages`, which the chat template
`data.settings.template` writes), or - for standard input. Output lines have `inputs`, the other
fields of a row, and `prediction`; with --log_probs also the generated `tokens` and the natural log
probability of each. A language model continues its input. The input is truncated on the left to
leave room for `decode.max_new_tokens`, by default what the folder allows, or 100; a line on
standard error at the end reports how many inputs were truncated, and by how much. --stream prints
the answers on the terminal token by token, instead of JSON. --interactive reads prompts from the
terminal, and shows the five most likely next tokens under each text (interactive.py); a model whose
data has a chat template (`data.settings.template`, data/preference_files.py) holds a conversation
instead. Both decode greedily even if the config asks for beam search, or sample with
`decode.do_sample`. With settings in `dialog`, --interactive talks with a dialog model, which ranks
candidate responses (configs/lamda_dialogs.py). --best_of=N, for a policy that was trained with
rewards, samples N responses and writes the best.

--examples=N instead shows N held-out examples of the config's task, with the model's prediction
beside the original: the spans of a text with blanks, each marked right or wrong, or the second half
of a language model's rows. The share of spans filled exactly is computed over at least 64 examples.

In a run with several tasks --task=NAME chooses the task, with its head, data and `decode` settings.

An encoder predicts what its head was trained for (predictions.py): the [MASK] tokens of a text, a
class, a number, a tag for each word, or an answer. Its rows have the fields described in
data/labelled_files.py, except the label, or the columns that the run's settings give for them; a
line of plain text is the field `text_a`, or `words` for a tagger.

    echo "The [MASK] sat on the mat." | python -m t5x_like.infer --config=configs/run.py:runs/bert \
        --input=-
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line

    SETTINGS = command_line.start(
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
        best_of=(0, "sample so many responses, and write the best by the rewards of the run"),
    )

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from absl import flags

from t5x_like import partitioning, reading
from t5x_like.config import RunSettings, one_line_errors
from t5x_like.experiment import (
    command_line,
    completion,
    data_side,
    fingerprints,
)
from t5x_like.experiment.run import Part, Run, choose_part
from t5x_like.inference import dialog_model, example_display, interactive, predictions, text_model
from t5x_like.inference.dialog_model import DialogModel, DialogSettings
from t5x_like.inference.predictor import Predictor
from t5x_like.inference.ranked_model import RankedModel
from t5x_like.inference.text_model import TextModel
from t5x_like.names import hint
from t5x_like.pretrained import Pretrained
from t5x_like.pretrained.loading import from_source
from t5x_like.pretrained.weight_source import open_source
from t5x_like.vocabularies.chat import ChatTemplate, check_turns, find_template

# The settings of a data module that name the columns of the texts of a labelled row.
_TEXTS = ("text_a", "text_b", "words", "question", "context", "choices")

T = TypeVar("T")

Line = str | Mapping[str, Any]  # a text, or the fields of a .jsonl
Prompt = Mapping[str, Any]  # a text `inputs`, and the other fields of its line

_MESSAGES = "messages"  # the field of a conversation

# The share of spans filled exactly is computed over at least this many examples.
_COUNTED = 64

_ENDINGS = reading.with_endings((".txt", *reading.TABLES))

# Settings of beam search, which has no text to show before it ends.
_OF_BEAMS = (
    *("num_beams", "num_return_sequences"),
    *("length_penalty", "length_penalty_kind", "early_stopping"),
)


@command_line.memory_errors()
def main(settings: RunSettings) -> None:
    """Generate or predict for each input; a mistake prints one line and exits with status 2."""
    with one_line_errors():
        _check_flags()
        infer(completion.complete(Run(settings)))


def infer(run: Run) -> None:
    """Run the mode that the flags select with the model of a checkpoint.

    Raises:
        ValueError: the checkpoint, the task or a setting does not exist, or the mode needs another
            kind of model.
    """
    options = flags.FLAGS
    path = completion.model_folder(run.settings, checkpoint=options.checkpoint)
    dialog = dialog_model.read_settings(run.settings.dialog)  # before loading: mistakes show early
    part = choose_part(run.phases[-1].parts, name=options.task)
    source = open_source(path, average=options.average, whole=bool(options.best_of))
    before = source.run.get("fingerprints", {})
    fingerprints.check_vocabulary(
        before, part.text.vocabulary.digest, vocabulary=part.data.vocabulary
    )
    trained = from_source(source, param_dtype=run.settings.weights).for_task(part.name)
    pretrained = trained.policy()
    kind = predictions.name_of(pretrained)
    mesh = functools.partial(partitioning.make_mesh, dataclasses.asdict(run.settings.mesh))
    columns = {k: v for k, v in part.data.settings.items() if isinstance(v, str)}
    if kind != predictions.TEXT:
        _refuse_flags_of_texts(kind)
        predictor = predictions.build(pretrained, part)
        if options.examples:
            show_predictions(predictor, data_side.build(part, mesh()), count=options.examples)
        else:
            predict_lines(predictor, options.input, options.output, columns=columns)
        return
    model = _text_model(trained, part)
    template = part.data.settings.get("template", "")
    prompts = functools.partial(_prompts, model, options.input, columns=columns, template=template)
    if options.interactive and run.settings.dialog:
        talk(model, dialog)
    elif options.interactive:
        converse(model, template=template)
    elif options.examples:
        show_examples(model, data_side.build(part, mesh()), count=options.examples)
    elif options.stream:
        stream_answers(model, prompts())
    elif options.log_probs:
        rows = prompts(written=["prediction", "tokens", "log_probs"])
        _write(answers_with_log_probs(model, rows), options.output)
    else:
        _write(answers_to(model, prompts(written=["prediction"])), options.output)


def _text_model(trained: Pretrained, part: Part) -> TextModel:
    """Build the model that writes texts from the networks of its run."""
    options = flags.FLAGS
    if options.interactive or options.stream:
        part = without_beams(part)
    model = text_model.build(trained.policy(), part)
    return RankedModel(model, trained, number=options.best_of) if options.best_of else model


def _check_flags() -> None:
    """Check the flags other than --config.

    Raises:
        ValueError: they contradict each other, or a file cannot be read or written.
    """
    options = flags.FLAGS
    if sum(map(bool, (options.input, options.examples, options.interactive))) != 1:
        raise ValueError("one of --input=FILE (or -), --examples=N, --interactive is needed")
    if options.examples < 0:
        raise ValueError(f"--examples={options.examples} must be 1 or more")
    for name in ("interactive", "examples", "stream"):
        if options.log_probs and getattr(options, name):
            raise ValueError(f"--log_probs is for lines of JSON, --{name} shows texts: omit one")
    if options.best_of < 0 or options.best_of == 1:
        raise ValueError(f"--best_of={options.best_of} must be 2 or more")
    if options.best_of and (options.stream or options.interactive):
        raise ValueError("--best_of ranks complete responses: omit --stream and --interactive")
    if options.stream and options.examples:
        raise ValueError("--stream shows the answers to --input, and --examples its own: omit one")
    reads_terminal = options.interactive or options.input == "-"
    if reads_terminal and (sys.stdin is None or sys.stdin.closed):
        raise ValueError("standard input is closed: give texts with --input=FILE")
    if options.output and options.output != "-":
        command_line.check_file("--output", options.output)
        paths = {pathlib.Path(name).resolve() for name in (options.input or "-", options.output)}
        if len(paths) == 1:
            raise ValueError(f"--output={options.output!r} is also the --input: give another file")


def _refuse_flags_of_texts(kind: str) -> None:
    for name in ("interactive", "stream", "log_probs", "best_of"):
        if getattr(flags.FLAGS, name):
            raise ValueError(
                f"--{name} needs a model that generates text; this one predicts {kind}"
            )


def without_beams(part: Part) -> Part:
    """Leave beam search out, unless the command line sets it, which is an error later."""
    if any(word.startswith("--config.decode.num_beams=") for word in sys.argv):
        return part
    decode = {name: value for name, value in part.decode.items() if name not in _OF_BEAMS}
    return dataclasses.replace(part, decode={**decode, "num_beams": 1})


def talk(model: TextModel, settings: DialogSettings) -> None:
    """Talk with a dialog model in the terminal."""
    dialog_model.talk(DialogModel(model, settings), lines=sys.stdin, out=sys.stdout)


def converse(model: TextModel, *, template: str) -> None:
    """Answer prompts from the terminal, or hold a conversation if the data has a chat template."""
    if template:
        interactive.chat(model, find_template(template), lines=sys.stdin, out=sys.stdout)
    else:
        interactive.converse(model, lines=sys.stdin, out=sys.stdout)


def stream_answers(model: TextModel, prompts: Iterable[Prompt]) -> None:
    """Type the answer to each prompt, token by token."""
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C keeps the text typed so far
        for row in prompts:
            interactive.type_out(model, row["inputs"], out=sys.stdout)


def answers_to(model: TextModel, prompts: Iterable[Prompt]) -> Iterator[dict[str, Any]]:
    """Yield each row with the answer to its prompt."""
    for batch in _answered(model, prompts):
        for row, prompt, tokens in zip(*batch, strict=True):
            yield {**row, "prediction": model.text(tokens, prompt=prompt)}


def answers_with_log_probs(model: TextModel, prompts: Iterable[Prompt]) -> Iterator[dict[str, Any]]:
    """Yield each row with its answer, the tokens, and the natural log probability of each token."""
    for batch in _answered(model, prompts):
        for row, prompt, tokens, score in zip(*batch, model.score_written(*batch[1:]), strict=True):
            yield {
                **row,
                "prediction": model.text(tokens, prompt=prompt),
                "tokens": [model.piece(token) for token in tokens],
                "log_probs": score.log_probs.tolist(),
            }


def _answered(
    model: TextModel, rows: Iterable[Prompt]
) -> Iterator[tuple[list[Prompt], list[list[int]], list[list[int]]]]:
    """Yield batches of rows, with the tokens of their prompts and of the generated answers."""
    for batch in _batched(rows, model.batch_size):
        prompts = [model.prompt(row["inputs"]) for row in batch]
        yield batch, prompts, model.generate_tokens(prompts)


def _prompts(
    model: TextModel,
    file: str,
    *,
    columns: Mapping[str, str],
    template: str | Mapping[str, str] = "",
    written: Collection[str] = (),
) -> Iterator[Prompt]:
    """Yield the rows of a file, with their prompts as `inputs`.

    Args:
        model, file: the model, and the file, or "-".
        columns: {field: the column that has it, in rows without such a field}.
        template: the chat template of rows with `messages`.
        written: the fields that no row may have.
    """
    model.check_room()
    chat = find_template(template) if template else None
    as_prompt = functools.partial(_prompt, columns=columns, chat=chat, written=written)
    lines = _read(file, as_prompt=as_prompt)
    return _counted(model, ({"inputs": x} if isinstance(x, str) else x for x in lines))


def _counted(model: TextModel, rows: Iterable[Prompt]) -> Iterator[Prompt]:
    """Yield the rows, and at the end report on standard error how many prompts were truncated."""
    lost = []
    for row in rows:
        lost.append(model.cut(model.prompt(row["inputs"])))
        yield row
    if cut := [size for size in lost if size]:
        end = "end" if model.answers else "beginning"
        setting = "data.lengths.inputs" if model.encodes else "data.lengths, decode.max_new_tokens"
        sys.stderr.write(
            f"{len(cut):,} of {len(lost):,} prompts were cut to {model.room:,} tokens ({setting}), "
            f"and lost their {end}: {sum(cut) / len(cut):,.1f} tokens on average, at most "
            f"{max(cut):,}\n"
        )


def _write(answers: Iterable[Mapping[str, Any]], name: str) -> None:
    shown, file = ("standard output", os.dup(1)) if name == "-" else (name, name)
    with command_line.writing(shown), open(file, "wb") as out:
        for answer in answers:
            out.write(command_line.as_standard_json(answer))
            out.flush()


def show_examples(model: TextModel, data: data_side.TaskData, *, count: int) -> None:
    """Show examples; for spans also the share filled exactly, over at least `_COUNTED` examples."""
    pairs = list(itertools.islice(_examples(model, data), max(count, _COUNTED)))
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
        of_example = example_display.spans(text, shown["model"], shown["original"])
        spans += of_example
        if number < count:
            print()
            if of_example:
                print(example_display.describe_spans(text, of_example, width=width))
            else:
                print(example_display.describe_fields(shown, width=width))
    if spans:
        print(f"\n{example_display.describe_share(spans, examples=len(pairs))}")


def _examples(model: TextModel, data: data_side.TaskData) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the prompt tokens of held-out examples, and the original tokens that follow them."""
    task = data.eval_tasks[0]
    if "decoder" in model.pretrained.module.sides:
        for example in data_side.rows(data.eval_batches(task)):
            yield _prompt_of(example, model)
        return
    for row in data.held_out_rows(task):  # in the batches of an encoder tokens are masked
        texts = {name: data_side.plain(value) for name, value in row.items()}
        pair = model.pair(*(reading.field_text(texts, name) for name in ("inputs", "targets")))
        yield list(pair.prompt), model.until_end(pair.continuation)


def _prompt_of(example: Mapping[str, np.ndarray], model: TextModel) -> tuple[list[int], list[int]]:
    """Return the prompt tokens of an example, and the original tokens that follow them."""
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
        # A row holds several documents: keep the document in which the first half ends.
        prompt = targets[: np.argmax(written)]
        ends = [n + 1 for n, token in enumerate(prompt) if model.is_end(int(token))]
        prompt = prompt[max(ends, default=0) :]
    return [int(token) for token in prompt], model.until_end(targets[written])


def predict_lines(
    predictor: Predictor, file: str, output: str, *, columns: Mapping[str, str]
) -> None:
    """Write the prediction for each line of a file as a line of JSON.

    Args:
        columns: {field: the column that has it, in rows without such a field}.
    """
    lines = _read(file)

    def predicted() -> Iterator[dict[str, Any]]:
        for batch in _batched(lines, predictor.batch_size):
            items = [_item(line, columns) for line in batch]
            for line, prediction in zip(batch, predictor(items), strict=True):
                yield {"inputs": line, **prediction}

    _write(predicted(), output)


def _item(line: Line, columns: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a row with the fields that a predictor reads.

    Raises:
        ValueError: the row lacks the column of a text that the run was trained on.
    """
    if isinstance(line, str):
        return {"text_a": line}
    item = {field: line[name] for field, name in columns.items() if name in line} | dict(line)
    for field in _TEXTS:
        if columns.get(field) and field not in item:
            raise ValueError(
                f"a row has no {columns[field]!r}, the column of data.settings.{field}, but "
                f"{', '.join(line)}"
            )
    return item


def show_predictions(predictor: Predictor, data: data_side.TaskData, *, count: int) -> None:
    """Show held-out examples with the model's predictions."""
    prediction, task = predictor.prediction, data.eval_tasks[0]
    rows: Iterable[Mapping[str, Any]] = data.held_out_rows(task)
    if prediction.from_batches:
        rows = data_side.rows(data.eval_batches(task))
    pairs = (prediction.example(row) for row in rows if prediction.can_predict(row))
    shown = list(itertools.islice(pairs, count))
    width = shutil.get_terminal_size().columns
    predicted = predictor([item for item, _ in shown])
    for (item, original), result in zip(shown, predicted, strict=True):
        fields = {**item, "model": result["prediction"], "original": original}
        print(f"\n{example_display.describe_fields(fields, width=width)}")


def _read(name: str, *, as_prompt: Callable[..., Prompt] | None = None) -> Iterable[Line]:
    """Read the lines of a file, or of standard input for "-".

    Args:
        name: the file.
        as_prompt: (row of a table, where=its file and line) -> its prompt; None for rows as they
            are, which lines of standard input may then be, too.
    """
    if name == "-":
        where = "a line of standard input"
        stream = reading.lines_of(sys.stdin.buffer, "standard input")
        return (
            _object(line, where=where) if as_prompt is None and line.startswith("{") else line
            for line in stream
        )
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        beside = [str(file) for file in path.parent.glob("*") if file.name.endswith(_ENDINGS)]
        raise ValueError(f"--input={str(path)!r} is not a file.{hint(str(path), beside)}")
    ending = pathlib.PurePath(reading.uncompressed(path)).suffix
    if ending == ".json":
        raise ValueError(f"--input={str(path)!r} is one JSON value: write a row a line (.jsonl)")
    if ending not in reading.TABLES:
        return _some(name, list(reading.lines(path)))
    rows = _some(name, list(reading.TABLES[ending](path)))
    if as_prompt is None:
        return [row for _, row in rows]
    return [as_prompt(row, where=where) for where, row in rows]


def _some(name: str, lines: list[T]) -> list[T]:
    if not lines:
        raise ValueError(f"--input={name!r} is empty: give a file with a text on each line")
    return lines


def _prompt(
    row: Mapping[str, Any],
    *,
    where: str,
    columns: Mapping[str, str],
    chat: ChatTemplate | None,
    written: Collection[str],
) -> Prompt:
    """Return a row of `--input` with its text as `inputs`, and its other fields as they are.

    Raises:
        ValueError: the row has no text, or has a field that is to be written.
    """
    if lost := sorted(row.keys() & set(written)):
        raise ValueError(f"{where} has {lost[0]!r}, which infer writes: rename it")
    # The columns that the run was trained on come after the field of the same meaning.
    fields = [name for field in ("inputs", "text") for name in (field, columns.get(field, field))]
    field = next((name for name in (*fields, _MESSAGES) if name in row), None)
    if field is None:
        known = ", ".join(map(repr, dict.fromkeys((*fields, _MESSAGES))))
        raise ValueError(f"{where} has none of {known}, but {list(row)}")
    try:
        if field == _MESSAGES:
            return {"inputs": _conversation(row[field], chat), **row}
        text = reading.field_text(row, field)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"inputs": text, **{name: value for name, value in row.items() if name != field}}


def _conversation(messages: Any, chat: ChatTemplate | None) -> str:
    """Return the text of a conversation up to the next answer."""
    if chat is None:
        raise ValueError(
            "messages need a chat template: set data.settings.template, to the folder of the model "
            "if it has one"
        )
    turns = check_turns(messages)
    if turns[-1]["role"] == "assistant":
        raise ValueError("messages end with an answer of the assistant: there is nothing to answer")
    return chat.prompt(turns)


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
    main(SETTINGS)
