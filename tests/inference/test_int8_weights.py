"""Models with weights in 8 bits predict what the rounded weights do, in less memory."""

import json

import jax
import numpy as np
import pytest

from configs import pretrained as configs_pretrained
from t5x_like import evaluate, from_pretrained, infer
from t5x_like.config import parse
from t5x_like.pretrained import int8_weights
from t5x_like.research.inspection import inspected
from tests.programs import command_flags, tiny_encoder, tiny_writer

pytestmark = pytest.mark.usefixtures("one_device")

SYSTEMS = ("gpt2", "llama", "t5", "xlnet", "bert", "albert", "deberta")
WORDS = [f"w{n}" for n in range(40)]


def write(system, folder):
    if system in ("gpt2", "llama", "t5"):
        return tiny_writer.write(folder, tiny_writer.settings(system, d_model=64), scale=1.0)
    tiny_encoder.write(folder, system, words=WORDS)
    return folder


def rounded(path, leaf):
    """A kernel or embedding whose groups of 64 are multiples of their largest number / 127."""
    if not path[-1].key.endswith(("kernel", "embedding")) or leaf.size % 64:
        return leaf
    groups = np.asarray(leaf, np.float64).reshape(-1, 64)
    step = np.abs(groups).max(axis=1, keepdims=True) / 127
    return (np.rint(groups / np.where(step, step, 1)) * step).astype(np.float32).reshape(leaf.shape)


@pytest.mark.parametrize("system", SYSTEMS)
def test_outputs_are_of_the_rounded_weights(system, tmp_path):
    folder = write(system, tmp_path / "model")
    exact, small = (from_pretrained(folder, param_dtype=one) for one in ("float32", "int8"))
    ids = np.random.default_rng(0).integers(5, 30, (2, 6))
    given = {"input_ids": ids}
    if system == "t5":
        given["decoder_input_ids"] = ids[:, :3]

    def output(model):
        found = model(**given)
        return np.asarray(found.hidden if found.logits is None else found.logits)

    before, found = output(exact), output(small)
    exact.params = jax.tree.map_with_path(rounded, exact.params)
    np.testing.assert_allclose(found, output(exact), rtol=1e-4, atol=1e-4)
    assert 0 < np.abs(found - before).max() < 0.1 * np.abs(before).max()
    if system in ("gpt2", "llama", "t5"):
        texts = [model.generate(input_ids=ids, max_new_tokens=8) for model in (small, exact)]
        np.testing.assert_array_equal(*texts)
    with pytest.raises(ValueError, match="weights in 8 bits is not written"):
        small.save_pretrained(tmp_path / "out")


def test_a_large_network_has_about_a_quarter_of_the_bytes(tmp_path):
    """Also while it generates, which on a CPU makes transposed copies of float32 kernels."""
    made = tiny_writer.settings("gpt2", d_model=512, layers=6, d_ff=2048, heads=8)
    folder = tiny_writer.write(tmp_path / "run", made, scale=1.0)
    exact, small = (from_pretrained(folder, param_dtype=one) for one in ("float32", "int8"))
    whole, less = (int8_weights.number_of_bytes(one.params) for one in (exact, small))
    assert whole > 2**26  # more than the least that is transposed
    assert 0.265 * whole < less < 0.275 * whole  # 1.0625 bytes of 4, and positions and norms
    small.generate(input_ids=np.ones((1, 4), np.int32), max_new_tokens=2)
    held = small._generator[1]._variables
    assert int8_weights.number_of_bytes(held) == less


def test_commands_read_the_setting(tmp_path, monkeypatch):
    folder = write("gpt2", tmp_path / "run")
    rows = [
        {"inputs": f"Is {n} odd", "targets": "ab"[n % 2], "choices": ["a", "b"]} for n in range(8)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prompts.txt").write_text("one two\n")
    loaded = []
    monkeypatch.setattr(int8_weights, "quantize", lambda params: loaded.append(1) or params)
    made = configs_pretrained.get_config("in_context")
    made.initialize, made.weights = str(folder), "int8"
    made.data.settings.validation = str(tmp_path / "rows.jsonl")
    made.decode.max_new_tokens = 2
    command_flags.give(monkeypatch, output=str(tmp_path / "numbers.json"))
    evaluate.main(parse(made))
    command_flags.give(
        monkeypatch, input=str(tmp_path / "prompts.txt"), output=str(tmp_path / "out.jsonl")
    )
    infer.main(parse(made))
    inspected.load(str(folder), weights="int8")
    assert len(loaded) == 3
    made.weights = "int4"
    with pytest.raises(ValueError, match=r"weights='int4' does not exist. Did you mean 'int8'"):
        parse(made)


def test_arrays_of_a_file_are_the_weights():
    params = {"kernel": jax.numpy.ones((2, 64)), "bias": jax.numpy.ones(3)}
    arrays = int8_weights.to_arrays(int8_weights.quantize(params))
    assert {name: (x.shape, str(x.dtype)) for name, x in arrays.items()} == {
        "kernel": ((2, 64), "int8"),
        "kernel.scale": ((2, 1), "float32"),
        "bias": ((3,), "float32"),
    }
    again = int8_weights.of_arrays(arrays)
    np.testing.assert_allclose(again["kernel"].unbox(), params["kernel"])
