"""Summaries: CNN/DailyMail (Hermann et al. 2015, See et al. 2017) and XSum (Narayan et al. 2018).

    --config.data.module=data/summarization.py --config.data.task=cnn_dailymail
    --config.data.settings="{'folder': 'summaries'}"

They are read from FOLDER/cnn_dailymail/train.jsonl, FOLDER/xsum/train.jsonl and so on, in the
schema of Hugging Face (abisee/cnn_dailymail, EdinburghNLP/xsum), or from the output of
`tfds build cnn_dailymail`. Each has a twin that validates on the test set: `xsum_test`. Rows are
kept in memory, 1.3 GB for CNN/DailyMail. The tasks have no labelled form. docs/tasks.md has all
settings.
"""

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite


def _summaries(document: str, summary: str, prepared: str) -> Benchmark:
    return Benchmark(
        inputs=f"summarize: {{{document}}}",
        targets=f"{{{summary}}}",
        metrics=("rouge_1", "rouge_2", "rouge_l", "rouge_lsum"),
        test="test",
        prepared=prepared,
    )


SUMMARIES = {
    "cnn_dailymail": _summaries("article", "highlights", "cnn_dailymail:3.4.0"),
    "xsum": _summaries("document", "summary", "xsum:1.1.0"),
}

_SUITE = Suite(SUMMARIES, mixture="summarization", mixed=tuple(SUMMARIES))
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
