"""ALBERT by its width, and with dropout, on generated agreement.

    python -m t5x_like.study albert_width --until_decided

Lan et al. 2019: without dropout masked tokens are predicted better, since the model does not
overfit (section 4.8, table 8); with shared parameters a wider network is better, up to a width of
4,096 (appendix, table 12). The text, the network and its training are as in albert_parameters.py:
by word frequencies a masked token has 3.46 nats, and 0.02 nats do not matter.

| the paper | here |
|---|---|
| three layers, 1,024 to 6,144 wide | four layers, 32, 64 and 128 wide; embeddings of 64 |
| xxlarge, after 1,000,000 batches, without dropout | 64 wide, from the start; with dropout 0.1 |
| an average over five tasks, accuracy at masked tokens | nats of a masked token, held-out text |
"""

import dataclasses

from configs.studies import albert_parameters
from configs.studies.albert_parameters import better
from t5x_like.research.studies import Arm, Learned, Study


def _width(width: int) -> Arm:
    settings = {
        "model.d_model": width,
        "model.d_ff": 4 * width,
        "model.initializer_range": round(0.02 * (768 / width) ** 0.5, 3),
    }
    return Arm(changes={"pretraining": settings})


_WIDTHS = (32, 64, 128)
ARMS = {
    **{f"width_{width}": _width(width) for width in _WIDTHS},
    "dropout": Arm(changes={"pretraining": {"model.dropout": 0.1}}),
}
CLAIMS = (
    better("A width of 64 is better than 32.", "width_64", "width_32"),
    better("A width of 128 is better than 64.", "width_128", "width_64"),
    better("Without dropout masked tokens are predicted better.", "width_64", "dropout"),
)


def get_study() -> Study:
    """Return the study."""
    return dataclasses.replace(
        albert_parameters.get_study(),
        title="ALBERT by its width, and with dropout",
        source="Lan et al. 2019, tables 8 and 12",
        arms=ARMS,
        learned=(Learned(arm="width_64", measure="loss", than=3.46, what="word frequencies"),),
        claims=CLAIMS,
    )
