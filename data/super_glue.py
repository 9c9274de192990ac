"""SuperGLUE (Wang et al. 2019): eight tasks, two diagnostic sets, and DPR, which T5 adds.

    --config.data.module=data/super_glue.py --config.data.task=super_glue_boolq
    --config.data.settings="{'folder': 'super_glue'}"

The tasks are `super_glue_boolq`, `super_glue_cb`, ...; `super_glue` is their mixture for text to
text, proportional to the number of examples, with the pronouns of DPR as in T5's released code.
`folder` has SuperGLUE as Hugging Face hosts it (aps/super_glue), super_glue/boolq/train.jsonl and
so on; without it the output of `tfds build super_glue/boolq` is read. docs/tasks.md has all fields
and settings.

WSC as text: the pronoun is marked, "*it*", and the model generates its referent. It is trained on
the rows in which the noun is the referent; in the other rows any text except the noun is right
(Raffel et al. 2020, section 2.4). Each answer of MultiRC is a row, and so is each right entity of
ReCoRD in training; their metrics are computed over groups. The diagnostic sets have RTE's prefix
and no training split, and can only be measured if their files have labels.
"""

import re
from collections.abc import Iterable
from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Submission, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw

_ENTAILMENT = ("entailment", "not_entailment")
_BOOLEAN = ("False", "True")
_HIGHLIGHT = "\n@highlight\n"
_DIAGNOSTIC = {"validation": "test"}


def _classes(
    inputs: str, text_a: str, text_b: str, labels: tuple[str, ...], **more: Any
) -> Benchmark:
    return Benchmark(
        inputs=inputs,
        targets="{label}",
        kind="classification",
        text_a=text_a,
        text_b=text_b,
        labels=labels,
        **more,
    )


def _nli(inputs: str, first: str, second: str, prepared: str, **more: Any) -> Benchmark:
    return _classes(inputs, first, second, _ENTAILMENT, prepared=prepared, **more)


def _without_html(raw: Raw) -> Raw:
    """Remove the line breaks and bold type in MultiRC's HTML."""
    fields = ("question", "answer", "paragraph")
    texts = {name: benchmark.text(raw, name).replace("<br>", " ") for name in fields}
    return {**raw, **{name: re.sub("</?b>", "", text) for name, text in texts.items()}}


def _filled_queries(raw: Raw) -> Raw:
    """Fill ReCoRD's query with the first of the right entities, and with each wrong entity.

    The highlights at the end of a passage become sentences.
    """
    query = benchmark.text(raw, "query")
    if "@placeholder" not in query:
        raise ValueError(f"query={query!r:.80} has no @placeholder.")
    answers = benchmark.texts(raw, "answers")
    entities = dict.fromkeys([*benchmark.texts(raw, "entities"), *answers])
    choices = [one for one in entities if one == answers[0] or one not in answers]
    passage = re.sub(rf"([.?!\"']){_HIGHLIGHT}", r"\1 ", benchmark.text(raw, "passage"))
    return {
        **raw,
        "passage": passage.replace(_HIGHLIGHT, ". "),
        "listed": ", ".join(raw["entities"]),
        "candidates": [*entities],
        "filled": [query.replace("@placeholder", one) for one in choices],
        "answer": choices.index(answers[0]),
    }


def _each_answer(raw: Raw) -> Iterable[Raw]:
    return ({**raw, "target": answer} for answer in raw["answers"])


def _mark_pronoun(raw: Raw) -> Raw:
    """Mark the pronoun in WSC's text with asterisks.

    It is the first word from `span2_index` that begins with the pronoun: two of the published texts
    have the wrong word at the index, or punctuation after the pronoun.
    """
    words = benchmark.text(raw, "text").split(" ")
    pronoun, start = benchmark.text(raw, "span2_text"), benchmark.number(raw, "span2_index")
    places = range(max(start, 0), len(words))
    at = next((n for n in places if re.match(rf"{re.escape(pronoun)}\b", words[n])), None)
    if at is None:
        raise ValueError(f"span2_text={pronoun!r} is not a word from span2_index={start} on.")
    rest = words[at].removeprefix(pronoun)
    words[at : at + 1] = [f"*{pronoun}*", *([rest] if rest else [])]
    return {**raw, "marked": " ".join(words)}


def _mark_first_pronoun(raw: Raw) -> Raw:
    """Mark the first occurrence of the pronoun in DPR's sentence with asterisks."""
    pronoun = benchmark.text(raw, "pronoun")
    sentence = benchmark.text(raw, "sentence")
    marked = re.sub(rf" ({re.escape(pronoun)})( |\.|,)", r" *\1*\2", sentence, count=1)
    return {**raw, "marked": marked}


def _is_referent(raw: Raw) -> bool:
    return raw["label"] == "True"


SUPER_GLUE = {
    "boolq": _classes(
        "boolq passage: {passage} question: {question}",
        "{question}",
        "{passage}",
        _BOOLEAN,
        prepared="super_glue/boolq:1.0.2",
    ),
    "cb": _classes(
        "cb hypothesis: {hypothesis} premise: {premise}",
        "{premise}",
        "{hypothesis}",
        ("entailment", "contradiction", "neutral"),
        metrics=("f1_macro", "accuracy"),
        prepared="super_glue/cb:1.0.2",
    ),
    "copa": Benchmark(
        inputs="copa choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}",
        targets="{label}",
        kind="multiple_choice",
        text_a="{premise}",
        text_b="{question}",
        labels=("choice1", "choice2"),
        choices=("choice1", "choice2"),
        prepared="super_glue/copa:1.0.2",
    ),
    "multirc": _classes(
        "multirc question: {question} answer: {answer} paragraph: {paragraph}",
        "{paragraph}",
        "{question} {answer}",
        _BOOLEAN,
        prepare=_without_html,
        metrics=("multirc",),
        positive="True",
        group="{idx.paragraph}-{idx.question}",
        prepared="super_glue/multirc:1.0.2",
    ),
    "record": Benchmark(
        inputs="record query: {query} entities: {listed} passage: {passage}",
        targets="{target}",
        answers="answers",
        kind="multiple_choice",
        text_a="{passage}",
        label="answer",
        choices="filled",
        candidates="candidates",
        prepare=_filled_queries,
        for_text=_each_answer,
        text_metrics=("record",),
        group="{idx.passage}-{idx.query}",
        prepared="super_glue/record:1.0.2",
    ),
    "rte": _nli(
        "rte hypothesis: {hypothesis} premise: {premise}",
        "{premise}",
        "{hypothesis}",
        "super_glue/rte:1.0.2",
    ),
    "wic": _classes(
        "wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
        "{word}: {sentence1}",
        "{sentence2}",
        _BOOLEAN,
        prepared="super_glue/wic:1.0.2",
    ),
    "wsc": Benchmark(
        inputs="wsc: {marked}",
        targets="{span1_text}",
        kind="classification",
        text_a="{marked}",
        text_b="{span1_text}",
        labels=_BOOLEAN,
        prepare=_mark_pronoun,
        trained_on=_is_referent,
        text_metrics=("referent",),
        group="{label}",
        folder="wsc.fixed",
        prepared="super_glue/wsc.fixed:1.0.2",
    ),
    "axb": _nli(
        "rte hypothesis: {sentence2} premise: {sentence1}",
        "{sentence1}",
        "{sentence2}",
        "super_glue/axb:1.0.2",
        metrics=("matthews",),
        splits=_DIAGNOSTIC,
    ),
    "axg": _nli(
        "rte hypothesis: {hypothesis} premise: {premise}",
        "{premise}",
        "{hypothesis}",
        "super_glue/axg:1.0.2",
        splits=_DIAGNOSTIC,
    ),
    "dpr": Benchmark(
        inputs="wsc: {marked}",
        targets="{choice}",
        kind="multiple_choice",
        text_a="{marked}",
        choices="candidates",
        prepare=_mark_first_pronoun,
        folder="definite_pronoun_resolution",
        splits={"train": "train", "validation": "test"},
        prepared="definite_pronoun_resolution:1.1.0",
    ),
}

MIXED = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "dpr")

# The files that super.gluebenchmark.com accepts.
SUBMISSIONS = {
    "boolq": Submission(file="BoolQ.jsonl", form="lower"),
    "cb": Submission(file="CB.jsonl", form="name"),
    "copa": Submission(file="COPA.jsonl", form="number"),
    "multirc": Submission(file="MultiRC.jsonl", form="number"),
    "record": Submission(
        file="ReCoRD.jsonl", form="text", index="idx.query", stand_ins={"answers": "entities"}
    ),
    "rte": Submission(file="RTE.jsonl", form="name"),
    "wic": Submission(file="WiC.jsonl", form="lower"),
    "wsc": Submission(file="WSC.jsonl", form="referent_name"),
    "axb": Submission(file="AX-b.jsonl", form="name"),
    "axg": Submission(file="AX-g.jsonl", form="name"),
}

_SUITE = Suite(
    SUPER_GLUE,
    prefix="super_glue_",
    mixture="super_glue",
    mixed=MIXED,
    submissions=SUBMISSIONS,
)
register, documents = _SUITE.register, _SUITE.documents
labels, measure, hidden_test = _SUITE.labels, _SUITE.measure, _SUITE.hidden_test
