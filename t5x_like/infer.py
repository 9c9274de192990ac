r"""Says what a checkpoint makes of texts: a line of text in, a line of JSON out.

    python -m t5x_like.infer --config=configs/t5.py:small --config.workdir=runs/small \
        --input=questions.txt --output=answers.jsonl --config.decode.num_beams=4
    echo "The cat <extra_id_0> on the mat." | python -m t5x_like.infer --config=... --input=-
    python -m t5x_like.infer --config=configs/t5.py:demo --examples=5
    python -m t5x_like.infer --config=configs/run.py:runs/gpt2_demo --interactive
    python -m t5x_like.infer --config=configs/pretrained.py --config.initialize=FOLDER --input=-

Input is a text file or .jsonl (field `inputs`, or `text`), or - for standard input; output lines
have `inputs` and `prediction`, and with --log_probs the `tokens` that were written and the natural
log p of each. A language model goes on with its input, of which it reads as many of the last tokens
as `decode.max_new_tokens` leaves room for. With --stream the answers are typed as they come, and
not as JSON. --interactive asks for prompts, and shows the five likeliest next tokens under each
text (interactive.py).

With --examples=N instead, N held-out examples of the config's task are shown with what the model
made of them beside what was there: of a language model's rows the second half.

An encoder says what its head is for (predictions.py): it fills in the marks [MASK] of a text, or
tells a class, a number, a tag for each word or an answer. Its .jsonl has the fields of
data/labelled_files.py without the label; a line of text is `text_a`, or the `words` of a tagger.

    echo "The [MASK] sat on the mat." | python -m t5x_like.infer --config=configs/run.py:runs/bert \
        --input=-
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import ml_collections
import numpy as np
from absl import flags

from t5x_like import config, vocabularies
from t5x_like.config import one_line_errors
from t5x_like.experiment import completion, data_side, model_side
from t5x_like.inference import interactive, predictions, text_model
from t5x_like.inference.decoder_predictions import Extracted
from t5x_like.inference.predictions import Predictor
from t5x_like.inference.text_model import TextModel
from t5x_like.losses import task_losses
from t5x_like.models.networks.decoder_classifier import DecoderClassifier
from t5x_like.models.networks.encoder import Encoder
from t5x_like.preprocessing import objectives
from t5x_like.pretrained import Pretrained, from_pretrained

T = TypeVar("T")

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


Line = str | Mapping[str, Any]  # a text, or the fields of a .jsonl


def infer(settings: ml_collections.ConfigDict) -> None:
    """Generates or predicts for each input, in batches."""
    arguments = flags.FLAGS
    with one_line_errors():
        if sum(map(bool, (arguments.input, arguments.examples, arguments.interactive))) != 1:
            raise ValueError("one of --input=FILE (or -), --examples=N, --interactive is needed")
        settings = completion.complete(settings)
        settings = config.phases(settings)[-1].settings
        path = completion.model_folder(settings, checkpoint=arguments.checkpoint)
        pretrained = from_pretrained(path, average=arguments.average)
        if isinstance(pretrained.module, Encoder | DecoderClassifier):
            for name in ("interactive", "stream", "log_probs"):
                if getattr(arguments, name):
                    raise ValueError(
                        f"--{name} is for a model that writes text, and none of labels"
                    )
            _predict(pretrained, settings)
        else:
            _generate(pretrained, settings)


def _predict(pretrained: Pretrained, settings: ml_collections.ConfigDict) -> None:
    arguments = flags.FLAGS
    predictor = _predictor(pretrained, settings)
    if arguments.examples:
        _show_predictions(predictor, _inputs(settings), count=arguments.examples)
        return
    lines = _read(arguments.input, with_objects=True)
    _write(_predictions(predictor, lines, size=settings.data.batch_size), arguments.output)


def _generate(pretrained: Pretrained, settings: ml_collections.ConfigDict) -> None:
    arguments = flags.FLAGS
    model = text_model.build(pretrained, settings)
    if arguments.interactive:
        interactive.converse(model, lines=sys.stdin, out=sys.stdout)
    elif arguments.examples:
        _show_examples(model, _inputs(settings), count=arguments.examples)
    elif arguments.stream:
        with contextlib.suppress(KeyboardInterrupt):  # what was typed stays
            for text in map(str, _read(arguments.input, with_objects=False)):
                interactive.type_out(model, text, out=sys.stdout)
    else:
        texts = map(str, _read(arguments.input, with_objects=False))
        size = settings.data.batch_size
        _write(_answers(model, texts, size=size, log_probs=arguments.log_probs), arguments.output)


def _answers(
    model: TextModel, texts: Iterable[str], *, size: int, log_probs: bool
) -> Iterator[dict[str, Any]]:
    for some in _batched(texts, size):
        prompts = [model.prompt(text) for text in some]
        written = model.generate_tokens(prompts)
        scores = model.score_written(prompts, written) if log_probs else []
        for number, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
            answer = {"inputs": some[number], "prediction": model.text(tokens, prompt=prompt)}
            told = {"tokens": [model.piece(token) for token in tokens]} if log_probs else {}
            log_p = {"log_probs": scores[number].log_probs.tolist()} if log_probs else {}
            yield {**answer, **told, **log_p}


def _inputs(settings: ml_collections.ConfigDict) -> data_side.Inputs:
    return data_side.build(settings, model_side.build(settings).mesh)


def _write(answers: Iterable[Mapping[str, Any]], name: str) -> None:
    with open(os.dup(1) if name == "-" else name, "w") as out:
        for answer in answers:
            out.write(json.dumps(answer) + "\n")
            out.flush()


def fill(masked: str, spans: str) -> str:
    """A text with its sentinels replaced by what follows each of them in `spans`, in [brackets]."""
    pieces = _SENTINEL.split(spans)
    filled = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return _SENTINEL.sub(lambda match: f" [{filled.get(match[1], '').strip()}] ", masked)


def _show_examples(model: TextModel, data: data_side.Inputs, *, count: int) -> None:
    examples = list(itertools.islice(data_side.rows(data.eval_batches(data.eval_tasks[0])), count))
    prompts, originals = zip(*(_prompt_of(example, model) for example in examples), strict=True)
    written = model.generate_tokens(prompts)
    for prompt, guess, original in zip(prompts, written, originals, strict=True):
        text = model.vocabulary.decode(model.until_end(prompt))
        shown = {"inputs": text, "model": model.text(guess, prompt=prompt)}
        shown["original"] = model.text(original, prompt=prompt)
        if _SENTINEL.search(text):
            shown = {name: fill(text, shown[name]) for name in ("model", "original")}
        print()
        for name, value in shown.items():
            print(f"{name:>9}: {' '.join(value.split())}")


def _prompt_of(example: Mapping[str, np.ndarray], model: TextModel) -> tuple[list[int], list[int]]:
    """What a model is given of a row, and what comes after it there."""
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


def _predictor(pretrained: Pretrained, settings: ml_collections.ConfigDict) -> Predictor:
    name, length = pretrained.config["head"], settings.data.lengths.inputs
    if isinstance(pretrained.module, DecoderClassifier):
        objective = objectives.build(
            settings.data.objective, **settings.data.objective_settings.to_dict()
        )
        extracted = Extracted(
            objective=objective.name,
            vocabulary=vocabularies.load(settings.data.vocabulary),
            labels=completion.label_names(settings),
            length=length,
            rows_of_one=objective.converter_settings["rows"],
        )
        return _ask(pretrained, extracted, settings)
    own = settings.data.objective_settings if name == "question_answering" else {}
    head = predictions.make_head(
        name,
        vocabulary=vocabularies.load(settings.data.vocabulary),
        labels=completion.label_names(settings) if name in task_losses.LOSSES else (),
        length=length,
        settings={**own, **settings.predict},
    )
    return _ask(pretrained, head, settings)


def _ask(
    pretrained: Pretrained, head: predictions.Asked, settings: ml_collections.ConfigDict
) -> Predictor:
    return Predictor(
        pretrained.module,
        pretrained.params,
        head,
        length=settings.data.lengths.inputs,
        batch_size=settings.data.batch_size,
    )


def _predictions(
    predictor: Predictor, lines: Iterable[Line], *, size: int
) -> Iterator[dict[str, Any]]:
    for some in _batched(lines, size):
        items = [{"text_a": line} if isinstance(line, str) else line for line in some]
        for line, said in zip(some, predictor(items), strict=True):
            yield {"inputs": line, **said}


def _show_predictions(predictor: Predictor, data: data_side.Inputs, *, count: int) -> None:
    task = data.eval_tasks[0]
    examples: Iterable[tuple[Mapping[str, Any], Any]]
    if data.config.model.head in (*task_losses.LOSSES, "multiple_choice"):
        examples = map(_labelled, data.held_out_rows(task))
    else:
        rows = data_side.rows(data.eval_batches(task))
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
    asked = ("text_a", "text_b", "choices", "words", "question", "context")
    labels = ("label", "value", "tags", "answers", "answer")
    values = {name: data_side.plain(value) for name, value in row.items()}
    label = next(values[name] for name in labels if name in values)
    return {name: values[name] for name in asked if name in values}, label


def _masked(row: Mapping[str, np.ndarray], data: data_side.Inputs) -> tuple[dict[str, str], str]:
    """A row of a masked language model as one text or two, and the text without noise."""
    decode = data.vocabulary.decode
    size = int(np.sum(row["encoder_segment_ids"] > 0))
    types = row.get("encoder_token_types", np.zeros(size, np.int32))[:size]
    tokens = row["encoder_input_tokens"][:size]
    parts = [tokens[types == number][1 - number : -1] for number in (0, 1)]
    names = ("text_a", "text_b") if np.any(types) else ("text_a",)
    item = {name: decode(part) for name, part in zip(names, parts, strict=False)}
    return item, decode(row["encoder_target_tokens"][1 : size - 1])


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
    flags.DEFINE_integer("average", 1, "newest checkpoints to take the mean of")
    flags.DEFINE_string("input", None, "file of texts, or - for standard input")
    flags.DEFINE_string("output", "-", "JSON Lines file to write, or - for standard output")
    flags.DEFINE_integer("examples", 0, "held-out examples to show")
    flags.DEFINE_bool("interactive", False, "ask for prompts in the terminal")
    flags.DEFINE_bool("stream", False, "type answers as they come")
    flags.DEFINE_bool("log_probs", False, "tell the tokens that were written and their log p")
    config.run(infer)
