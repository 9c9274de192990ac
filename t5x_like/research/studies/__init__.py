"""Studies: arms that differ in some settings, trained with several seeds, and claims about them.

A file in configs/studies/ defines a study with the classes exported here.
"""

from t5x_like.research.studies.definition import (
    Arm,
    Claim,
    Curve,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
    grid,
)

__all__ = [
    "Arm",
    "Claim",
    "Curve",
    "GeneratedText",
    "Learned",
    "OutcomeMeasure",
    "Study",
    "TrainingRun",
    "grid",
]
