"""Summaries: CNN/DailyMail, XSum, Gigaword, arXiv, PubMed and BigPatent.

    --config.data.module=data/summarization.py --config.data.task=cnn_dailymail
    --config.data.settings="{'folder': 'summaries'}"

`cnn_dailymail` (Hermann et al. 2015, See et al. 2017), `xsum` (Narayan et al. 2018), `gigaword`
(Rush et al. 2015), `arxiv` and `pubmed` (Cohan et al. 2018) and `big_patent` (Sharma et al. 2019)
are read from FOLDER/cnn_dailymail/train.jsonl, FOLDER/xsum/train.jsonl and so on, in the schema of
Hugging Face (abisee/cnn_dailymail, EdinburghNLP/xsum, Harvard/gigaword, armanc/scientific_papers,
NortheasternUniversity/big_patent; the fields are in the dataset scripts of huggingface/datasets,
such as datasets/scientific_papers/scientific_papers.py), or from the output of
`tfds build cnn_dailymail`. The mixture `summarization` has the first two. Each has a twin that
validates on the test set: `xsum_test`. Rows are kept in memory, 1.3 GB for CNN/DailyMail; name a
part of a larger file, {'train': 'train[:100000]'}, in `data.settings.splits`. The tasks have no
labelled form. docs/tasks.md has all settings.
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
    "gigaword": _summaries("document", "summary", "gigaword:1.2.0"),
    "arxiv": _summaries("article", "abstract", "scientific_papers/arxiv:1.1.1"),
    "pubmed": _summaries("article", "abstract", "scientific_papers/pubmed:1.1.1"),
    "big_patent": _summaries("description", "abstract", "big_patent/all:2.1.2"),
}

_SUITE = Suite(SUMMARIES, mixture="summarization", mixed=("cnn_dailymail", "xsum"))
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
