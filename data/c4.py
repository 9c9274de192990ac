r"""C4 and mC4, as TensorFlow Datasets prepares them: the corpora of T5 and mT5.

    --config.data.module=data/c4.py --config.data.task=c4_en
    --config.data.settings.config=multilingual --config.data.settings.languages="('de','fr')"
        --config.data.task=mc4             the languages mixed; each is also a task: mc4_de

Nothing is read when the tasks are registered. C4 has to be prepared first, in one of four ways:

1. By Apache Beam, from Common Crawl (7 TB of traffic: on Google's Dataflow, hundreds of workers
   take a day; https://www.tensorflow.org/datasets/beam_datasets):

       pip install apache-beam
       tfds build c4/en --data_dir=gs://YOUR_BUCKET/tensorflow_datasets \
           --beam_pipeline_options="runner=DataflowRunner,project=...,region=...,..."

2. By copying a prepared folder `c4/en/3.1.0` of TFRecord files, with the folder that contains `c4`
   as `data_dir` (any gs:// path works). For another release than 3.1.0 set
   `--config.data.settings.version=3.0.1`.

3. As JSON lines: Hugging Face hosts the 305 GB of `en` in 1,024 files (dataset allenai/c4):

       hf download allenai/c4 --repo-type dataset --include "en/*.json.gz" --local-dir c4
       --config.data.module=data/text_files.py --config.data.task=text_files
       --config.data.settings.files="c4/en/c4-train.*.json.gz"
       --config.data.settings.validation_files="c4/en/c4-validation.*.json.gz"

4. From WET or WARC files of a crawl: data/filters/clean_pages.py on one machine,
   data/filters/clean_pages_beam.py by Apache Beam. data/text_files.py reads its files, as in 3, and
   holds pages out by their text.

The validation split is C4's: the pages whose URL falls into one of a thousand hash buckets. In `en`
no line occurs twice, so hardly any of its text is in both splits. (The paper describes spans of
three sentences; c4_utils.remove_duplicate_text, which made C4, compares lines.)
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow_datasets.text import c4

from t5x_like.names import choose
from t5x_like.preprocessing import mixtures, sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import PreparedSource
from t5x_like.vocabularies import Vocabulary

MULTILINGUAL = "multilingual"
CONFIGS = ("en", "en.noclean", "realnewslike", "webtextlike", MULTILINGUAL)

# mT5 samples a language in proportion to its number of pages to this power.
_ALPHA = 0.3


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    config: str = "en",
    languages: Sequence[str] = (),
    version: str = "3.1.0",
    data_dir: str | None = None,
) -> None:
    """Add the task `c4_<config>`, or for the multilingual config `mc4_<language>` and a mixture.

    The mixture `mc4` samples languages at temperature 3.33, as mT5 does (Xue et al. 2021, section
    3.2).

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns the documents into examples.
        config: the version of C4, one of `CONFIGS`.
        languages: languages of the multilingual config, such as "de"; all 107 if empty.
        version: version of the prepared data.
        data_dir: the folder of prepared data sets; None: `~/tensorflow_datasets`.

    Raises:
        ValueError: an unknown config or language. Missing data is an error when a task is read.
    """
    tasks = _splits(config=config, languages=languages)
    for name, splits in tasks.items():
        sources.add_document_task(
            name,
            source=_prepared(splits, config=config, version=version, data_dir=data_dir),
            vocabulary=vocabulary,
            objective=objective,
        )
    if config == MULTILINGUAL:
        mixtures.mixture("mc4", list(tasks), rate=mixtures.temperature(1 / _ALPHA, limit=None))


def documents(
    split: str,
    *,
    config: str = "en",
    languages: Sequence[str] = (),
    version: str = "3.1.0",
    data_dir: str | None = None,
) -> tf.data.Dataset:
    """Return the documents of a split, {"text": scalar string}, alternating between languages."""
    datasets = [
        _prepared(splits, config=config, version=version, data_dir=data_dir)
        .get_dataset(choose("split", split, {known: known for known in splits}), shuffle=False)
        .map(lambda page: {"text": page["text"]})
        for splits in _splits(config=config, languages=languages).values()
    ]
    return tf.data.Dataset.choose_from_datasets(
        datasets, tf.data.Dataset.range(len(datasets)).repeat(), stop_on_empty_dataset=False
    )


def _prepared(
    splits: Mapping[str, str], *, config: str, version: str, data_dir: str | None
) -> PreparedSource:
    return PreparedSource(
        f"c4/{config}:{version}",
        splits=splits,
        data_dir=data_dir,
        advice="in a day on hundreds of workers; data/c4.py describes how to copy it instead, or "
        "to read it as JSON lines.",
    )


def _splits(*, config: str, languages: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return {task: {our split: split of the prepared data}}."""
    choose("config", config, {known: known for known in CONFIGS})
    if config != MULTILINGUAL:
        if languages:
            raise ValueError(f"languages={languages!r} needs config={MULTILINGUAL!r}.")
        return {f"c4_{config}": {"train": "train", "validation": "validation"}}
    allowed = {known: known for known in c4.MC4_LANGUAGES}
    chosen = [languages] if isinstance(languages, str) else languages or c4.MC4_LANGUAGES
    return {
        # Names in seqio have no hyphens, which occur in "hi-Latn".
        f"mc4_{choose('language', language, allowed).replace('-', '_')}": {
            "train": language,
            "validation": f"{language}-validation",
        }
        for language in chosen
    }
