"""LLaMA: a smaller model that is trained for longer, on generated dialects.

    python -m t5x_like.study llama_longer

Touvron et al. 2023, sections 1 and 3.4, figure 1: after the same tokens the larger model is better,
but the smaller continues to improve, so that it reaches the same level with more training, and is
cheaper to use: the model of 7 billion parameters still improves after 1 trillion tokens. The text
is the language `dialects` (docs/languages.md): each of 8 dialects has its own table of the four
words that may follow each of 64 words. The entropy is 1.37 nats a word; by word frequencies a
word has 4.16. 0.02 nats do not matter.

| the paper | here |
|---|---|
| 7 to 65 billion parameters | 2 layers, 48 wide, or 96 wide with 3.4 times the parameters |
| 1 and 1.4 trillion tokens | 300 batches of 1,024 tokens; 2 and 4 times as many |
| the curve of a single run | a run, with a schedule of its own, for each length |

The arm that is trained 4 times as long takes 1.17 times the FLOPs of the larger model.
"""

from configs.studies.gpt2_sizes import CHANGES, TEXT, better
from t5x_like.research.studies import Arm, Curve, Learned, OutcomeMeasure, Study, TrainingRun

_STEPS = 300


def _arm(width: int, times: int) -> Arm:
    changes = {
        "model.d_model": width,
        "model.d_ff": width * 8 // 3,
        "model.head_width": width // 4,
        "train.steps": times * _STEPS,
    }
    return Arm(changes={"pretraining": changes})


ARMS = {
    "large": _arm(96, 1),
    "small": _arm(48, 1),
    "small_2": _arm(48, 2),
    "small_4": _arm(48, 4),
}


CLAIMS = (
    better("After the same tokens the larger model is better.", "large", "small"),
    better("The smaller improves when it is trained twice as long.", "small_2", "small"),
    better("... and when it is trained 4 times as long.", "small_4", "small_2"),
    better("Trained 4 times as long, the smaller is better than the larger.", "small_4", "large"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="A smaller LLaMA for longer",
        source="Touvron et al. 2023, figure 1",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/llama.py:demo", changes=CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="large", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
        curve=Curve(
            number="batches",
            lines={
                "48 wide": {_STEPS: "small", 2 * _STEPS: "small_2", 4 * _STEPS: "small_4"},
                "96 wide": {_STEPS: "large"},
            },
        ),
    )
