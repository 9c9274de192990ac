"""K-BERT's ablation at demo size: without soft positions, without visible matrix, without a graph.

    python -m t5x_like.study k_bert_arms --plan
    python -m t5x_like.study k_bert_arms

Liu et al. 2019, section "Ablation studies". Without a graph K-BERT is bit-identical to BERT.

| the paper | here |
|---|---|
| Google's Chinese BERT | random weights: 2 layers, 64 wide |
| questions of law, with CN-DBpedia and HowNet | what Python's functions return and raise |
| triples add to a text that can be understood without them | the answer is only in a triple |
"""

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_SETTINGS = {
    "model.positions": 48,
    "train.steps": 1000,
    "evaluate.every": 0,  # at the end
    "checkpoint.every": 0,
}
_WITHOUT_GRAPH = {"data.objective_settings.graph": ""}

ARMS = {
    "bert": Arm(changes={"questions": _WITHOUT_GRAPH}),
    "k_bert": Arm(),
    "no_soft_positions": Arm(changes={"questions": {"model.soft_positions": False}}),
    "no_visible_matrix": Arm(changes={"questions": {"model.visible_matrix": False}}),
}


def _better(text: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure="accuracy", arm=arm, than=than)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="K-BERT without its parts",
        source="Liu et al. 2019, figure 5",
        needs={
            "runs/k_bert_demo/graph.tsv": "data.function_graph --output=runs/k_bert_demo",
            "runs/k_bert_demo/vocab.txt": (
                "t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 "
                "--output=runs/k_bert_demo/vocab.txt"
            ),
        },
        runs={"questions": TrainingRun(config="configs/k_bert.py:demo", changes=_SETTINGS)},
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="questions", number="labelled_files/accuracy", scale=100.0
            )
        },
        claims=(
            _better("A graph helps.", "k_bert", "bert"),
            _better("Soft positions help.", "k_bert", "no_soft_positions"),
            _better("The visible matrix helps.", "k_bert", "no_visible_matrix"),
            _better("Without soft positions it is worse than BERT.", "bert", "no_soft_positions"),
            _better("Without visible matrix it is worse than BERT.", "bert", "no_visible_matrix"),
        ),
        seeds=(0, 1, 2),
    )
