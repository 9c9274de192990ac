"""GLUE (Wang et al. 2019): nine tasks and the diagnostic set, as text to text and labelled.

    --config.data.module=data/glue.py --config.data.task=glue_cola
    --config.data.settings="{'folder': 'glue'}"

The tasks are `glue_cola`, `glue_sst2`, ...; `glue` is their mixture for text to text, proportional
to the number of examples, without WNLI, as in T5's released code. `folder` has GLUE as Hugging Face
hosts it (nyu-mll/glue), glue/cola/train.jsonl and so on; without it the output of
`tfds build glue/cola` is read. docs/tasks.md has all fields and settings.

`glue_wnli_as_wsc` is T5's treatment of WNLI, without training on it: the rows to evaluate are
written as rows of WSC, on which a model is trained in SuperGLUE.

The label of STS-B is rounded to multiples of 0.2, "2.6" (Raffel et al. 2020, section 2.4). The
diagnostic set, `glue_ax`, has MNLI's prefix and no training split; it can only be measured if its
file has labels (Hugging Face's does not).
"""

from typing import Any

import numpy as np

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Submission, Suite
from t5x_like.preprocessing.benchmark_tasks.benchmark import text
from t5x_like.preprocessing.benchmark_tasks.pronouns import marked_pronoun

_NLI = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = "sentence1: {sentence1} sentence2: {sentence2}"


def _sentence(name: str, *labels: str, **more: Any) -> Benchmark:
    return Benchmark(
        inputs=f"{name} sentence: {{sentence}}",
        targets="{label}",
        kind="classification",
        text_a="{sentence}",
        labels=labels,
        prepared=f"glue/{name}:2.0.0",
        **more,
    )


def _pair(name: str, shown: str, first: str, second: str, *labels: str, **more: Any) -> Benchmark:
    """Define a pair: its text in the inputs, and the two fields in the order of an encoder."""
    settings = {"prepared": f"glue/{name}:2.0.0", **more}
    return Benchmark(
        inputs=f"{name} {shown}",
        targets="{label}",
        kind="classification",
        text_a=f"{{{first}}}",
        text_b=f"{{{second}}}",
        labels=labels,
        **settings,
    )


def _nli(**more: Any) -> Benchmark:
    shown = "hypothesis: {hypothesis} premise: {premise}"
    return _pair("mnli", shown, "premise", "hypothesis", *_NLI, **more)


def _round(raw: Any) -> Any:
    """Add the nearest multiple of 0.2 as text, in the arithmetic of T5's code: 32 bits."""
    value = raw.get("label")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 5:
        raise ValueError(f"label={value!r} must be a number from 0 to 5.")
    fifths = np.round(np.float32(value) * np.float32(5)) / np.float32(5)
    return {**raw, "rounded": f"{fifths:.1f}"}


def _as_wsc(raw: Any) -> Any:
    """Mark the pronoun of sentence1, and add the noun that replaces it in sentence2."""
    marked, noun = marked_pronoun(text(raw, "sentence1"), text(raw, "sentence2"))
    return {**raw, "marked": marked, "noun": noun}


GLUE = {
    "cola": _sentence("cola", "unacceptable", "acceptable", metrics=("matthews",)),
    "sst2": _sentence("sst2", "negative", "positive"),
    "mrpc": _pair(
        "mrpc",
        _PAIR,
        "sentence1",
        "sentence2",
        "not_equivalent",
        "equivalent",
        metrics=("f1_binary", "accuracy"),
        positive="equivalent",
        test="test",
    ),
    "qqp": _pair(
        "qqp",
        "question1: {question1} question2: {question2}",
        "question1",
        "question2",
        "not_duplicate",
        "duplicate",
        metrics=("f1_binary", "accuracy"),
        positive="duplicate",
    ),
    "stsb": Benchmark(
        inputs=f"stsb {_PAIR}",
        targets="{rounded}",
        kind="regression",
        text_a="{sentence1}",
        text_b="{sentence2}",
        prepare=_round,
        metrics=("pearson", "spearman"),
        prepared="glue/stsb:2.0.0",
    ),
    "mnli": _nli(splits={"train": "train", "validation": "validation_matched"}),
    "mnli_mismatched": _nli(
        splits={"train": "train", "validation": "validation_mismatched"}, folder="mnli"
    ),
    "qnli": _pair(
        "qnli",
        "question: {question} sentence: {sentence}",
        "question",
        "sentence",
        *_ENTAILMENT,
    ),
    "rte": _pair("rte", _PAIR, "sentence1", "sentence2", *_ENTAILMENT),
    "wnli": _pair("wnli", _PAIR, "sentence1", "sentence2", "not_entailment", "entailment"),
    "wnli_as_wsc": Benchmark(
        inputs="wsc: {marked}",
        targets="{noun}",
        labels=("False", "True"),
        prepare=_as_wsc,
        metrics=("referent",),
        group="{label}",
        splits={"validation": "validation"},
        folder="wnli",
        prepared="glue/wnli:2.0.0",
    ),
    "ax": _nli(splits={"validation": "test"}, prepared="glue/ax:2.0.0", metrics=("matthews",)),
}

MIXED = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")

# The files that gluebenchmark.com accepts.
SUBMISSIONS = {
    "cola": Submission(file="CoLA.tsv", form="number"),
    "sst2": Submission(file="SST-2.tsv", form="number"),
    "mrpc": Submission(file="MRPC.tsv", form="number"),
    "stsb": Submission(file="STS-B.tsv", form="value"),
    "qqp": Submission(file="QQP.tsv", form="number"),
    "mnli": Submission(file="MNLI-m.tsv", form="name", split="test_matched"),
    "mnli_mismatched": Submission(file="MNLI-mm.tsv", form="name", split="test_mismatched"),
    "qnli": Submission(file="QNLI.tsv", form="name"),
    "rte": Submission(file="RTE.tsv", form="name"),
    "wnli": Submission(file="WNLI.tsv", form="number"),
    "wnli_as_wsc": Submission(file="WNLI.tsv", form="referent"),
    "ax": Submission(file="AX.tsv", form="name"),
}

_SUITE = Suite(GLUE, prefix="glue_", mixture="glue", mixed=MIXED, submissions=SUBMISSIONS)
register, documents = _SUITE.register, _SUITE.documents
labels, measure, hidden_test = _SUITE.labels, _SUITE.measure, _SUITE.hidden_test
