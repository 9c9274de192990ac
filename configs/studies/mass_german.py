"""English to German with few pairs, or none: MASS or no pretraining.

    python -m t5x_like.study mass_german

Song et al. 2019, section 4.2: with 10,000, 100,000 and 1,000,000 pairs a network pretrained by MASS
translates better than one without pretraining. Here the sentences are from a small grammar
(data/tiny_german.py), where each has one translation. The texts of English are from other pairs
than the texts of German. An optimal translator has a BLEU of 100; of 1,500 German sentences the
best, as the translation of every sentence, has 1.6.

| the paper | here |
|---|---|
| News Crawl, English and German | 14,700 generated sentences of each language, 217 words |
| 6 + 6 layers, 1024 wide | 1 + 1 layers, 64 wide |
| 100 epochs at most | pretraining: 2,400 batches of some 35 sentences |
| 10,000, 100,000 and 1,000,000 pairs | 300 and 1,000 pairs, 1,200 batches |
| BLEU | BLEU of greedy translations of 611 held-out sentences |

A difference of 1 BLEU does not matter. Pilots had seed 0. After 800 batches of pretraining, and
with 100 pairs, MASS reached a BLEU of 3; the loss in pretraining still fell. After 2,400, with
1,000 pairs and 800 batches, MASS reached 97 and no pretraining 74, whose training loss still fell:
so all have 1,200.

Against the paper, with 300 pairs MASS is worse with each of three seeds, by 7 to 81 BLEU, too
different to decide. A likely reason is the language. Nouns of a gender have the same contexts, so
that pretraining makes their embeddings nearly equal: the mean cosine between German nouns of a
gender, around the mean of all, is 0.93 after pretraining, and 0.17 after 300 pairs without
pretraining (seed 0). Such a network learns 300 pairs by heart before it tells the words apart. In
mass_pairs each word prefers some neighbours, and MASS helps with the fewest pairs.

`mass_0` has no pairs, but 300 batches of back-translation, one seed and no claim: the texts do not
tell which noun of a gender, or which adjective, is whose translation (docs/systems/mass.md).
"""

import dataclasses
from typing import Any

from configs.studies import mass_pairs
from t5x_like.research.studies import Arm, Learned, OutcomeMeasure, Study, TrainingRun

_VOCABULARY = "runs/studies/tiny_german_wordpiece_530.txt"
_PRETRAINING, _BACK_TRANSLATION, _PAIRS = 2400, 300, 1200
_NUMBERS = (300, 1000)
_SETTING = "data.settings.training_pairs"
_READ = {
    "data.module": "data/tiny_german.py",
    "data.settings": {},
    "data.vocabulary": _VOCABULARY,
    "model.vocab_size": 530,
    "model.positions": 64,
}
# `north` and `south` are the names of the demo's two languages.
_TEXTS = {"tasks.north.data.task": "tiny_german_en", "tasks.south.data.task": "tiny_german_de"}
_PACKED = {"data.pack": True, "data.batch_size": 8}


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="English to German with few pairs by MASS",
        source="Song et al. 2019, section 4.2",
        needs={
            _VOCABULARY: "t5x_like.vocabulary --data=data/tiny_german.py --kind=wordpiece "
            f"--keep_case --size=530 --limit_chars=500000 --output={_VOCABULARY}"
        },
        runs=_runs(),
        arms=_arms(),
        measures={"bleu": OutcomeMeasure(run="pairs", number="tiny_german/translation/bleu")},
        learned=(Learned(arm="none_1000", measure="bleu", than=1.6, what="a constant sentence"),),
        claims=mass_pairs.claims(_NUMBERS),
        curve=mass_pairs.curve(_NUMBERS),
    )


def _runs() -> dict[str, TrainingRun]:
    mass = {
        **_PACKED,
        "data.lengths": {"inputs": 64, "targets": 32},
        "train.steps": _PRETRAINING,
        "evaluate.every": 0,
    }
    back_translation = {
        "data.lengths": {"inputs": 32, "targets": 32},
        "train.steps": _BACK_TRANSLATION,
        "evaluate.every": 0,
    }
    pairs = {
        **_PACKED,
        "data.task": "tiny_german",
        "data.lengths": {"inputs": 64, "targets": 64},
        "decode.max_new_tokens": 32,
        "evaluate.batches": 0,
        **mass_pairs.measured(_PAIRS),
    }

    def run(size: str, changes: dict[str, Any], starts_from: str = "") -> TrainingRun:
        return TrainingRun(
            config=f"{mass_pairs.CONFIG}:{size}",
            changes={**_READ, **changes},
            starts_from=starts_from,
        )

    return {
        "mass": run("demo", {**_TEXTS, **mass}),
        "back_translation": run("demo_back_translation", {**_TEXTS, **back_translation}, "mass"),
        "pairs": run("demo_pairs", pairs, "mass"),
    }


def _arms() -> dict[str, Arm]:
    arms = {
        name: dataclasses.replace(arm, leaves_out=(*arm.leaves_out, "back_translation"))
        for name, arm in mass_pairs.arms(_NUMBERS, _SETTING).items()
    }
    arms["mass_0"] = Arm(
        changes={"pairs": mass_pairs.measured_at_start()},
        part="Back-translation, no pairs",
        starts_from={"pairs": "back_translation"},
    )
    return arms
