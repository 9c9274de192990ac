"""T5's ways of fine-tuning a part of its parameters: adapters, and layers one after another."""

import importlib.util
import itertools
import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import t5

ROOT = pathlib.Path(__file__).parents[2]
TINY = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "d_kv": 4}
BATCH = {
    "encoder_input_tokens": np.arange(2, 18).reshape(2, 8),
    "decoder_input_tokens": np.arange(3, 15).reshape(2, 6),
    "decoder_target_tokens": np.arange(2, 14).reshape(2, 6),
    "decoder_loss_weights": np.ones((2, 6), np.float32),
}

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of a T5 in Hugging Face's format, without adapters."""
    config = t5.SIZES["v1_0_small"] | TINY | {"vocab_size": 32, "dropout": 0.0}
    module = systems.build("t5", config)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch())["params"]))
    path = tmp_path_factory.mktemp("t5")
    Pretrained(module, init(jax.random.key(0)), system="t5", config=config).save_pretrained(path)
    return path


def flat(params):
    return flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, params), sep="/")


def steps(folder, size, number, **changes):
    """The parameters before the first step of a run and after each."""
    spec = importlib.util.spec_from_file_location("config_t5", ROOT / "configs" / "t5.py")
    configs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(configs)
    config = configs.get_config(size)
    config.initialize, config.model.dropout = str(folder), 0.0
    config.update_from_flattened_dict(changes)
    model = model_side.build(completion.complete(of_config(config)))
    state = model.initial_state()
    found = [flat(state.params)]
    for _ in range(number):
        state, _ = model.train_step(state, model.put(BATCH))
        found.append(flat(state.params))
    return found


def test_new_adapters_change_nothing_and_have_their_size(folder):
    before, after = (from_pretrained(folder, d_adapter=width) for width in (0, 4))
    old, new = flat(before.params), flat(after.params)
    added = new.keys() - old.keys()
    assert len(added) == 2 * 3
    assert sum(new[path].size for path in added) == 4 * (16 * 4 + 4 * 16 + 16)
    for path in old:
        np.testing.assert_array_equal(new[path], old[path])
    tokens = {name: BATCH[name] for name in BATCH if name.endswith("input_tokens")}
    logits = [jax.jit(one.module.apply)({"params": one.params}, tokens) for one in (before, after)]
    np.testing.assert_array_equal(*logits)


def test_only_adapters_and_norms_are_trained(folder):
    before, *_, after = steps(folder, "adapters", 2, **{"model.d_adapter": 4})
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    trained = {path for path in before if "adapter/" in path or "norm/" in path}
    assert changed == trained
    assert len(trained) == 2 * 2 + 3 + 1 + 4 + 1


def test_layers_are_unfrozen_from_the_top_one_after_another(folder):
    found = steps(folder, "gradual_unfreezing", 4, **{"train.steps": 4})
    assert len(found) == 5
    for n, (old, new) in enumerate(itertools.pairwise(found)):
        for path in old:
            moved = old[path] != new[path]
            if "/layers/" not in path:
                assert moved.any(), path
            else:
                assert moved[1].any(), path
                assert moved[0].any() == (n >= 2), path


def test_other_parameters_must_fit_and_adapters_are_not_written_for_hugging_face(folder, tmp_path):
    model = from_pretrained(folder, d_adapter=4)
    with pytest.raises(ValueError, match=r"model\.d_adapter=4: Hugging Face's T5 has no adapter"):
        model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has shape \[16\]; config.json implies \[32\]"):
        from_pretrained(folder, d_adapter=4, d_model=32)
