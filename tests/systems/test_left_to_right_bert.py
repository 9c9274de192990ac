"""Left-to-right BERT against Hugging Face's BERT as a decoder, and what its heads read."""

import functools
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import systems
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import left_to_right_bert

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "left_to_right_bert.npz"))
TINY = left_to_right_bert.SIZES["base"] | {
    "vocab_size": 41,
    "positions": 14,
    "layers": 2,
    "d_model": 12,
    "d_ff": 20,
    "heads": 3,
    "dropout": 0.0,
}
CONFIG = """{"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 41,
"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
"max_position_embeddings": 14, "type_vocab_size": 2}"""


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """Hugging Face's weights, read as a bidirectional BERT's, which has the same."""
    folder = tmp_path_factory.mktemp("bert")
    prefix = "weights/"
    weights = {
        name.removeprefix(prefix): x for name, x in GOLDEN.items() if name.startswith(prefix)
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(CONFIG)
    return from_pretrained(folder).params


def rows():
    """A batch of a masked objective: half of the inputs are masked."""
    inputs = np.where(np.arange(9) % 2, 4, GOLDEN["tokens"])
    return {
        "encoder_input_tokens": inputs,
        "encoder_target_tokens": GOLDEN["tokens"],
        "encoder_segment_ids": GOLDEN["mask"],
    }


def test_logits_and_loss_are_hugging_face_s(params):
    module = systems.build("left_to_right_bert", TINY)
    batch = {**rows(), "encoder_input_tokens": GOLDEN["tokens"]}
    logits = jax.jit(module.apply)({"params": params}, batch)["logits"]
    real = GOLDEN["mask"] > 0
    np.testing.assert_allclose(logits[real], GOLDEN["logits"][real], atol=1e-4)
    loss = jax.jit(functools.partial(left_to_right_bert.loss, module))
    total, weight, _ = loss(params, rows(), None)
    assert weight == real[:, 1:].sum()
    np.testing.assert_allclose(total / weight, GOLDEN["loss"], rtol=1e-5)


def test_documents_of_a_packed_row_are_predicted_one_by_one(params):
    module = systems.build("left_to_right_bert", TINY)
    loss = jax.jit(functools.partial(left_to_right_bert.loss, module))
    tokens = GOLDEN["tokens"][:1]
    packed = {
        "encoder_input_tokens": tokens,
        "encoder_target_tokens": tokens,
        "encoder_segment_ids": np.repeat([[1, 2]], [5, 4], axis=1),
        "encoder_positions": np.concatenate([np.arange(5), np.arange(4)])[None],
    }
    own = np.zeros((2, 5), np.int32)
    own[0], own[1, :4] = tokens[0, :5], tokens[0, 5:]
    alone = {
        "encoder_input_tokens": own,
        "encoder_target_tokens": own,
        "encoder_segment_ids": (np.arange(5) < [[5], [4]]).astype(np.int32),
    }
    for found, expected in zip(loss(params, packed, None), loss(params, alone, None), strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


@pytest.mark.parametrize("head", ["classification", "regression", "multiple_choice"])
def test_a_head_reads_the_last_token(head):
    module = systems.build("left_to_right_bert", TINY | {"head": head, "labels": 3})
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    apply = jax.jit(module.apply)
    batch = {name: rows()[name] for name in ("encoder_input_tokens", "encoder_segment_ids")}
    before = apply({"params": params}, batch)["logits"]
    for place, changes in ((8, [True, False]), (5, [True, True]), (0, [True, True])):
        inputs = batch["encoder_input_tokens"].copy()
        inputs[:, place] = 1
        after = apply({"params": params}, {**batch, "encoder_input_tokens": inputs})["logits"]
        moved = np.abs(after - before).max(axis=-1) > 0
        assert moved.tolist() == changes  # the second row ends at token 5


def test_a_token_s_tag_depends_on_the_tokens_before_it():
    module = systems.build("left_to_right_bert", TINY | {"head": "tagging", "labels": 3})
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    batch = {name: rows()[name] for name in ("encoder_input_tokens", "encoder_segment_ids")}
    inputs = batch["encoder_input_tokens"].copy()
    inputs[:, 3] = 1
    one, two = (
        module.apply({"params": params}, {**batch, "encoder_input_tokens": each})["logits"]
        for each in (batch["encoder_input_tokens"], inputs)
    )
    moved = np.abs(one - two).max(axis=-1)[0] > 0
    assert moved.tolist() == [False] * 3 + [True] * 6


def test_a_batch_without_tokens_to_predict_is_refused():
    module = systems.build("left_to_right_bert", TINY)
    with pytest.raises(ValueError, match=r"set data\.objective='bert', or model\.head"):
        left_to_right_bert.loss(module, {}, {"encoder_input_tokens": GOLDEN["tokens"]}, None)
