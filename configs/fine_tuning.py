"""An encoder fine-tuned on labelled text, for any system.

    python -m t5x_like.train --config=configs/fine_tuning.py:classification \
        --config.initialize=bert-base-uncased --config.workdir=runs/reviews \
        --config.data.settings.train=reviews.jsonl --config.train.steps=3000

`initialize` is a folder in Hugging Face's format (`hf download google-bert/bert-base-uncased
--local-dir=bert-base-uncased`), a run, or a checkpoint. The system, its sizes and the vocabulary
come from there; the head is randomly initialized. data/labelled_files.py describes the files and
the settings in `data.settings`.

Kinds: `classification` (of texts or pairs), `regression`, `tagging`, `question_answering`,
`multiple_choice` (a text, maybe a question, and at most `data.objective_settings.choices` choices).

| Devlin et al. 2019, sections 4.1 to 4.4 and appendix A.3 | here |
|---|---|
| batch 16 or 32 (GLUE 32, SQuAD 1.1 32, SQuAD 2.0 48, SWAG 16) | data.batch_size |
| rate 5e-5, 4e-5, 3e-5 or 2e-5 (SQuAD 5e-5, SWAG 2e-5) | optimizer.learning_rate |
| 2, 3 or 4 epochs (GLUE, SQuAD 1.1 and SWAG 3, SQuAD 2.0 2) | train.steps = epochs * rows / batch |
| dropout 0.1 | model.dropout, the folder's if not set |
| Adam, decay 0.01, linear decay; warmup of the first tenth (the authors' code) | optimizer |
| rows of 128 tokens (GLUE), of 384 in windows 128 apart (SQuAD; the authors' code) | data.lengths |

The paper reports the best of these rates and epochs on held-out data. Lower layers may have lower
rates: `--config.optimizer.layer_decay=0.8` for ELECTRA small and base, 0.9 for large (Clark et al.
2020, appendix B). SQuAD 2.0:
`--config.predict.no_answer=True`, and the `best_threshold` that evaluate prints as
`--config.predict.null_threshold`.

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

import ml_collections

from t5x_like.experiment import recipes

KINDS = ("classification", "regression", "tagging", "question_answering", "multiple_choice")

# The fields of each kind, and their names in the files.
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


def get_config(kind: str = "classification") -> ml_collections.ConfigDict:
    """The config of one of the kinds above."""
    recipes.check_size("fine_tuning", kind, KINDS, kind="kind")
    config = recipes.fine_tuning(f"runs/{kind}", head=kind)
    converter = "encoder_rows" if kind == "multiple_choice" else "encoder"
    recipes.labelled_text(config, kind, converter=converter, fields=_FIELDS[kind])
    if kind in ("classification", "tagging"):
        config.model.labels = 0  # as many as the data has
    if kind == "question_answering":
        config.data.lengths.inputs = 384
        config.data.objective_settings = {"stride": 128, "longest_question": 64}
        config.predict = {"no_answer": False, "null_threshold": 0.0, "longest_answer": 30}
    rate = 5e-5
    if kind == "multiple_choice":
        config.data.objective_settings = {"choices": 4}
        config.data.batch_size = 16
        rate = 2e-5
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "layer_decay": 1.0,
        **recipes.linear(config, rate, warmup_steps=recipes.steps(config) // 10),
    }
    return config
