"""An encoder fine-tuned on labelled text, for any system.

    python -m t5x_like.train --config=configs/fine_tuning.py:classification \
        --config.initialize=bert-base-uncased --config.workdir=runs/reviews \
        --config.data.settings.train=reviews.jsonl --config.train.steps=3000

`initialize` is a model of Hugging Face's hub (`google-bert/bert-base-uncased`), a folder in its
format (`hf download google-bert/bert-base-uncased --local-dir=bert-base-uncased`), a run, or a
checkpoint. The system, its sizes and the vocabulary
come from there; the head is randomly initialized. data/labelled_files.py describes the files and
the settings in `data.settings`.

Kinds: `classification` (of texts or pairs), `regression`, `tagging`, `question_answering`,
`multiple_choice` (a text, optionally a question, and at most `data.objective_settings.choices`).

The numbers come from BERT's paper. `KIND:RECIPE` selects another paper's, as in
configs/fine_tuning.py:classification:electra_base: `roberta`, `electra_small`, `electra_base`,
`electra_large`. A recipe can train any encoder.

| Devlin et al. 2019, sections 4.1 to 4.4 and appendix A.3 | here |
|---|---|
| batch 16 or 32 (GLUE 32, SQuAD 1.1 32, SQuAD 2.0 48, SWAG 16) | data.batch_size |
| rate 5e-5, 4e-5, 3e-5 or 2e-5 (SQuAD 5e-5, SWAG 2e-5) | optimizer.learning_rate |
| 2, 3 or 4 epochs (GLUE, SQuAD 1.1 and SWAG 3, SQuAD 2.0 2) | train.steps = epochs * rows / batch |
| dropout 0.1 | model.dropout, the folder's if not set |
| Adam, decay 0.01, linear decay; warmup of the first tenth (the authors' code) | optimizer |
| epsilon 1e-6, gradient norm up to 1.0 (the authors' code) | optimizer |
| rows of 128 tokens (GLUE), of 384 in windows 128 apart (SQuAD; the authors' code) | data.lengths |

The paper reports the rate and epochs that are best on held-out data.

| Liu et al. 2019, table 10 (large) | `roberta` |
|---|---|
| batch 16 or 32 (RACE 16, SQuAD 48) | data.batch_size: 16, 16, 48 |
| rate 1e-5, 2e-5 or 3e-5 (RACE 1e-5, SQuAD 1.5e-5) | optimizer.learning_rate: 2e-5, 1e-5, 1.5e-5 |
| 10 epochs, stopped early (RACE 4, SQuAD 2) | train.steps = epochs * rows / batch |
| decay 0.1 (SQuAD 0.01), linear decay; warmup of the first 6% | optimizer |
| Adam with 0.98 and 1e-6, no clipping (the authors' commands) | optimizer |

| Clark et al. 2020, appendix B | `electra_small`, `electra_base`, `electra_large` |
|---|---|
| rate 3e-4, 1e-4, 5e-5 | optimizer.learning_rate |
| layer-wise decay of the rate 0.8, 0.8, 0.9 | optimizer.layer_decay |
| batch 32 | data.batch_size |
| 3 epochs (RTE and STS-B 10, SQuAD 2) | train.steps = epochs * rows / batch |
| no weight decay, epsilon 1e-6, linear decay; warmup of the first tenth | optimizer |

For SQuAD 2.0 set `--config.predict.no_answer=True`, and `--config.predict.null_threshold` to the
`best_threshold` that evaluate prints.

The approach without fine-tuning (section 5.3, table 7) trains a head on features of the frozen
encoder: `--config.optimizer.frozen="('embeddings','encoder')"` with `--config.model.layer_features`
of `embeddings`, `second_to_last`, `last`, `weighted_last_4`, `concatenated_last_4` or
`weighted_all` (systems bert, spanbert, structbert and unilm).

Afterwards, with the same settings:

    python -m t5x_like.evaluate --config=configs/run.py:runs/reviews
    python -m t5x_like.infer --config=configs/run.py:runs/reviews --input=new.jsonl

Expect near 88.5 F1 on SQuAD 1.1, 93.5% on SST-2 and 81.6% on SWAG with BERT base (the paper's
tables 1, 2 and 4), and over 90% in seconds on the small files of tests/test_fine_tuning.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from t5x_like.experiment import recipes

KINDS = ("classification", "regression", "tagging", "question_answering", "multiple_choice")

# {kind: {field: its name in the files}}
_FIELDS: dict[str, dict[str, object]] = {
    "classification": {"text_a": "text_a", "text_b": "", "label": "label", "labels": ()},
    "regression": {"text_a": "text_a", "text_b": "", "value": "value"},
    "tagging": {"words": "words", "tags": "tags", "labels": ()},
    "question_answering": {"question": "question", "context": "context", "answers": "answers"},
    "multiple_choice": {
        "text_a": "text_a",
        "text_b": "",
        "choices": "choices",
        "answer": "answer",
    },
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a paper.

    Attributes:
        rate, batch: learning rate and batch size of most tasks.
        warmup: percentage of the steps.
        optimizer: other settings of the optimizer.
        of_kinds: {kind: fields with other values}.
    """

    rate: float
    batch: int
    warmup: int
    optimizer: Mapping[str, float]
    of_kinds: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def of(self, kind: str) -> "Recipe":
        """Return the recipe for one of the kinds."""
        return dataclasses.replace(self, **self.of_kinds.get(kind, {}))


_ADAM = {"epsilon": 1e-6, "clip_norm": 1.0, "layer_decay": 1.0}
_ROBERTA = {"b2": 0.98, "epsilon": 1e-6, "clip_norm": 0.0, "layer_decay": 1.0}
_ELECTRA = {"epsilon": 1e-6, "weight_decay": 0.0, "clip_norm": 1.0}
RECIPES = {
    "bert": Recipe(
        rate=5e-5,
        batch=32,
        warmup=10,
        optimizer=_ADAM | {"weight_decay": 0.01},
        of_kinds={"multiple_choice": {"rate": 2e-5, "batch": 16}},
    ),
    "roberta": Recipe(
        rate=2e-5,
        batch=16,
        warmup=6,
        optimizer=_ROBERTA | {"weight_decay": 0.1},
        of_kinds={
            "multiple_choice": {"rate": 1e-5},
            "question_answering": {
                "rate": 1.5e-5,
                "batch": 48,
                "optimizer": _ROBERTA | {"weight_decay": 0.01},
            },
        },
    ),
    "electra_small": Recipe(3e-4, 32, 10, _ELECTRA | {"layer_decay": 0.8}),
    "electra_base": Recipe(1e-4, 32, 10, _ELECTRA | {"layer_decay": 0.8}),
    "electra_large": Recipe(5e-5, 32, 10, _ELECTRA | {"layer_decay": 0.9}),
}


def get_config(kind: str = "classification") -> ml_collections.ConfigDict:
    """Return the config of one of the kinds above, KIND or KIND:RECIPE."""
    kind, _, name = kind.partition(":")
    recipes.check_size("fine_tuning", kind, KINDS, kind="kind")
    recipes.check_size("fine_tuning", name or "bert", RECIPES, kind="recipe")
    recipe = RECIPES[name or "bert"].of(kind)
    config = recipes.fine_tuning(f"runs/{kind}", head=kind)
    converter = "encoder_rows" if kind == "multiple_choice" else "encoder"
    recipes.labelled_text(config, kind, converter=converter, fields=_FIELDS[kind])
    if kind in ("classification", "tagging"):
        config.model.labels = 0  # counted from the data
    if kind == "question_answering":
        config.data.lengths.inputs = 384
        config.data.objective_settings = {"stride": 128, "longest_question": 64}
        config.predict = {"no_answer": False, "null_threshold": 0.0, "longest_answer": 30}
    if kind == "multiple_choice":
        config.data.objective_settings = {"choices": 4}
    config.data.batch_size = recipe.batch
    warmup = recipes.steps(config) * recipe.warmup // 100
    schedule = recipes.linear(config, recipe.rate, warmup_steps=warmup)
    config.optimizer = {"name": "adamw", **recipe.optimizer, **schedule}
    return config
