"""Exported programs, run by a process without this package, give what the model gives."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import flax.linen as nn
import jax
import numpy as np
import pytest

from launch import serve
from t5x_like import convert, systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.pretrained import Pretrained, PretrainedEncoder, stablehlo

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {
    "gpt2": {"layers": 2, "heads": 4, "positions": 80},
    "llama": {"layers": 2, "heads": 4, "kv_heads": 2, "positions": 80},
    "t5": {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "d_kv": 8},
    "bert": {"layers": 2, "heads": 4, "head": "masked_lm", "positions": 80},
    "deberta": {"layers": 2, "heads": 4, "head": "masked_lm"},
}
RUN = """
import json, pathlib, runpy, sys
sys.modules["t5x_like"] = None  # an import of it fails
import jax, numpy as np
from safetensors.flax import load_file
folder = pathlib.Path(sys.argv[1])
with np.load(folder / "given.npz") as file:
    given = dict(file)
forward = jax.export.deserialize((folder / "forward.stablehlo").read_bytes())
assert forward.platforms == ("cpu", "cuda", "tpu")
outputs = {"logits": forward.call(load_file(folder / "model.safetensors"), given)["logits"]}
if (folder / "prefill.stablehlo").exists():
    model = runpy.run_path(sys.argv[2])["Model"](folder)
    prompts = json.loads((folder / "prompts.json").read_text())
    outputs["tokens"] = np.array(model.generate(prompts, new=9))
np.savez(folder / "found.npz", **outputs)
"""


def model_of(system):
    sizes = next(iter(systems.find(system).sizes.values()))
    changed = {"vocab_size": 64, "d_model": 32, "d_ff": 64, "dropout": 0.0} | SIZES[system]
    config = sizes | {name: value for name, value in changed.items() if name in sizes}
    module = systems.build(system, config)
    variables = jax.jit(lambda key: module.init(key, module.example_batch()))(jax.random.key(0))
    # Larger than at the start of training, so that logits differ.
    params = jax.tree.map(lambda leaf: 3 * leaf, nn.meta.unbox(variables["params"]))
    make = Pretrained if "decoder" in module.sides else PretrainedEncoder
    made = make(module, params, system=system, config=config)
    if module.generates:
        without = {"eos_token_id": None, **({"pad_token_id": None} if system == "gpt2" else {})}
        made.generation = made.generation.override(without)  # GPT-2 has no padding token
    return made


def inputs_of(model):
    ids = np.random.default_rng(0).integers(2, 64, (3, 7)).astype(np.int32)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    given["attention_mask"][1, 5:] = 0
    if model.module.sides == ("encoder", "decoder"):
        given["decoder_input_ids"] = ids[:, :5]
        given["decoder_attention_mask"] = np.ones((3, 5), np.int32)
    return given


@pytest.mark.slow
@pytest.mark.parametrize("system", ["gpt2", "llama", "t5", "bert"])
def test_a_process_without_the_package_gets_the_same(system, tmp_path):
    model = model_of(system)
    stablehlo.save(model, tmp_path, sizes={})
    given = inputs_of(model)
    prompts = [[5, 9, 33, 7], [11, 3], [60, 61, 62, 63, 8]]
    read = {"token_type_ids": np.zeros((3, 7), np.int32)} if system == "bert" else {}
    np.savez(tmp_path / "given.npz", **given, **read)
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    command = [sys.executable, "-c", RUN, tmp_path, ROOT / "launch/serve.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as file:
        found = dict(file)
    expected = np.asarray(model(**given).logits)
    real = np.ones_like(expected, bool)
    if expected.shape[1] == 7:
        real[:] = given["attention_mask"][..., None]
    assert np.abs(expected[real]).max() > 0.1
    np.testing.assert_allclose(found["logits"][real], expected[real], rtol=1e-5, atol=1e-5)
    if model.module.generates:
        for prompt, tokens in zip(prompts, found["tokens"], strict=True):
            whole = model.generate(np.array([prompt]), max_new_tokens=9)
            np.testing.assert_array_equal(tokens, whole[0, -9:])


@pytest.mark.slow
def test_the_example_serves_over_http(tmp_path, monkeypatch):
    model = model_of("gpt2")
    stablehlo.save(model, tmp_path, sizes={})
    monkeypatch.setattr(serve.Handler, "model", serve.Model(tmp_path), raising=False)
    server = serve.Server(("127.0.0.1", 0), serve.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        asked = {"tokens": [[5, 9, 33, 7]], "new": 4}
        with post(server, asked) as response:
            answer = json.load(response)
        expected = model.generate(np.array([[5, 9, 33, 7]]), max_new_tokens=4)
        assert answer["tokens"] == expected[:, 4:].tolist()
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server, {"tokens": [[64]]})
        with refused.value as response:
            assert "ids below 64" in json.load(response)["error"]
    finally:
        server.shutdown()
        server.server_close()


def test_the_example_lists_the_settings_that_it_does_not_apply():
    plain = dataclasses.asdict(GenerationSettings())
    assert serve.not_applied(plain) == []
    other = plain | {"num_beams": 4, "forced_bos_token_id": 0, "eos_token_id": 7, "top_k": 3}
    assert serve.not_applied(other) == ["num_beams=4", "forced_bos_token_id=0"]
    known = set(plain) - {"eos_token_id", "pad_token_id", "decoder_start_token_id", "seed"}
    lengths = {"max_new_tokens", "max_length", "max_extra_tokens"}  # a request has its own
    sampling = {"temperature", "top_k", "top_p"}  # of do_sample
    beams = {"length_penalty", "length_penalty_kind", "early_stopping"}  # of num_beams
    assert known - lengths - sampling - beams == set(serve.PLAIN)


def post(server, asked):
    url = f"http://127.0.0.1:{server.server_port}"
    return urllib.request.urlopen(urllib.request.Request(url, data=json.dumps(asked).encode()))


def test_the_description_names_sizes_fixed_and_open(tmp_path):
    stablehlo.save(model_of("bert"), tmp_path, sizes={"batch": 4})
    page = (ROOT / "docs" / "serving.md").read_text()
    assert all(f"`{path.name}`" in page for path in tmp_path.iterdir())
    about = json.loads((tmp_path / "program.json").read_text())
    (forward,) = about["functions"].values()
    assert {name: one["shape"] for name, one in forward["inputs"].items()} == {
        name: [4, "length"] for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert forward["outputs"]["logits"] == {"shape": [4, "length", 64], "dtype": "float32"}


@pytest.mark.slow
def test_a_network_that_needs_its_sizes_asks_for_them(tmp_path):
    model, given = model_of("deberta"), inputs_of(model_of("bert"))
    with pytest.raises(ValueError, match=r"does not run with open sizes .*--sizes=batch=\.\.\.,le"):
        stablehlo.save(model, tmp_path / "open", sizes={})
    assert not (tmp_path / "open").exists()
    stablehlo.save(model, tmp_path, sizes={"batch": 3, "length": 7})
    run = jax.export.deserialize((tmp_path / "forward.stablehlo").read_bytes()).call
    found = run(serve.load_file(tmp_path / "model.safetensors"), given)["logits"]
    np.testing.assert_allclose(found, model(**given).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format=stablehlo", "--sizes=batch"], "--sizes='batch' must be written batch=8,length"),
        (
            ["--format=stablehlo", "--sizes=rows=8"],
            "--sizes='rows' does not exist. Allowed: batch, length",
        ),
        (["--format=hf", "--sizes=batch=8"], "--sizes='batch=8' has no effect with --format=hf"),
    ],
)
def test_a_mistake_in_the_sizes_is_one_line(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        convert.main([f"--from={tmp_path}", f"--to={tmp_path / 'new'}", *flags])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def rounded(path, leaf):
    """A kernel or embedding whose groups of 64 are multiples of their largest number / 127."""
    if not path[-1].key.endswith(("kernel", "embedding")):
        return leaf
    groups = np.asarray(leaf, np.float64).reshape(-1, 64)
    step = np.abs(groups).max(axis=1, keepdims=True) / 127
    return (np.rint(groups / step) * step).astype(np.float32).reshape(leaf.shape)


@pytest.mark.parametrize("system", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_weights_in_8_bits_compute_what_rounded_weights_do(system, tmp_path, capsys):
    model = model_of(system)
    model.save_pretrained(tmp_path / "hf")
    command = [f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'out'}", "--format=stablehlo"]
    convert.main([*command, "--dtype=int8"])
    weights = serve.load_file(tmp_path / "out" / "model.safetensors")
    run = jax.export.deserialize((tmp_path / "out" / "forward.stablehlo").read_bytes()).call
    given = inputs_of(model)
    read = {"token_type_ids": np.zeros((3, 7), np.int32)} if system == "bert" else {}
    found = run(weights, given | read)["logits"]
    exact = model(**given).logits
    model.params = jax.tree.map_with_path(rounded, model.params)
    np.testing.assert_allclose(found, model(**given).logits, rtol=1e-4, atol=1e-4)
    assert 1e-3 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    kernels = [x for name, x in weights.items() if name.endswith(("kernel", "embedding"))]
    assert {str(x.dtype) for x in kernels} == {"int8"}
    [line] = [one for one in capsys.readouterr().out.splitlines() if "8-bit" in one]
    assert 0 < float(line.split("by ")[1].split("%")[0]) < 10


def test_weights_in_8_bits_are_for_programs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        convert.main([f"--from={tmp_path}", f"--to={tmp_path / 'out'}", "--dtype=int8"])
    assert "--dtype=int8 is for --format=stablehlo, not hf" in capsys.readouterr().err
