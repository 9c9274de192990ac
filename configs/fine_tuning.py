"""An encoder fine-tuned on labelled text, for any system.

    python -m t5x_like.train --config=configs/fine_tuning.py:classification \
        --config.initialize=bert-base-uncased --config.workdir=runs/reviews \
        --config.data.settings.train=reviews.jsonl --config.train.steps=3000

`initialize` is a folder in Hugging Face's format (`hf download google-bert/bert-base-uncased
--local-dir=bert-base-uncased`), a run, or a checkpoint. The system, its sizes and the vocabulary
come from there; the head is randomly initialized. data/labelled_files.py describes the files and
the settings in `data.settings`.

Kinds: `classification` (of texts or pairs), `regression`, `tagging`, `question_answering`.

| Devlin et al. 2019, sections 4.1 to 4.3 and appendix A.3 | here |
|---|---|
| batch 16 or 32 (GLUE 32, SQuAD 1.1 32, SQuAD 2.0 48) | data.batch_size |
| rate 5e-5, 4e-5, 3e-5 or 2e-5 (SQuAD 5e-5) | optimizer.learning_rate |
| 2, 3 or 4 epochs (GLUE and SQuAD 1.1 3, SQuAD 2.0 2) | train.steps = epochs * examples / batch |
| dropout 0.1 | model.dropout, the folder's if not set |
| Adam, decay 0.01, linear decay; warmup of the first tenth (the authors' code) | optimizer |
| rows of 128 tokens (GLUE), of 384 in windows 128 apart (SQuAD; the authors' code) | data.lengths |

The paper reports the best of these rates and epochs on held-out data. Lower layers may have lower
rates: `--config.optimizer.layer_decay=0.8` for ELECTRA small and base, 0.9 for large (Clark et al.
2020, appendix B). SQuAD 2.0:
`--config.predict.no_answer=True`, and the `best_threshold` that evaluate prints as
`--config.predict.null_threshold`.

Afterwards, with the same settings:

    python -m t5x_like.evaluate --config=configs/run.py:runs/reviews
    python -m t5x_like.infer --config=configs/run.py:runs/reviews --input=new.jsonl

Expect near 88.5 F1 on SQuAD 1.1 and 93.5% on SST-2 with BERT base (the paper's tables 1 and 2),
and over 90% in seconds on the small files of tests/test_fine_tuning.py.
"""

import ml_collections

from t5x_like.experiment import recipes

KINDS = ("classification", "regression", "tagging", "question_answering")

# The fields of each kind, and their names in the files.
_FIELDS: dict[str, dict[str, object]] = {
    "classification": {"text_a": "text_a", "text_b": "", "label": "label", "labels": ()},
    "regression": {"text_a": "text_a", "text_b": "", "value": "value"},
    "tagging": {"words": "words", "tags": "tags", "labels": ()},
    "question_answering": {"question": "question", "context": "context", "answers": "answers"},
}


def get_config(kind: str = "classification") -> ml_collections.ConfigDict:
    """The config of one of the kinds above."""
    recipes.check_size("fine_tuning", kind, KINDS, kind="kind")
    config = recipes.fine_tuning(f"runs/{kind}", head=kind)
    recipes.labelled_text(config, kind, converter="encoder", fields=_FIELDS[kind])
    if kind in ("classification", "tagging"):
        config.model.labels = 0  # as many as the data has
    if kind == "question_answering":
        config.data.lengths.inputs = 384
        config.data.objective_settings = {"stride": 128, "longest_question": 64}
        config.predict = {"no_answer": False, "null_threshold": 0.0, "longest_answer": 30}
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "layer_decay": 1.0,
        **recipes.linear(config, 5e-5, warmup_steps=recipes.steps(config) // 10),
    }
    return config
