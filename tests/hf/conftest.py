"""Folders as Hugging Face wrote them, from the frozen outputs of its T5."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class Golden:
    """One file of tests/golden/make_t5.py, and the folder that it froze."""

    def __init__(self, name: str, folder: Path):
        self.arrays = dict(np.load(GOLDEN / f"{name}.npz"))
        self.weights = self.group("weights")
        self.config = json.loads(str(self.arrays["config.json"]))
        self.source = {name: self.arrays[name] for name in ("input_ids", "attention_mask")}
        target = {k: self.arrays[k] for k in ("decoder_input_ids", "decoder_attention_mask")}
        self.batch = self.source | target
        self.folder = self.write(folder)

    def group(self, name: str) -> dict[str, np.ndarray]:
        prefix = f"{name}/"
        items = self.arrays.items()
        return {k.removeprefix(prefix): v for k, v in items if k.startswith(prefix)}

    def write(self, folder: Path, *, weights=None, **changed) -> Path:
        """The folder, with other weights or changed settings; a setting of None is left out."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.weights if weights is None else weights, folder / "model.safetensors")
        config = {k: v for k, v in {**self.config, **changed}.items() if v is not None}
        (folder / "config.json").write_text(json.dumps(config))
        generation = str(self.arrays["generation_config.json"])
        (folder / "generation_config.json").write_text(generation)
        return folder

    def error(self, logits, *, expected="logits") -> float:
        """The largest difference at what is no padding."""
        real = self.batch["decoder_attention_mask"] == 1
        return np.abs(np.asarray(logits) - self.arrays[expected])[real].max()


@pytest.fixture(scope="session")
def v1_0(tmp_path_factory):
    return Golden("t5_v1_0", tmp_path_factory.mktemp("t5_v1_0"))


@pytest.fixture(scope="session")
def v1_1(tmp_path_factory):
    return Golden("t5_v1_1", tmp_path_factory.mktemp("t5_v1_1"))


@pytest.fixture(scope="session")
def models(v1_0, v1_1):
    """The models, compiled once for all tests."""
    return {golden: from_pretrained(golden.folder) for golden in (v1_0, v1_1)}


@pytest.fixture(params=["v1_0", "v1_1"])
def golden(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def model(golden, models):
    return models[golden]
