"""K-BERT: a BERT fine-tuned on labelled text, with triples of a knowledge graph in its rows.

    python -m t5x_like.train --config=configs/k_bert.py:base --config.workdir=runs/reviews \
        --config.initialize=bert-base-chinese --config.data.vocabulary=bert-base-chinese \
        --config.data.objective_settings.graph=CnDbpedia.spo \
        --config.data.settings.train=reviews.jsonl --config.train.steps=5000

`initialize` is any folder of a BERT; for another size also set `model.vocab_size` and the other
sizes. The graph is a file of triples (`t5x_like/batches/knowledge_graph.py`), or "" for no graph,
which gives BERT. data/labelled_files.py describes the labelled files.

Sizes: `base` classifies texts or pairs (also the paper's Q&A: does a text answer a question);
`tagging` and `question_answering` have the same size and other heads. `demo` is small.

| Liu et al. 2019, "Parameter settings and training details"; released code | here |
|---|---|
| Google's Chinese BERT, 12 layers of 768, 12 heads, or any other | initialize |
| a tree of depth 1, at most 2 branches an entity | data.objective_settings.branches |
| relation and object in a branch; in tagging only the object | data.objective_settings.relations |
| rows of 256 tokens, branches included | data.lengths |
| batch 32, in tagging 16 | data.batch_size |
| Adam, 2e-5, decay 0.01, warmup of the first tenth, then linear decay | optimizer |
| epsilon 1e-6 (the code's BertAdam) | optimizer.epsilon |
| 5 epochs | train.steps = 5 * rows / batch |
| without soft positions, without visible matrix (the ablation) | model |

Pretraining is BERT's, without the graph. Expect an F1 of 84.9 on the paper's finance questions
(BERT 83.9) and 87.5 on its law questions (86.4), 87.6 on its finance entities (86.1) and 94.2 on
its medicine entities (92.5).

The demo answers what Python's functions return and raise, only from the graph (see
data/generators/function_graph.py), and starts from random weights. Expect an accuracy of 84% on
functions that it has not seen, and a held-out loss of 0.59 nats (unigram entropy of the labels:
2.42):

    python -m data.generators.function_graph --output=runs/k_bert_demo
    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/k_bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/k_bert.py:demo
    python -m t5x_like.infer --config=configs/k_bert.py:demo --examples=5
"""

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems.k_bert import SIZES

# {head: {field: its name in the files}}
_CLASSES: dict[str, object] = {"text_a": "text_a", "text_b": "", "label": "label", "labels": ()}
_FIELDS: dict[str, dict[str, object]] = {
    "classification": _CLASSES,
    "tagging": {"words": "words", "tags": "tags", "labels": ()},
    "question_answering": {"question": "question", "context": "context", "answers": "answers"},
}
_DEMO = "runs/k_bert_demo"


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    others = ("demo", "tagging", "question_answering")
    if size == "demo":
        return _demo()
    head = "classification" if size in SIZES else size
    config = recipes.pretraining("k_bert", "base" if size in others else size, others=others)
    config.workdir = f"runs/k_bert_{size}"
    config.model.head = head
    if head in ("classification", "tagging"):
        config.model.labels = 0  # counted from the data
    recipes.labelled_text(config, f"knowledge_{head}", converter="encoder", fields=_FIELDS[head])
    config.data.objective_settings = {
        "graph": "",
        "branches": 2,
        "relations": head != "tagging",
        "reserved": 0,
    }
    config.data.lengths.inputs = 256
    if head == "question_answering":
        config.data.objective_settings.update(
            {"reserved": 64, "stride": 128, "longest_question": 64}
        )
        config.predict = {"no_answer": False, "null_threshold": 0.0, "longest_answer": 30}
    config.data.batch_size = 16 if head == "tagging" else 32
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 2e-5, warmup_steps=recipes.steps(config) // 10),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    small = {"d_model": 64, "d_ff": 256, "positions": 64}
    config = recipes.demo(get_config("base"), vocabulary=f"{_DEMO}/vocab.txt", **small)
    files = {name: f"{_DEMO}/{name}.jsonl" for name in ("train", "validation")}
    recipes.labelled_text(
        config, "knowledge_classification", converter="encoder", fields={**_CLASSES, **files}
    )
    config.data.objective_settings.graph = f"{_DEMO}/graph.tsv"
    config.data.lengths.inputs = 48
    config.data.batch_size = 16
    config.train.steps = 1200
    config.train.log_every = 50
    config.evaluate.every = 300
    config.optimizer.update({"b2": 0.98, "learning_rate": 1e-3})
    return config
