r"""A system in a file of your own, in one of its sizes, on this machine's Python documentation.

    python -m t5x_like.train --config=configs/own.py:my_model.py:small --config.workdir=runs/small

After the file comes a key of the `sizes` of its System named SYSTEM; `my_model.py:WIDE:small` takes
the System named WIDE. The objective follows from the sides of a batch that the network reads: span
corruption for an encoder and a decoder, the next token for a decoder, masked tokens for an encoder.
The vocabulary is bytes; an encoder needs one with [MASK], `--config.data.vocabulary`. Set your own
text by `data.module` (docs/data.md), and everything else by flags, or copy this file.
"""

import ml_collections

from t5x_like import systems
from t5x_like.config import defaults
from t5x_like.experiment import recipes
from t5x_like.names import choose


def get_config(system_and_size: str) -> ml_collections.ConfigDict:
    """Return a config for "FILE:SIZE" or "FILE:NAME:SIZE".

    Raises:
        ValueError: the file, its system or the size does not exist, or the size cannot be built.
    """
    system, _, size = system_and_size.rpartition(":")
    if not system.partition(":")[0].endswith(".py"):
        raise ValueError(
            f"--config=configs/own.py:{system_and_size}: give a file with a System and one of its "
            "sizes, as configs/own.py:my_model.py:small"
        )
    sizes = systems.find(system).sizes
    config = defaults()
    config.system, config.model = system, dict(choose(f"the size of {system}", size, sizes))
    config.workdir = f"runs/own_{size}"
    sides = systems.build(system, config.model.to_dict()).sides
    if sides == ("decoder",):
        recipes.language_modeling(config, length=128)
    elif sides == ("encoder",):
        recipes.masked_language_modeling(config, "roberta", length=128)
    else:
        config.data.lengths = {"inputs": 128, "targets": 40}
    config.loss = {}
    config.data.module, config.data.task = "data/pydocs.py", "pydocs"
    config.data.vocabulary = "bytes"
    config.data.batch_size = 16
    config.train.log_every = 20
    warmup = recipes.warmup(config, 100)
    config.optimizer = {"name": "adamw", **recipes.linear(config, 1e-3, warmup_steps=warmup)}
    config.evaluate.every = 200
    return config
