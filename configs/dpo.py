r"""DPO, direct preference optimization: a policy from comparisons, without a reward model.

    python -m t5x_like.train --config=configs/dpo.py:runs/sft --config.workdir=runs/dpo \
        --config.data.settings.train=comparisons.jsonl

The folder after the colon has the initial policy, which is also the reference: a model fine-tuned
on preferred responses, for instance with the same file:

    python -m t5x_like.train --config=configs/instructgpt.py:sft:runs/gpt2_large \
        --config.data.settings.train=comparisons.jsonl --config.workdir=runs/sft

Afterwards every command and `from_pretrained` read only the policy from runs/dpo. The files are
described in data/preference_files.py. The numbers follow the paper (Rafailov et al. 2023, appendix
B):

| paper | here |
|---|---|
| beta 0.1; 0.5 for summaries of TL;DR | loss.beta |
| batches of 64 comparisons | data.batch_size |
| RMSprop, 1e-6 after a warmup of 150 steps | optimizer: Adam without its first moment |
| the reference is the fine-tuned model, frozen | optimizer.frozen |

The paper does not give the number of steps: `train.steps` is an epoch of 64,000 comparisons, about
the size of its largest task.
"""

import ml_collections

from configs import instructgpt
from t5x_like.systems.dpo import pair_of


def get_config(folder: str = "") -> ml_collections.ConfigDict:
    """Return the config of a policy that starts from the model in a folder."""
    if not folder:
        raise ValueError(
            "configs/dpo.py lacks the policy to start from: give its folder, configs/dpo.py:FOLDER"
        )
    config, source = instructgpt.start_from(folder)
    config.system = "dpo"
    config.workdir = "runs/dpo"
    # No dropout: a response's log-probability is compared with the reference's, which has none.
    still = instructgpt.without_noise(source.config)
    config.model = pair_of(source.system, {**source.config, **still})
    instructgpt.compare(config, encoder=instructgpt.encodes(source), responses=2)
    config.loss = {"beta": 0.1}
    config.data.batch_size = 64
    config.train.steps = 1_000
    config.optimizer = {
        "name": "adamw",
        "b1": 0.0,
        "b2": 0.99,
        "weight_decay": 0.0,
        "frozen": ("reference",),
        "schedule": "constant",
        "learning_rate": 1e-6,
        "warmup_steps": 150,
    }
    config.checkpoint.every = 500
    config.evaluate.every = 100
    return config
