"""A run of no step of any system that generates text: a tiny network's initial parameters."""

import pathlib

import jax
import ml_collections

from t5x_like import config, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import RunSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import Run

# Settings of whichever system has them.
TINY = {
    "vocab_size": 384,
    "positions": 64,
    "layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 32,
    "d_ff": 48,
    "heads": 2,
    "kv_heads": 1,
    "head_width": 16,
    "d_kv": 16,
    "d_k": 16,
    "d_v": 16,
    "dropout": 0.0,
}


def settings(system: str, **model: object) -> ml_collections.ConfigDict:
    """The config of a run that trains this system on bytes; `model` are settings of its own."""
    made = config.defaults()
    sizes = next(iter(systems.find(system).sizes.values()))
    made.system = system
    made.model = sizes | {name: value for name, value in TINY.items() if name in sizes} | model
    encodes = systems.build(system, made.model.to_dict()).sides == ("encoder", "decoder")
    made.data.vocabulary = "bytes"
    made.data.objective = "text_to_text" if encodes else "language_modeling"
    made.data.converter = "encoder_decoder" if encodes else "decoder"
    made.data.lengths = {"inputs": 64, "targets": 64} if encodes else {"targets": 64}
    made.data.batch_size = 8
    made.decode = {"max_new_tokens": 12}
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    return made


def write(
    folder: pathlib.Path, made: ml_collections.ConfigDict | RunSettings, *, scale: float = 8.0
) -> pathlib.Path:
    """Writes a run of no step.

    Args:
        scale: of the matrices: at 1 the last token alone decides what comes next.
    """
    folder.mkdir(parents=True)
    settings = made if isinstance(made, RunSettings) else config.parse(made)
    metadata = {"config": config.to_dict(settings), "data_shards": 1}
    state = model_side.build(Run(settings)).initial_state()
    scaled = jax.jit(lambda params: jax.tree.map(lambda x: x * scale if x.ndim > 2 else x, params))
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        saver.save(1, state.replace(params=scaled(state.params)), None)
    return folder
