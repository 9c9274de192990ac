"""Rule model: Glaese et al. 2022, "Improving alignment of dialogue agents ..." (Sparrow).

The network of a reward model, whose number is the logit of the probability that a response violates
the rule that is written after it.
"""

from t5x_like.losses import preferences
from t5x_like.systems import reward_model
from t5x_like.systems.system import System, Task

SYSTEM = System(
    name="rule_model",
    sizes=reward_model.SIZES,
    build=reward_model.build,
    tasks={
        "": Task(
            loss=preferences.judgement_loss,
            objective="judgements",
            start=reward_model.start,
            start_required=True,
        ),
    },
)
