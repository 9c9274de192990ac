"""A tiny GPT as a run left it, to fine-tune in tests."""

import json
import pathlib

from t5x_like import config
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.systems import gpt

TINY = {"positions": 64, "layers": 2, "d_model": 64, "d_ff": 128, "heads": 4, "dropout": 0.0}


def write(folder: pathlib.Path, *, words: list[str]) -> pathlib.Path:
    """Writes a run of no step: its initial parameters, and a vocabulary of whole words."""
    characters = sorted(set("".join(words)))
    merges, pieces = [], [*characters, *(one + "</w>" for one in characters)]
    for word in words:  # from its start on, so that each word becomes one piece
        made = word[0]
        for place, character in enumerate(word[1:], start=2):
            after = character + ("</w>" if place == len(word) else "")
            merges.append(f"{made} {after}")
            made += after
            pieces.append(made)
    merges = list(dict.fromkeys(merges))
    pieces = ["<unk>", *dict.fromkeys(pieces), "\n</w>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({one: n for n, one in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    made = config.defaults()
    made.system = "gpt"
    made.model = gpt.SIZES["base"] | TINY | {"vocab_size": len(pieces)}
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    made.data.vocabulary = str(folder)
    metadata = {"config": config.to_dict(parse(made)), "data_shards": 1}
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, model_side.build(of_config(made)).initial_state(), None)
    return folder
