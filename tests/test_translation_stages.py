"""A translation on top of a pretrained BART, in its two stages, by the commands (section 3.4)."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import bart
from t5x_like import train
from t5x_like.config import parse
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import bart as network

GOLDEN = pathlib.Path(__file__).parent / "golden" / "bart.npz"
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def pretrained(folder):
    """Hugging Face's folder, with a vocabulary of small letters."""
    arrays = np.load(GOLDEN)
    weights = {k.removeprefix("weights/"): v for k, v in arrays.items() if k.startswith("weights/")}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(str(arrays["config.json"]))
    letters = [chr(n) for n in range(ord("a"), ord("z") + 1)]
    ids = {piece: n for n, piece in enumerate([*SPECIAL_TOKENS, *letters, "\u0120"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


def settings(name, *, start, folder):
    made = bart.get_config(name)
    made.initialize, made.workdir = str(start), str(folder / name)
    made.model.source_layers = 1
    made.data.settings.update({"files": str(folder / "pairs.jsonl"), "inputs": "a", "targets": "b"})
    made.data.settings.held_out = 0.2
    made.data.lengths = {"inputs": 24, "targets": 24}
    made.data.batch_size, made.train.steps, made.evaluate.every = 8, 3, 0
    made.optimizer.update({"learning_rate": 0.01, "warmup_steps": 1, "decay_steps": 8})
    if made.optimizer.frozen:
        sizes = dataclasses.replace(network.SIZES["base"], encoder_layers=3)
        made.optimizer.frozen = network.frozen_at_first(sizes)
    return made


@pytest.mark.slow
def test_the_first_stage_leaves_the_pretrained_network_and_the_second_goes_on_from_it(tmp_path):
    folder = pretrained(tmp_path / "bart")
    rows = [{"a": f"ab {chr(97 + n % 26)}", "b": f"{chr(97 + n % 26)} ba"} for n in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = from_pretrained(folder, loop="unroll").params
    made = settings("translation", start=folder, folder=tmp_path)
    train.main(parse(made))
    first = from_pretrained(made.workdir).params
    jax.tree.map(
        np.testing.assert_array_equal,
        [first["token_embedder"], first["decoder"]["layers"]],
        [before["token_embedder"], before["decoder"]["layers"]],
    )
    layers, old = first["encoder"]["layers"], before["encoder"]["layers"]
    jax.tree.map(np.testing.assert_array_equal, layers["layer_1"], old["layer_1"])
    for part, changes in {"query": True, "out": False}.items():
        kernels = (one["layer_0"]["self_attention"][part]["kernel"] for one in (layers, old))
        assert bool(np.any(np.not_equal(*kernels))) == changes
    made = settings("translation_all", start=made.workdir, folder=tmp_path)
    model = model_side.build(completion.complete(of_config(made)))
    jax.tree.map(np.testing.assert_array_equal, model.initial_state().params, first)
