"""GPT's transferred layers: the embeddings, one layer or both, on generated homonyms.

    python -m t5x_like.study gpt_layers --until_decided

Radford et al. 2018, section 5, figure 2 (left): transferring the embeddings improves a task, and
each further layer too, by up to 9 points in all on MultiNLI. The text, the pretrained network, the
task `fields` and its training are as in gpt_transfer.py: which of 8 fields a sentence of three
words is from, from 64 labelled sentences. A constant is right in 1 of 8, and the best possible
accuracy is 100%. Two points do not matter.

| the paper | here |
|---|---|
| 12 layers, 768 wide, BooksCorpus | 2 layers, 128 wide, 20,000 generated documents |
| MultiNLI and RACE | accuracy on `fields`, 64 rows of training |
| layers that are not transferred: unknown | randomly initialized |

With only the embeddings all seeds are right in 100%: the task asks what words have in common, which
embeddings tell, and the paper's tasks depend on sentences. Transferred layers are worse, by 3
points each, together with the paper's auxiliary loss: without this loss the whole network is right
in 100% as well (gpt_transfer.py).
"""

import dataclasses
import functools

from configs.studies import gpt_transfer
from t5x_like.research.studies import Arm, Claim, Learned, Study


def _layers(number: int) -> Arm:
    return Arm(changes={"fields": {"initialize_layers": number}})


ARMS = {
    "nothing": gpt_transfer.ARMS["no_pretraining"],
    "embeddings": _layers(0),
    "one_layer": _layers(1),
    "both_layers": _layers(2),
}

_helps = functools.partial(Claim, measure="accuracy", margin=2.0)

CLAIMS = (
    _helps("Transferred embeddings help.", "embeddings", "nothing"),
    _helps("The first layer helps.", "one_layer", "embeddings"),
    _helps("The second layer helps.", "both_layers", "one_layer"),
)


def get_study() -> Study:
    """Return the study."""
    return dataclasses.replace(
        gpt_transfer.get_study(),
        title="GPT by transferred layers",
        source="Radford et al. 2018, figure 2",
        arms=ARMS,
        learned=(Learned(arm="both_layers", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
        seeds=range(3),
    )
