"""Encoders in Hugging Face's form: what they compute under every head, and the way back."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SYSTEMS = (
    "bert",
    "albert",
    "roberta",
    "electra",
    "distilbert",
    "bigbird",
    "bigbird_full",
    "deberta",
    "deberta_v2",
    "deberta_v3",
    "xlnet",
)
# Float32 sums of two frameworks differ in their order, by 1e-6 of outputs near 5; a wrong weight,
# epsilon or activation moves them by 1e-2 and more.
TOLERANCE = 1e-4


@functools.cache
def arrays(system):
    return dict(np.load(GOLDEN / f"{system}.npz"))


def heads(system):
    return [key.removesuffix("/names") for key in arrays(system) if key.endswith("/names")]


CASES = [(system, head) for system in SYSTEMS for head in heads(system)]


def tensors(system, head):
    stored = arrays(system)
    names = zip(stored[f"{head}/names"], stored[f"{head}/keys"], strict=True)
    return {str(name): stored[f"weights/{key}"] for name, key in names}


def write(system, head, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(system, head), folder / "model.safetensors")
    (folder / "config.json").write_text(str(arrays(system)[f"{head}/config.json"]))
    return folder


def batch(system, head=""):
    """The rows; for multiple choice all of them are choices of one example."""
    prefix = "batch/"
    return {
        name.removeprefix(prefix): array[None] if head == "multiple_choice" else array
        for name, array in arrays(system).items()
        if name.startswith(prefix)
    }


def outputs(system, head):
    """What PyTorch computed; not its settings, names and keys."""
    prefix = f"{head}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays(system).items()
        if name.startswith(prefix) and array.dtype == np.float32
    }


@pytest.mark.parametrize(("system", "head"), CASES)
def test_an_encoder_computes_what_pytorch_does(system, head, tmp_path):
    model = from_pretrained(write(system, head, tmp_path / "in"))
    assert model.config["head"] == head
    ours = model(**batch(system, head))
    theirs = outputs(system, head)
    assert theirs
    for name, expected in theirs.items():
        found = getattr(ours, name)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0, err_msg=name)

    model.save_pretrained(tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    read = tensors(system, head)
    # Without a head Hugging Face leaves the family's prefix out; it reads both.
    if head == "features":
        written = {name.partition(".")[2]: tensor for name, tensor in written.items()}
    # Hugging Face's BigBird has a pooler under every head, whether the head reads it or not.
    unread = {"bert.pooler.weight", "bert.pooler.bias"} if system.startswith("bigbird") else set()
    assert written.keys() | unread == read.keys() | unread
    for name, tensor in written.items():
        np.testing.assert_array_equal(tensor, read[name], err_msg=name)
    config = json.loads(str(arrays(system)[f"{head}/config.json"]))
    for name, value in read_json(tmp_path / "out" / "config.json").items():
        if name in config and not name.endswith("token_id"):
            assert config[name] == value, name


@pytest.mark.parametrize("system", SYSTEMS)
def test_another_head_is_drawn_anew_and_the_rest_is_read(system, tmp_path):
    own = heads(system)[0]
    folder = write(system, own, tmp_path)
    trunk = from_pretrained(folder).params
    model = from_pretrained(folder, head="classification", labels=5)
    for part in trunk.keys() & model.params.keys() - {"head"}:
        jax.tree.map(np.testing.assert_array_equal, model.params[part], trunk[part])
    assert model(**batch(system)).logits.shape == (4, 5)
    new = jax.tree.leaves_with_path(model.params["head"])
    assert all(np.std(x) > 0.005 for path, x in new if path[-1].key == "kernel")


def test_a_head_that_hugging_face_has_not_is_named(tmp_path):
    model = from_pretrained(write("deberta", "features", tmp_path / "in"), head="multiple_choice")
    with pytest.raises(
        ValueError, match=r"no DeBERTa of version 1 with model\.head='multiple_choice'"
    ):
        model.save_pretrained(tmp_path / "out")


def test_a_masked_lm_of_bert_may_hold_all_of_pretraining_under_its_oldest_names(tmp_path):
    folder = write("bert", "masked_lm", tmp_path)
    held = tensors("bert", "pretraining")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): x
        for name, x in held.items()
    }
    assert len(old.keys() - held.keys()) > 4
    save_file(old, folder / "model.safetensors")
    output = from_pretrained(folder)(**batch("bert"))
    np.testing.assert_allclose(
        output.logits, outputs("bert", "masked_lm")["logits"], atol=TOLERANCE, rtol=0
    )
    assert output.row_logits is None
