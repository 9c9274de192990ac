r"""MASS in several languages, and translation without pairs by back-translation.

    python -m t5x_like.train --config=configs/multilingual_mass.py:big \
        --config.workdir=runs/two_languages --config.data.vocabulary=vocab.txt

Sizes: `big`, `big_denoising`, `big_bert_lm`, `big_back_translation`, `big_pairs`, and the same with
`demo`.

| Song et al. 2019, sections 4.1 and 4.2 | here |
|---|---|
| pretraining on texts of two languages in turn | `big`: a task for each language |
| denoising instead (the DAE of table 3) | `big_denoising`: tokens shuffled, dropped and masked |
| BERT for the encoder, a language model for the decoder (BERT+LM) | `big_bert_lm`: loss.bert_lm |
| language embeddings | model.languages; source_language and target_language of a task's `loss` |
| back-translation, on the fly | `big_back_translation`: loss.back_translation |
| pairs (section 4.2, low resource) | `big_pairs` |
| Adam, 1e-4, as in configs/mass.py | optimizer |

`big` reads JSON Lines with a field "text" in corpora/first/*.jsonl and corpora/second/*.jsonl, a
sentence each, and pairs with "inputs" (first) and "targets" (second) in corpora/pairs.jsonl. The
vocabulary is of both languages, with a mask token.

The demo reads the generated languages "north" and "south" (docs/languages.md), whose dictionary is
hidden:

    python -m t5x_like.vocabulary --data=data/languages/dictionary.py --kind=wordpiece --size=400 \
        --output=runs/dictionary/vocab.txt
    python -m t5x_like.train --config=configs/multilingual_mass.py:demo
    python -m t5x_like.train --config=configs/multilingual_mass.py:demo_back_translation
    python -m t5x_like.evaluate --config=configs/multilingual_mass.py:demo_pairs \
        --config.initialize=runs/multilingual_mass_demo_back_translation --config.workdir=

The last command measures translations of held-out sentences from north to south. With N pairs,
after back-translation or (`initialize`) instead of it:

    python -m t5x_like.train --config=configs/multilingual_mass.py:demo_pairs \
        --config.initialize=runs/multilingual_mass_demo_back_translation \
        --config.data.settings.documents=N
"""

from typing import Any

import ml_collections

from configs import mass
from t5x_like.experiment import recipes
from t5x_like.systems import multilingual_mass

_ENDS = ("denoising", "bert_lm", "back_translation", "pairs")
_MASKED = {"drop_rate": 0.0, "mask_rate": 0.15, "shuffle": 0.0}
# 38 words, of which two fifths are the same in both languages.
_RELATED = {"words": 0.35, "shared": 0.4, "preference": 2.0}
_WHOLE = {"rate": 1.0, "tokens": 0, "random_rate": 0.0, "kept_rate": 0.0}


def get_config(size: str = "big") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    scale, _, kind = size.partition("_")
    recipes.check_size(
        "multilingual_mass", size, [one + end for one in ("big", "demo") for end in _names()]
    )
    config = mass.get_config(scale)
    config.system = "multilingual_mass"
    languages = {
        name: value
        for name, value in multilingual_mass.SIZES["big"].items()
        if name not in config.model
    }
    config.model.update(languages)
    config.workdir = f"runs/multilingual_mass_{size}"
    if kind in ("back_translation", "pairs"):
        config.initialize = f"runs/multilingual_mass_{scale}"
    _read(config, demo=scale == "demo")
    if kind == "pairs":
        _pairs(config, demo=scale == "demo")
    else:
        config.tasks = _tasks(kind, demo=scale == "demo")
    return config


def _names() -> list[str]:
    return ["", *(f"_{end}" for end in _ENDS)]


def _read(config: ml_collections.ConfigDict, *, demo: bool) -> None:
    config.data.module = "data/languages/dictionary.py" if demo else "data/text_files.py"
    config.data.settings = {"sentences": 1} | _RELATED if demo else {"files": ""}
    config.data.pack = False
    if demo:
        config.data.vocabulary = "runs/dictionary/vocab.txt"
        config.data.lengths = {"inputs": 10, "targets": 10}
        config.data.batch_size = 32
        config.decode = {"max_new_tokens": 10}
        config.model.update({"vocab_size": 400, "positions": 16, "d_model": 64, "d_ff": 256})
        config.model.update({"encoder_layers": 1, "decoder_layers": 1})


def _pairs(config: ml_collections.ConfigDict, *, demo: bool) -> None:
    config.data.task = "pairs" if demo else "text_files"
    if not demo:
        config.data.settings = {
            "files": "corpora/pairs.jsonl",
            "inputs": "inputs",
            "targets": "targets",
        }
    config.data.objective = "text_to_text"
    config.data.objective_settings = {}
    config.data.converter = "encoder_decoder"


def _tasks(kind: str, *, demo: bool) -> dict[str, Any]:
    """Return a task for each language, whose target is a text of this language."""
    tasks = {}
    for number, name in enumerate(("north", "south") if demo else ("first", "second")):
        data: dict[str, Any] = {"task": name if demo else "text_files"}
        if not demo:
            data["settings"] = {"files": f"corpora/{name}/*.jsonl", "text": "text"}
        source = number
        if kind == "denoising":
            data |= {"objective": "dae", "objective_settings": {}, "converter": "encoder_decoder"}
        if kind == "bert_lm":
            data |= {"objective": "dae", "objective_settings": _MASKED}
            data["converter"] = "encoder_decoder"
        if kind == "back_translation":  # the decoder's rows are whole sentences
            data["objective_settings"] = _WHOLE
            source = 1 - number
        loss: dict[str, Any] = {"source_language": source, "target_language": number}
        loss |= {"back_translation": source != number, "bert_lm": kind == "bert_lm"}
        tasks[name] = {"data": data, "loss": loss}
    return tasks
