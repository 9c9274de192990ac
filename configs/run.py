"""The config of an earlier run, as it left it in its folder: to evaluate it, to go on, to change.

python -m t5x_like.evaluate --config=configs/run.py:runs/small
python -m t5x_like.train --config=configs/run.py:runs/small --config.train.steps=20000

Every other setting can be changed in the same way.
"""

import pathlib

import ml_collections

from t5x_like import config


def get_config(folder: str) -> ml_collections.ConfigDict:
    """The config.json of a run's folder, whose place is the `workdir` wherever it was then.

    Raises:
        ValueError: there is none.
    """
    path = pathlib.Path(folder).expanduser() / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder!r} is no folder of a run: it has no config.json")
    settings = config.load(path)
    settings.workdir = str(folder)
    return settings
