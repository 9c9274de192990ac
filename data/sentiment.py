"""Sentiment: IMDb (Maas et al. 2011) and SST-5 (Socher et al. 2013).

    --config.data.module=data/sentiment.py --config.data.task=imdb
    --config.data.settings="{'folder': 'sentiment'}"

`imdb` and `sst5` are read from FOLDER/imdb/train.jsonl and so on, in the schema of Hugging Face:
stanfordnlp/imdb (text, label; huggingface/datasets, datasets/imdb/imdb.py) and SetFit/sst5 (text,
label, label_text), IMDb also from the output of `tfds build imdb_reviews`. IMDb is published
without a validation set: the test set validates. To hold out training rows shuffle them first,
since the file is sorted by label. docs/tasks.md has all settings. The text form has the layout of
T5's SST-2.
"""

from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite


def _reviews(name: str, *labels: str, **more: Any) -> Benchmark:
    return Benchmark(
        inputs=f"{name} sentence: {{text}}",
        targets="{label}",
        kind="classification",
        text_a="{text}",
        labels=labels,
        **more,
    )


SENTIMENT = {
    "imdb": _reviews(
        "imdb",
        "negative",
        "positive",
        splits={"train": "train", "validation": "test"},
        prepared="imdb_reviews/plain_text:1.0.0",
    ),
    "sst5": _reviews(
        "sst5", "very negative", "negative", "neutral", "positive", "very positive", test="test"
    ),
}

_SUITE = Suite(SENTIMENT)
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
