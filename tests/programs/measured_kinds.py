"""Runs commands of `evaluate` one after the other in this process, and measures replies.

    python -m tests.programs.measured_kinds FOLDER

FOLDER/commands.json has the arguments of each command by its name. Its numbers and predictions go
to FOLDER/NAME.json and FOLDER/NAME.jsonl, those of the replies of a dialog model to
FOLDER/replies.json.
"""

import json
import pathlib
import sys

import jax

from t5x_like import partitioning, systems
from t5x_like.evaluation import measures
from tests.programs import dialog_models, in_process

ROW = {
    "context": ["w1"],
    **{name: ["w1", "w2"] for name in ("sensible", "specific", "interesting", "unsafe", "claims")},
    "supported": ["w1"],
    "sources": ["w3"],
}


def evaluate(folder: pathlib.Path) -> None:
    """The first command connects the processes, before its config opens a run."""
    for name, arguments in json.loads((folder / "commands.json").read_text()).items():
        output = f"--output={folder}/{name}.json"
        predictions = f"--config.evaluate.predictions={folder}/{name}.jsonl"
        done = in_process.run("t5x_like.evaluate", *arguments, output, predictions)
        if done.status:
            sys.exit(f"{name}: {done.err}")


def reply(folder: pathlib.Path) -> None:
    mesh = partitioning.make_mesh({"data": -1})
    task = systems.find("lamda").task({})
    measure = measures.make("replies", {"dialog": {"candidates": 2}}, task=task)
    model = dialog_models.make(mesh=mesh)
    numbers, listed = measure.measure(model, [ROW | {"context": [f"w{n}"]} for n in range(5)])
    if jax.process_index() == 0:
        found = {"numbers": {name: float(one) for name, one in numbers.items()}, "rows": listed}
        (folder / "replies.json").write_text(json.dumps(found))


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv[1])
    evaluate(FOLDER)
    reply(FOLDER)
