"""Models of runs that are saved have transformers' ids and logits, by AutoTokenizer and AutoModel.

`golden/make_written_models.py` froze what transformers 5.24 makes of these folders.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.pretrained import from_pretrained
from tests.programs import written_models

GOLDEN = Path(__file__).parents[1] / "golden" / "written_models.json"
FROZEN = json.loads(GOLDEN.read_text("utf-8"))
STEP = 41
# Float32 sums of two frameworks differ in their order.
TOLERANCE = 1e-4


@pytest.mark.parametrize("system", FROZEN)
def test_a_saved_run_has_the_ids_and_logits_of_transformers(system, tmp_path):
    frozen = FROZEN[system]
    folder = written_models.write(system, tmp_path)
    vocabulary, model = vocabularies.load(folder), from_pretrained(folder)
    ids = vocabulary.encode(written_models.TEXTS[system])
    around = (vocabulary.prefix_ids, vocabulary.suffix_ids)
    ids = ids if system == "gpt2" else [*around[0], *ids, *around[1]]
    assert ids == frozen["ids"]
    batch = {"input_ids": np.array([ids])}
    if system == "t5":
        batch["decoder_input_ids"] = np.array([[0, 5, 7]])
    logits = np.ravel(model(**batch).logits)[::STEP]
    np.testing.assert_allclose(logits, frozen["logits"], atol=TOLERANCE, rtol=0)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [frozen["class"]]
