"""RoBERTa: its published sizes, its positions, its heads, the formats of its rows."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from t5x_like import systems
from t5x_like.batches import converters
from t5x_like.hf.folder import read_json, write_json
from t5x_like.losses import forward
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.model import Pretrained
from t5x_like.systems import bert, roberta
from tests.word_vocabulary import WordVocabulary

# Hugging Face's counts for `FacebookAI/roberta-base` and `-large`, which the paper rounds to 125M
# and 355M (section 5, table 4).
PUBLISHED = {
    ("base", "masked_lm"): 124_697_433,
    ("base", "features"): 124_645_632,
    ("large", "masked_lm"): 355_412_057,
    ("large", "features"): 355_359_744,
}
TINY = roberta.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 2e-5


def count(config):
    module = systems.build("roberta", config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)))


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    assert count(roberta.SIZES[size] | {"head": head}) == PUBLISHED[size, head]


def test_the_pairs_of_table_2_add_a_summary_and_a_class_to_the_masked_tokens():
    own = count(TINY | {"head": "pretraining"}) - count(TINY)
    assert own == (16 * 16 + 16) + (16 * 2 + 2)


@functools.cache
def make(head="features"):
    module = systems.build("roberta", TINY | {"head": head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Larger than 0.02, so that what one token changes is seen in float32.
    return module, jax.tree.map(lambda x: x * 5, jax.device_get(init(jax.random.key(0))))


@functools.cache
def jitted(head):
    return jax.jit(functools.partial(forward, make(head)[0]))


def outputs(batch, *, head="features"):
    return jitted(head)(make(head)[1], batch, None)


def rows(*texts, length=9, left=0):
    """Texts in rows after so much padding, token 1, and before the rest of it."""
    tokens = np.ones((len(texts), length), np.int32)
    segments = np.zeros_like(tokens)
    for row, text in enumerate(texts):
        tokens[row, left : left + len(text)] = text
        segments[row, left : left + len(text)] = 1
    return {
        "encoder_input_tokens": jnp.asarray(tokens),
        "encoder_segment_ids": jnp.asarray(segments),
    }


def test_a_text_is_the_same_wherever_its_padding_is():
    text = [0, 7, 9, 30, 2]
    on_the_right = outputs(rows(text))["hidden"][0, :5]
    on_the_left = outputs(rows(text, left=4))["hidden"][0, 4:]
    np.testing.assert_allclose(on_the_left, on_the_right, atol=ROUNDING)


def test_all_segments_have_the_single_token_type():
    batch = rows([0, 7, 2, 9, 2])
    types = jnp.asarray(
        batch["encoder_segment_ids"] * (jnp.arange(batch["encoder_segment_ids"].shape[1]) > 2)
    )
    found = outputs(batch | {"encoder_token_types": types})["hidden"]
    np.testing.assert_array_equal(found, outputs(batch)["hidden"])


def test_positions_begin_after_that_of_padding():
    module, params = make()

    @jax.jit
    @jax.grad
    def gradient(params, place):
        return jnp.sum(forward(module, params, rows([0, 7, 2]), None)["hidden"][0, place] ** 3)

    def used(place):
        table = gradient(params, place)["embeddings"]["position"]["embedding"]
        return np.flatnonzero(np.abs(table).max(axis=1) > 0).tolist()

    assert params["embeddings"]["position"]["embedding"].shape == (12 + 2, 16)
    # 0 and 1 are fairseq's beginning of a text and padding; a text sees its own three positions.
    assert used(0) == used(2) == [2, 3, 4]
    assert used(5) == [1, 2, 3, 4]


def test_texts_packed_in_a_row_count_from_their_start():
    one, two = [0, 7, 9, 2], [0, 8, 2]
    packed = rows(one + two) | {
        "encoder_segment_ids": jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 0, 0]]),
        "encoder_positions": jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 0, 0]]),
    }
    expected = outputs(rows(two))["hidden"][0, :3]
    found = outputs(packed)["hidden"][0, 4:7]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


def test_a_row_longer_than_the_positions_is_an_error():
    with pytest.raises(ValueError, match=r"13 tokens are more than the 12 positions"):
        outputs(rows([5] * 13, length=13))


def test_a_class_is_read_from_the_first_token_by_a_layer_of_the_head():
    module, params = make("classification")
    batch = rows([0, 7, 9, 2], [0, 8, 2])
    encode = jax.jit(functools.partial(module.apply, method="encode"))
    hidden = np.asarray(encode({"params": params}, batch))[:, 0]
    head = params["head"]
    first = np.tanh(hidden @ head["first"]["dense"]["kernel"] + head["first"]["dense"]["bias"])
    expected = first @ head["classifier"]["kernel"] + head["classifier"]["bias"]
    found = outputs(batch, head="classification")["logits"]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


VOCABULARY = WordVocabulary(f"w{number}" for number in range(27))
DOCUMENTS = ["w1 w2 w3 .\nw4 w5\nw6 w7 w8", "w9 w10\nw11 w12", "w13\nw14 w15 w16 w17"] * 4


def read(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices({"text": DOCUMENTS})


def batch_of(rows_format):
    objective = seqio_objectives.build("roberta", format=rows_format)
    sources.add_document_task(
        "roberta_task",
        source=seqio.FunctionDataSource(read, splits=["train"]),
        vocabulary=VOCABULARY,
        objective=objective,
    )
    batches = SeqioBatches(
        "roberta_task",
        split="train",
        batch_size=4,
        lengths={"inputs": 12},
        converter=converters.build("encoder", **objective.converter_settings),
    )
    return next(batches)


@pytest.mark.parametrize(
    ("rows_format", "head"),
    [
        ("segment_pair", "pretraining"),
        ("sentence_pair", "pretraining"),
        ("full_sentences", "masked_lm"),
        ("doc_sentences", "masked_lm"),
    ],
)
def test_the_formats_of_table_2_have_their_losses(rows_format, head):
    module, params = make(head)
    batch = batch_of(rows_format)
    task = roberta.SYSTEM.task({"head": head})
    loss = jax.jit(functools.partial(task.loss, module, predicted=0.4))
    total, weight, metrics = loss(params, batch, None)
    assert np.isfinite(total)
    assert weight == batch["encoder_loss_weights"].sum() > 0
    assert ("next_sentence/accuracy" in metrics) == (head == "pretraining")


def test_pairs_without_a_label_are_refused():
    module, params = make("pretraining")
    loss = functools.partial(bert.loss, module, rng=None)
    with pytest.raises(ValueError, match=r"head='pretraining' classifies pairs of sentences"):
        jax.eval_shape(loss, params, batch_of("full_sentences"))


def save(folder, head):
    module, params = make(head)
    model = Pretrained(module, params, system="roberta", config=TINY | {"head": head})
    model.save_pretrained(folder)
    return folder


def test_config_json_contains_the_padding_token_and_the_number_of_rows_of_positions(
    tmp_path,
):
    config = read_json(save(tmp_path, "masked_lm") / "config.json")
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (1, 14)
    assert from_pretrained(tmp_path).config == TINY


def test_xlm_roberta_is_the_same_network(tmp_path):
    folder = save(tmp_path, "masked_lm")
    config = read_json(folder / "config.json")
    names = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]}
    write_json(folder / "config.json", config | names)
    batch = {"input_ids": [[0, 7, 9, 2]]}
    expected = outputs(rows([0, 7, 9, 2], length=4), head="masked_lm")["logits"]
    np.testing.assert_allclose(from_pretrained(folder)(**batch).logits, expected, atol=ROUNDING)
    # Hugging Face's count for `FacebookAI/xlm-roberta-base`.
    published = roberta.SIZES["base"] | {"vocab_size": 250_002}
    assert count(published) == 278_295_186


def test_a_summary_published_beside_a_language_model_is_left_out(tmp_path):
    folder = save(tmp_path, "masked_lm")
    tensors = load_file(folder / "model.safetensors")
    pooler = {"weight": np.ones((16, 16), np.float32), "bias": np.ones(16, np.float32)}
    extra = {f"roberta.pooler.dense.{name}": tensor for name, tensor in pooler.items()}
    save_file(tensors | extra, folder / "model.safetensors")
    assert "summary" not in from_pretrained(folder).params["head"]
    summary = from_pretrained(folder, head="features").params["head"]["summary"]
    np.testing.assert_array_equal(summary["dense"]["kernel"], pooler["weight"])


def test_next_sentences_have_no_class_at_hugging_face(tmp_path):
    with pytest.raises(ValueError, match=r"no RoBERTa with model\.head='pretraining'.*masked_lm"):
        save(tmp_path, "pretraining")
    assert not list(tmp_path.iterdir())
