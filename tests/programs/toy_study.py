"""A study of two depths of a tiny T5, pretrained and fine-tuned on lines of numbers."""

import os
from typing import Any

from t5x_like.research.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

STEPS = 4


def get_study(**changes: Any) -> Study:
    """The study, whose runs read the text of the folder in the environment."""
    config = f"tests/programs/tiny_t5.py:{os.environ['TOY_STUDY_FOLDER']}"
    one_step = {"train.steps": STEPS, "data.shards": 0}
    fields = {
        "title": "A toy",
        "source": "No paper, table 0",
        "runs": {
            "pretraining": TrainingRun(config=config, changes=one_step),
            "fine_tuning": TrainingRun(
                config=config,
                changes={**one_step, "optimizer.learning_rate": 0.001},
                starts_from="pretraining",
            ),
        },
        "arms": {
            "shallow": Arm(paper={"loss": 2.5}),
            "deep": Arm(changes={"pretraining": {"model.decoder_layers": 2}}, paper={"loss": 2.0}),
        },
        "measures": {
            "loss": OutcomeMeasure(
                run="fine_tuning",
                number="text_files/cross_entropy",
                smaller_is_better=True,
                in_paper="loss",
            )
        },
        "claims": (Claim(text="Deep is better.", measure="loss", arm="deep", than="shallow"),),
        "seeds": (0, 1),
    }
    return Study(**{**fields, **changes})
