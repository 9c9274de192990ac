"""Read and check labelled text: JSON Lines, TSV, CSV, Parquet, SQuAD's JSON, CoNLL's columns.

The kinds of labelled text have the names of objectives (classification, regression, tagging, ...).
A row has the fields that the objective of its kind reads; labels are still strings.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from t5x_like import paths, reading
from t5x_like.names import choose, hint

RawRow = Mapping[str, Any]  # a row with the field names of its file
LabelledRow = Mapping[str, Any]  # a row with our field names, and "where": its file and line

_GROUP = "group"

Parse = Callable[[RawRow, Mapping[str, str]], dict[str, Any]]


def read(path: str, *, kind: str, names: Mapping[str, str]) -> tuple[LabelledRow, ...]:
    """Read and check the rows of a file.

    Args:
        path: a file with one of `ENDINGS`.
        kind: one of `KINDS`.
        names: {field of this kind, or `group`: its name in the file}. Rows are pairs if `text_b`
            has a name, or if that is empty and the first row has a field "text_b"; they have the
            key of a group if `group` has a name.

    Raises:
        ValueError: a file or a row cannot be read, or a field is missing or has another type; the
            message begins with the file and the line.
    """
    parse, fields = choose("kind of labelled text", kind, KINDS)
    columns = tuple((field, names.get(field, "")) for field in (*fields, _GROUP))
    return _rows_as_of(path, tuple(paths.fingerprint(path) or ()), parse, columns)


@functools.lru_cache(maxsize=8)
def _rows_as_of(
    path: str, changed: tuple[Any, ...], parse: Parse, names: tuple[tuple[str, str], ...]
) -> tuple[LabelledRow, ...]:
    """Return the rows of a file, cached until the file changes."""
    del changed
    ending = os.path.splitext(reading.uncompressed(path))[1]
    if ending not in _READERS:
        raise ValueError(f"{path} must end in one of {', '.join(_READERS)}.")
    rows: list[LabelledRow] = []
    fields: dict[str, str] = {}
    for where, raw in _READERS[ending](path):
        if not rows:
            fields = {field: name for field, name in names if name}
            fields |= {"text_b": "text_b"} if ("text_b", "") in names and "text_b" in raw else {}
        for field, name in fields.items():
            if name not in raw:
                advice = f"; set data.settings.{field} to the field's name"
                fail(where, f"there is no field {name!r}.{hint(name, raw)}{advice}")
        group = {_GROUP: str(raw[fields[_GROUP]])} if _GROUP in fields else {}
        try:
            rows.append(parse(raw, fields) | group | {"where": where})
        except ValueError as error:
            fail(where, str(error))
    return tuple(rows)


def fail(where: str, problem: str) -> NoReturn:
    """Raise a ValueError whose message begins with a file and a line."""
    raise ValueError(f"{where}: {problem}")


def _squad(path: str) -> Iterator[tuple[str, RawRow]]:
    content = reading.text(path)
    try:
        articles = reading.json_object(content).get("data")
    except ValueError as error:
        fail(path, str(error))
    if not isinstance(articles, list):
        fail(
            path, "it is not SQuAD's JSON, which has `data`; rename a file of JSON Lines to .jsonl."
        )
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    none = {"answers": None} if question.get("is_impossible") else {}
                    raw = {"context": paragraph["context"], **question, **none}
                    yield f"{path}: question {question.get('id')}", raw
    except (KeyError, TypeError, AttributeError) as error:
        fail(path, f"it is not SQuAD's JSON: data, paragraphs, qas: {error!r}")


def _conll(path: str) -> Iterator[tuple[str, RawRow]]:
    """Yield a row for each sentence of a file in the format of CoNLL-2003's shared task.

    A line has a word and its tags, separated by spaces or tabs, the tag of its entity last. A blank
    line ends a sentence. A word -DOCSTART- begins a document, and is not a sentence (Tjong Kim Sang
    and De Meulder 2003, section 2.2).
    """
    rows: list[list[str]] = []
    where, columns = "", 0
    for number, line in enumerate(itertools.chain(reading.lines(path), [""]), start=1):
        cells = line.replace("\t", " ").split(" ") if not reading.is_blank(line) else []
        cells = [cell for cell in cells if cell]
        if cells and cells[0] != _DOCUMENT:
            where = where if rows else f"{path}:{number}"
            columns = columns or len(cells)
            if len(cells) < 2:
                fail(f"{path}:{number}", f"there is no tag after the word {cells[0]!r:.80}.")
            if len(cells) != columns:
                fail(f"{path}:{number}", f"it has {len(cells)} columns, and others have {columns}.")
            rows.append(cells)
        elif rows:
            yield where, {"words": [row[0] for row in rows], "tags": [row[-1] for row in rows]}
            rows = []


# CoNLL-2003's files are eng.train, eng.testa and eng.testb, or train.txt, valid.txt and test.txt.
_DOCUMENT = "-DOCSTART-"
_CONLL = (".conll", ".train", ".testa", ".testb", ".txt")
_READERS: dict[str, Callable[[str], Iterator[tuple[str, RawRow]]]] = {
    **reading.TABLES,
    ".json": _squad,
    **dict.fromkeys(_CONLL, _conll),
}


def _string(raw: RawRow, name: str) -> str:
    if not isinstance(raw[name], str):
        raise ValueError(f"{name}={raw[name]!r} must be a string.")
    return raw[name]


def _label(name: str, label: Any) -> str:
    if not isinstance(label, str | int) or isinstance(label, bool) or label == "":
        raise ValueError(f"{name}={label!r} must be a label, a string or an integer.")
    return str(label)


def _texts(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: _string(raw, fields[name]) for name in ("text_a", "text_b") if name in fields}


def _classification(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    return _texts(raw, fields) | {"label": _label(fields["label"], raw[fields["label"]])}


def _regression(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    value = raw[fields["value"]]
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{fields['value']}={value!r} must be a finite number.")
    return _texts(raw, fields) | {"value": number}


def _tagging(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    words, tags = (
        raw[name].split() if isinstance(raw[name], str) else raw[name]
        for name in (fields["words"], fields["tags"])
    )
    if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
        raise ValueError(f"words={words!r} and tags={tags!r} must be lists of the same length.")
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"words={words!r} must be one string or more, and none blank.")
    return {"words": words, "tags": [_label(fields["tags"], tag) for tag in tags]}


def _question_answering(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    question, context = _string(raw, fields["question"]), _string(raw, fields["context"])
    answers = [_placed(text, start, context) for text, start in _answers(raw[fields["answers"]])]
    text, start = answers[0] if answers else ("", -1)
    return {
        "id": str(raw.get("id", "")),
        "question": question,
        "context": context,
        "answers": [text for text, _ in answers],
        "answer_text": text,
        "answer_start": start,
    }


def _answers(raw: Any) -> list[tuple[Any, Any]]:
    """Return (answer, start) for each answer; the start is None if the row does not have it."""
    if isinstance(raw, Mapping) and isinstance(raw.get("text"), list):
        starts = raw.get("answer_start") or [None] * len(raw["text"])
        return list(zip(raw["text"], starts, strict=True))
    if raw is not None and not isinstance(raw, list):
        raise ValueError(f"answers={raw!r} must be a list of answers.")
    return [
        (answer.get("text"), answer.get("answer_start"))
        if isinstance(answer, Mapping)
        else (answer, None)
        for answer in raw or []
    ]


def _placed(text: Any, start: Any, context: str) -> tuple[str, int]:
    """Strip an answer of whitespace, and find its first character in the context."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f"the answer {text!r} must be a text; for no answer, leave the list empty."
        )
    if start is None:
        start = context.find(text)
    if not isinstance(start, int) or start < 0 or context[start : start + len(text)] != text:
        where = f" at its answer_start={start}" if start != -1 else ""
        raise ValueError(f"the answer {text!r} does not occur in its context{where}.")
    return text.strip(), start + len(text) - len(text.lstrip())


def _supporting_facts(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    question, answer = (_string(raw, fields[name]) for name in ("question", "answer"))
    context, facts = (raw[fields[name]] for name in ("context", "facts"))
    if not isinstance(context, list) or not all(isinstance(text, str) for text in context):
        raise ValueError(f"{fields['context']}={context!r:.80} must be a list of strings.")
    if not context or not question.strip() or not answer.strip():
        raise ValueError("the question, its context and its answer must not be blank.")
    columns: Any = facts if isinstance(facts, Mapping) else {}
    titles, numbers = columns.get("title"), columns.get("sent_id")
    if not _are(str, titles) or not _are(int, numbers) or len(titles) != len(numbers):
        raise ValueError(
            f"{fields['facts']}={facts!r:.80} must have two lists of one length, title with "
            "strings and sent_id with whole numbers."
        )
    return {
        "question": question,
        "context": context,
        "answer": answer,
        "fact_titles": [" ".join(title.split()) for title in titles],
        "fact_numbers": numbers,
    }


def _long_answers(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    question, context = _string(raw, fields["question"]), raw[fields["context"]]
    if not _are(str, context) or not "".join([question, *context]).strip():
        raise ValueError(f"{fields['context']}={context!r:.80} must be a list of paragraphs.")
    words = sum(len(text.split()) for text in context)
    answers = {name: raw[fields[name]] for name in ("long_answers", "short_answers")}
    for name, texts in answers.items():
        if not _are(str, texts) or not texts or len(texts) != len(answers["long_answers"]):
            raise ValueError(f"{fields[name]}={texts!r:.80} must have a text for each annotator.")
        named = {"none", "yes", "no"} if name == "short_answers" else {"none"}
        for text in texts:
            if text not in named and not _are_spans(text, words):
                raise ValueError(
                    f"{fields[name]}={text!r:.80} must be {', '.join(sorted(named))} or words such "
                    f"as 3-6, from 0 to {words}."
                )
    return {"question": question, "context": context, **answers}


def _are_spans(text: str, words: int) -> bool:
    spans = [span.split("-") for span in text.split()]
    if not spans or not all(len(span) == 2 and all(map(str.isdecimal, span)) for span in spans):
        return False
    return all(int(first) < int(end) <= words for first, end in spans)


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _multiple_choice(raw: RawRow, fields: Mapping[str, str]) -> dict[str, Any]:
    choices, answer = raw[fields["choices"]], raw[fields["answer"]]
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"{fields['choices']}={choices!r} must be a list of strings.")
    if isinstance(answer, list):
        answer = _relevant(answer, fields["answer"], choices=len(choices))
    if isinstance(answer, bool) or answer not in range(len(choices)):
        raise ValueError(f"{fields['answer']}={answer!r} must be one of 0 to {len(choices) - 1}.")
    return _texts(raw, fields) | {"choices": choices, "answer": answer}


def _relevant(flags: list[Any], name: str, *, choices: int) -> int:
    """Return the only choice whose flag is 1."""
    if len(flags) != choices or not all(flag in (0, 1) for flag in flags):
        raise ValueError(f"{name}={flags!r} must have a 0 or 1 for each of the {choices} choices.")
    if sum(flags) != 1:
        raise ValueError(f"{name}={flags!r} has {sum(flags)} relevant choices, and must have one.")
    return flags.index(1)


ENDINGS = reading.with_endings(tuple(_READERS))
KINDS: dict[str, tuple[Parse, tuple[str, ...]]] = {
    "classification": (_classification, ("text_a", "text_b", "label")),
    "pair_classification": (_classification, ("text_a", "text_b", "label")),
    "regression": (_regression, ("text_a", "text_b", "value")),
    "tagging": (_tagging, ("words", "tags")),
    "question_answering": (_question_answering, ("question", "context", "answers")),
    "knowledge_classification": (_classification, ("text_a", "text_b", "label")),
    "knowledge_tagging": (_tagging, ("words", "tags")),
    "knowledge_question_answering": (_question_answering, ("question", "context", "answers")),
    "word_classification": (_classification, ("text_a", "text_b", "label")),
    "word_tagging": (_tagging, ("words", "tags")),
    "word_question_answering": (_question_answering, ("question", "context", "answers")),
    "gpt_classification": (_classification, ("text_a", "text_b", "label")),
    "multiple_choice": (_multiple_choice, ("text_a", "text_b", "choices", "answer")),
    "candidates": (_multiple_choice, ("text_a", "text_b", "choices", "answer")),
    "long_answers": (_long_answers, ("question", "context", "long_answers", "short_answers")),
    "supporting_facts": (_supporting_facts, ("question", "context", "answer", "facts")),
    "gpt_similarity": (_classification, ("text_a", "text_b", "label")),
    "gpt_regression": (_regression, ("text_a", "text_b", "value")),
    "gpt_multiple_choice": (_multiple_choice, ("text_a", "text_b", "choices", "answer")),
}
