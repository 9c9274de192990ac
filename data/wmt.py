r"""The translation sets of WMT, as TensorFlow Datasets prepares them: `wmt14_translate` and others.

    tfds build wmt14_translate/de-en          from statmt.org, in hours on one machine
    --config.data.module=data/wmt.py --config.data.task=wmt14_en_de
    --config.data.objective=translation
    --config.data.settings.target=fr --config.data.task=wmt14_en_fr

Nothing is ever downloaded: prepare the data set first, or set `data_dir` to a folder that contains
it (any gs:// path works).

| year | languages beside `en` |
|---|---|
| 13 | cs, de, es, fr, ru |
| 14 | cs, de, fr, hi, ru |
| 15 | cs, de, fi, fr, ru |
| 16 | cs, de, fi, ro, ru, tr |
| 17 | cs, de, fi, lv, ru, tr, zh |
| 18 | cs, de, et, fi, ru, tr, zh |
| 19 | cs, de, fi, gu, kk, lt, ru, zh, and fr with de |

The validation split is newstest of the year before. Each task has a twin whose validation split is
the test set (except in 19): `--config.evaluate.tasks="('wmt14_en_de_test',)"` measures on
newstest2014.

To train the vocabulary that both languages share:

    python -m t5x_like.vocabulary --data=data/wmt.py --set source=en --set target=de --size=36900 \
        --limit_chars=200000000 --output=vocabulary.model
"""

from collections.abc import Mapping

import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like.names import choose
from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import PreparedSource
from t5x_like.vocabularies import Vocabulary

_SPLITS = {"train": "train", "validation": "validation"}
_YEARS = range(13, 20)


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    year: int = 14,
    source: str = "en",
    target: str = "de",
    version: str = "1.0.0",
    data_dir: str | None = None,
) -> None:
    """Add the tasks `wmt<year>_<source>_<target>` and `wmt<year>_<source>_<target>_test`.

    Args:
        vocabulary: the vocabulary of both languages.
        objective: `translation`, or another objective of pairs.
        year: year of the shared task, 13 to 19.
        source, target: the languages to translate from and into.
        version: version of the prepared data.
        data_dir: the folder of prepared data sets; None: `~/tensorflow_datasets`.

    Raises:
        ValueError: an unknown year or pair of languages. Missing data is an error when a task is
            read.
    """
    for ending, splits in (("", _SPLITS), ("_test", _SPLITS | {"validation": "test"})):
        sources.add_pair_task(
            f"wmt{year}_{source}_{target}{ending}",
            source=_Directed(
                splits, year=year, languages=(source, target), version=version, data_dir=data_dir
            ),
            vocabulary=vocabulary,
            objective=objective,
        )


def documents(
    split: str,
    *,
    year: int = 14,
    source: str = "en",
    target: str = "de",
    version: str = "1.0.0",
    data_dir: str | None = None,
) -> tf.data.Dataset:
    """Return both sides of the pairs of a split, one after the other, {"text": scalar string}."""
    directed = _Directed(
        _SPLITS, year=year, languages=(source, target), version=version, data_dir=data_dir
    )
    return sources.both_sides(directed, choose("split", split, _SPLITS))


class _Directed(PreparedSource):
    """A prepared pair of languages, read as {"inputs", "targets"} in one direction."""

    def __init__(
        self,
        splits: Mapping[str, str],
        *,
        year: int,
        languages: tuple[str, str],
        version: str,
        data_dir: str | None,
    ):
        self._languages = languages
        super().__init__(
            f"wmt{year}_translate/{_pair(year, languages)}:{version}",
            splits=splits,
            data_dir=data_dir,
            advice="in hours on one machine, most of it download.",
        )

    def get_dataset(self, split: str = "train", *args, **kwargs) -> tf.data.Dataset:
        """Return the pairs of a split; raise ValueError if the data is missing."""
        source, target = self._languages
        return (
            super()
            .get_dataset(split, *args, **kwargs)
            .map(lambda pair: {"inputs": pair[source], "targets": pair[target]})
        )


def _pair(year: int, languages: tuple[str, str]) -> str:
    """Return the name of the data set for a pair of languages in either order."""
    choose("year", str(year), {str(known): known for known in _YEARS})
    configs = tfds.builder_cls(f"wmt{year}_translate").BUILDER_CONFIGS
    known = {"-".join(config.language_pair): config.name for config in configs}
    known |= {"-".join(reversed(config.language_pair)): config.name for config in configs}
    return choose("source-target", "-".join(languages), known)
