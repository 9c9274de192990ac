"""Pairs and claims with a class: SNLI, SciTail, ANLI, XNLI and FEVER.

    --config.data.module=data/entailment.py --config.data.task=snli
    --config.data.settings="{'folder': 'entailment'}"

`snli` (Bowman et al. 2015), `scitail` (Khot et al. 2018), `anli_r1` to `anli_r3` and their mixture
`anli` (Nie et al. 2020), `xnli_ar`, ..., `xnli_zh` (Conneau et al. 2018) and `fever` (Thorne et al.
2018). They are read from FOLDER/snli/train.jsonl and so on, in the schema of Hugging Face:

- stanfordnlp/snli: premise, hypothesis, label. Pairs without a majority label have -1, and are left
  out, as in the paper.
- allenai/scitail, tsv_format: premise, hypothesis, label ("entails" or "neutral").
- facebook/anli: premise, hypothesis, label, in the splits train_r1, dev_r1, test_r1 and so on,
  which are the names of the files in FOLDER/anli.
- facebook/xnli, one configuration for each language: premise, hypothesis, label. Training pairs
  are MNLI's, machine translated.
- facebook/kilt_tasks, fever: input (the claim) and output (its answer, SUPPORTS or REFUTES), one
  row for each claim (Petroni et al. 2021). The claim is judged without evidence.

The schemas are in the dataset scripts of huggingface/datasets, such as datasets/snli/snli.py. SNLI
and SciTail are also read from the output of `tfds build snli` and `tfds build sci_tail`.
docs/tasks.md has all settings. The text form has MNLI's layout, except for XNLI's, which is as in
mT5's released code (google-research/multilingual-t5, preprocessors.process_xnli), whose targets are
the numbers of the labels.
"""

from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import Raw

_NLI = ("entailment", "neutral", "contradiction")
_LANGUAGES = (
    "ar",
    "bg",
    "de",
    "el",
    "en",
    "es",
    "fr",
    "hi",
    "ru",
    "sw",
    "th",
    "tr",
    "ur",
    "vi",
    "zh",
)


def _pair(inputs: str, *labels: str, **more: Any) -> Benchmark:
    return Benchmark(
        inputs=inputs,
        targets="{label}",
        kind="classification",
        text_a="{premise}",
        text_b="{hypothesis}",
        labels=labels,
        **{"test": "test", **more},
    )


def _after_hypothesis(name: str, *labels: str, **more: Any) -> Benchmark:
    return _pair(f"{name} hypothesis: {{hypothesis}} premise: {{premise}}", *labels, **more)


def _has_majority(raw: Raw) -> bool:
    return raw.get("label") != -1


def _anli(number: int) -> Benchmark:
    splits = {"train": f"train_r{number}", "validation": f"dev_r{number}"}
    test = f"test_r{number}"
    return _after_hypothesis("anli", *_NLI, splits=splits, test=test, folder="anli")


def _with_verdict(raw: Raw) -> Raw:
    """Add the answer to a claim as its label; the rows of the hidden test set have no answer."""
    output = benchmark.value(raw, "output")
    if not isinstance(output, list):
        raise ValueError(f"output={output!r:.80} must be a list of answers.")
    return {**raw, "label": benchmark.text(output[0], "answer") if output else ""}


ENTAILMENT = {
    "snli": _after_hypothesis("snli", *_NLI, included=_has_majority, prepared="snli:1.1.0"),
    "scitail": _after_hypothesis("scitail", "entails", "neutral", prepared="sci_tail:1.0.0"),
    **{f"anli_r{number}": _anli(number) for number in (1, 2, 3)},
    **{
        f"xnli_{language}": _pair("xnli: premise: {premise} hypothesis: {hypothesis}", *_NLI)
        for language in _LANGUAGES
    },
    "fever": Benchmark(
        inputs="fever claim: {input}",
        targets="{label}",
        kind="classification",
        text_a="{input}",
        labels=("SUPPORTS", "REFUTES"),
        prepare=_with_verdict,
    ),
}

_SUITE = Suite(ENTAILMENT, mixture="anli", mixed=("anli_r1", "anli_r2", "anli_r3"))
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
