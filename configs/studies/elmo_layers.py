"""ELMo: the mix of its layers, and where a task's network reads it, on generated homonyms.

    python -m t5x_like.study elmo_layers

Peters et al. 2018: all layers are better than only the last, which is better than no ELMo; weights
that are free to differ are better than the mean of the layers (section 5.1, table 2); on SNLI ELMo
is best at both the input and the output of the task's biLSTM (5.2, table 3). With ELMo a task
needs fewer batches and rows (5.4). The text is the language `homonyms` (docs/languages.md), and
the task `fields` asks which of 8 fields a sentence of three words is from; a constant is right in
1 of 8. As in the paper there is one language model; the seeds are the task's.

| the paper | here |
|---|---|
| cells of 4096 numbers, projections to 512 | the demo: 256 and 64; 200 generated batches |
| 549,000 pairs of SNLI, until it no longer improves | 48 sentences, 50 batches of 16 |
| accuracy on SNLI | nats of a held-out label, and accuracy; 0.05 nats do not matter |
| every arm also reads GloVe vectors | the vectors that the language model makes of characters |

After 150 batches an arm with and one without ELMo were both right in 100% of the rows, with 12
sentences all arms in 75% (their fields are 6 of the 8), so the arms are compared after 50. On
`senses` no arm was better than without ELMo. These designs were tried with one seed.

The last layer was better than the mix, unlike in the paper: the words around a word are of its
field, so the last layer, which predicts them, has the field, and the vector of the word adds less.
In 50 batches the weights of the mix hardly leave 1/3 (0.32 to 0.34; with one seed 0.30 to 0.35
after 150). So free weights differ from the mean by less than 0.01 nats, in all seeds in the same
direction, and this verdict says nothing about longer training.
"""

from typing import Any

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="homonyms", kind="words", size=116)
_ELMO = "runs/studies/homonyms_elmo"
_STEPS = 50
_TASK = {
    **_TEXT.changes("fields", documents=48, around=1),
    "initialize": _ELMO,
    "model.elmo": "both",
    "model.task_width": 64,
    "data.lengths": {"inputs": 8},
    "data.batch_size": 16,
    "train.steps": _STEPS,
    "evaluate.every": _STEPS,
}


def _arm(snli: float, **changes: Any) -> Arm:
    return Arm(changes={"task": changes} if changes else {}, paper={"accuracy": snli})


ARMS = {
    "elmo": _arm(89.5),
    "mean": _arm(89.3, **{"loss.mix_decay": 1.0}),
    "last": _arm(89.1, **{"model.mix": "last"}),
    "none": _arm(88.1, **{"model.elmo": "none"}),
    "input": _arm(88.9, **{"model.elmo": "input"}),
    "output": _arm(88.7, **{"model.elmo": "output"}),
}


def _better(text: str, than: str, arm: str = "elmo") -> Claim:
    return Claim(text=text, measure="loss", arm=arm, than=than, margin=0.05)


CLAIMS = (
    _better("ELMo helps.", "none"),
    _better("The last layer helps.", "none", "last"),
    _better("All layers are better than the last.", "last"),
    _better("Free weights are better than the mean of the layers.", "mean"),
    _better("Input and output are better than the input.", "input"),
    _better("Input and output are better than the output.", "output"),
)


def get_study() -> Study:
    """Return the study."""
    pretraining = {
        "model.vocab_size": _TEXT.size,
        "data.settings": {},
        "loss.sampled": 0,  # the softmax over all words
        "evaluate.every": 0,
    }
    return Study(
        title="ELMo's layers",
        source="Peters et al. 2018, tables 2 and 3",
        needs={
            **_TEXT.needs,
            **_TEXT.pretrained("configs/elmo.py:demo", _ELMO, steps=200, changes=pretraining),
        },
        runs={"task": TrainingRun(config="configs/elmo.py:word_classification", changes=_TASK)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="task", number="fields/cross_entropy", smaller_is_better=True
            ),
            "accuracy": OutcomeMeasure(
                run="task", number="fields/accuracy", scale=100.0, in_paper="SNLI"
            ),
        },
        learned=(Learned(arm="elmo", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
        seeds=range(5),
    )
