"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and MRQA's sets, as text to text and as spans.

    --config.data.module=data/squad.py --config.data.task=squad
    --config.data.settings="{'folder': 'questions'}"

`squad` and `squad_v2` are read from FOLDER/squad/train.jsonl and so on, in the schema of Hugging
Face (rajpurkar/squad, rajpurkar/squad_v2), or from the output of `tfds build squad/v1.1`. The
published .json files are read by data/labelled_files.py. docs/tasks.md has all settings.

As text, punctuation is separated by spaces, also in the answers, as in T5's released code. T5 did
not include SQuAD 2.0: here the target of a question without an answer is "unanswerable".

The shared task MRQA 2019 (Fisch et al. 2019) has twelve sets in one format, the benchmark of
SpanBERT's table 3: `mrqa_newsqa`, `mrqa_triviaqa`, `mrqa_searchqa`, `mrqa_hotpotqa`,
`mrqa_natural_questions` and `mrqa_squad` for training, and six others only for evaluation. All are
read from FOLDER/mrqa/train.jsonl and validation.jsonl (the six from test.jsonl), in the schema of
Hugging Face's mrqa, whose field `subset` names the set of a row. The spans are MRQA's
`detected_answers`, the right answers its `answers`; text keeps its punctuation.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw

NO_ANSWER = "unanswerable"

# RE2, which T5's code uses, only has ASCII characters in these classes.
_NO_WORD = re.compile(r"([^0-9A-Za-z_])")
_BLANKS = re.compile(r"[\t\n\f\r ]+")


def spaced(text: str) -> str:
    """Put spaces around each character that is not an ASCII letter, digit or underscore."""
    return _BLANKS.sub(" ", _NO_WORD.sub(r" \1 ", text))


def _spaced(raw: Raw) -> Iterable[Raw]:
    answers = benchmark.value(raw, "answers.text")
    if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
        raise ValueError(f"answers.text={answers!r:.80} must be a list of strings.")
    # Strip the spaces that would double the template's spaces between the parts.
    question = spaced(benchmark.text(raw, "question")).strip(" ")
    context = spaced(benchmark.text(raw, "context")).lstrip(" ")
    own = [spaced(one) for one in answers] or [NO_ANSWER]
    return [{"question": question, "context": context, "answers": own, "target": own[0]}]


def _answered(raw: Raw) -> Raw:
    if not benchmark.value(raw, "answers.text"):
        raise ValueError("answers.text is empty: squad_v2 has questions without an answer.")
    return raw


_SQUAD = Benchmark(
    inputs="question: {question} context: {context}",
    targets="{target}",
    answers="answers",
    kind="question_answering",
    text_a="{question}",
    text_b="{context}",
    prepare=_answered,
    for_text=_spaced,
    metrics=("exact_match", "f1"),
    prepared="squad/v1.1:3.0.0",
)


def _detected(raw: Raw) -> Raw:
    """Take the first place of each detected answer of a row of MRQA; the last character counts."""
    context, places = benchmark.text(raw, "context"), []
    for spans in benchmark.value(raw, "detected_answers.char_spans") or ():
        start, end = (benchmark.value(spans, name)[0] for name in ("start", "end"))
        places.append((context[start : end + 1], start))
    if not places:
        raise ValueError("detected_answers.char_spans is empty: each question has an answer.")
    texts, starts = zip(*places, strict=True)
    spans = {"text": [*texts], "answer_start": [*starts]}
    return {**raw, "id": raw.get("qid", ""), "spans": spans, "target": texts[0]}


def _is_of(subset: str, raw: Raw) -> bool:
    return benchmark.text(raw, "subset") == subset


def _mrqa(subset: str, **splits: str) -> Benchmark:
    return dataclasses.replace(
        _SQUAD,
        answers="spans",
        prepare=_detected,
        for_text=lambda raw: [{**raw, "spans": benchmark.texts(raw, "answers")}],
        included=functools.partial(_is_of, subset),
        folder="mrqa",
        splits=splits,
        prepared="",
    )


_TRAINED = {"train": "train", "validation": "validation"}
_MRQA = {
    **{
        name: _mrqa(subset, **_TRAINED)
        for name, subset in (
            ("mrqa_newsqa", "NewsQA"),
            ("mrqa_triviaqa", "TriviaQA-web"),
            ("mrqa_searchqa", "SearchQA"),
            ("mrqa_hotpotqa", "HotpotQA"),
            ("mrqa_natural_questions", "NaturalQuestionsShort"),
            ("mrqa_squad", "SQuAD"),
        )
    },
    **{
        name: _mrqa(subset, validation="test")
        for name, subset in (
            ("mrqa_bioasq", "BioASQ"),
            ("mrqa_drop", "DROP"),
            ("mrqa_duorc", "DuoRC.ParaphraseRC"),
            ("mrqa_race", "RACE"),
            ("mrqa_relation_extraction", "RelationExtraction"),
            ("mrqa_textbookqa", "TextbookQA"),
        )
    },
}

_SUITE = Suite(
    {
        "squad": _SQUAD,
        "squad_v2": dataclasses.replace(_SQUAD, prepare=None, prepared="squad/v2.0:3.0.0"),
        **_MRQA,
    }
)
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
