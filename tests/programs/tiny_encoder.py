"""A tiny encoder of any system as a run left it, to fine-tune in tests."""

import pathlib

import jax
import ml_collections
from jaxtyping import PyTree

from t5x_like import config, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Settings of whichever system has them.
TINY = {
    "vocab_size": 64,
    "sep_id": 3,
    "mask_id": 4,
    "positions": 64,
    "layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "embedding": 32,
    "d_embedding": 32,
    "d_model": 128,
    "d_ff": 128,
    "heads": 4,
    "dropout": 0.0,
    "head_dropout": 0.0,
}


# Initial kernels and embeddings are those of a width of 768, and a narrow network hardly begins to
# learn with them: their deviation should be larger by the square root of 768 / 128.
LARGER = (768 / TINY["d_model"]) ** 0.5


def settings(system: str) -> ml_collections.ConfigDict:
    """The config of a run that trains this system."""
    made = config.defaults()
    sizes = next(iter(systems.find(system).sizes.values()))
    made.system = system
    made.model = sizes | {name: value for name, value in TINY.items() if name in sizes}
    if "teacher" in sizes:  # a student without its teacher, which is in another folder
        heads = ("masked_lm", "question_answering")
        made.model.head = next(head for head in heads if head in systems.find(system).tasks)
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    return made


def write(folder: pathlib.Path, system: str, *, words: list[str]) -> pathlib.Path:
    """Writes a run of no step: its initial parameters, and a vocabulary of whole words."""
    folder.mkdir(parents=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    made = settings(system)
    made.data.vocabulary = str(vocabulary)
    metadata = {"config": config.to_dict(parse(made)), "data_shards": 1}
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        state = model_side.build(of_config(made)).initial_state()
        saver.save(1, state.replace(params=_larger(state.params)), None)
    return folder


def _larger(params: PyTree) -> PyTree:
    def scaled(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return leaf * LARGER if name in ("kernel", "embedding") else leaf

    return jax.tree.map_with_path(scaled, params)
