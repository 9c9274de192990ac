"""The config of an existing run, read from its folder, to evaluate, resume or change the run.

    python -m t5x_like.evaluate --config=configs/run.py:runs/small
    python -m t5x_like.train --config=configs/run.py:runs/small --config.train.steps=20000

Every other setting can be changed in the same way. If the learning rate decayed to the end of the
run, it still does when `train.steps` changes.
"""

import ml_collections

from t5x_like import config, names, paths
from t5x_like.experiment import recipes


def get_config(folder: str) -> ml_collections.ConfigDict:
    """Return the config.json of a run's folder, with this folder as `workdir`.

    Raises:
        ValueError: the folder has no config.json, or the file is not JSON.
    """
    path = paths.path(folder) / "config.json"
    if not path.is_file():
        runs = [str(one.parent) for one in path.parent.parent.glob("*/config.json")]
        raise ValueError(
            f"{folder!r} is not the folder of a run: it has no config.json."
            + names.hint(folder, runs or ["a folder that a training run wrote"])
        )
    settings = config.load(path)
    settings.workdir = str(folder)
    if settings.optimizer.get("decay_steps") == settings.train.steps:
        settings.optimizer.decay_steps = recipes.steps(settings)
    return settings
