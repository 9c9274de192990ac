"""K-BERT: BERT's parameters, its outputs without a graph, and PyTorch's under a visible matrix."""

import functools
import math
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import k_bert as configs
from t5x_like import partitioning, systems
from t5x_like.batches import converters
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import fine_tuning, forward
from t5x_like.pretrained import from_pretrained
from t5x_like.research.planning import batches
from t5x_like.systems import bert, k_bert

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "k_bert.npz"
# Google's Chinese BERT, with its pooler: the paper's models have its parameters and no others.
PUBLISHED = 102_267_648
TINY = k_bert.SIZES["base"] | {
    "vocab_size": 74,
    "positions": 40,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "labels": 3,
}
OF_BERT = {name: value for name, value in TINY.items() if name in bert.SIZES["base"]}
# Float32 sums of two frameworks differ in their order, by 1e-6 of outputs near 5.
TOLERANCE = 1e-4


@functools.cache
def frozen():
    return dict(np.load(GOLDEN))


def batch():
    """The golden trees, with a class and tags."""
    found = frozen()
    names = {"tokens": "input_tokens", "positions": "soft_positions", "segments": "segment_ids"}
    same = {name: name for name in ("token_types", "branches", "entities")}
    fields = {f"encoder_{ours}": found[name] for name, ours in (names | same).items()}
    return fields | {"label": np.array([0, 2, 1], np.int32)}


def without_branches():
    """The golden rows as texts: a trunk alone."""
    rows = batch()
    places = np.broadcast_to(np.arange(17, dtype=np.int32), rows["encoder_branches"].shape)
    zeros = np.zeros_like(places)
    return rows | {
        "encoder_soft_positions": np.where(rows["encoder_segment_ids"] > 0, places, 0),
        "encoder_branches": zeros,
        "encoder_entities": zeros,
    }


def of_bert(rows, *names):
    """What a BERT reads of a batch."""
    own = ("encoder_soft_positions", "encoder_branches", "encoder_entities")
    return {name: x for name, x in rows.items() if name not in own or name in names}


@functools.cache
def make(system="k_bert", **settings):
    config = (TINY if system == "k_bert" else OF_BERT) | settings
    return systems.build(system, config)


@functools.cache
def params(head="classification"):
    module = make("bert", head=head)
    made = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return jax.tree.map(lambda x: x * 5, made(jax.random.key(0)))


def test_parameters_are_those_of_the_chinese_bert():
    counts = []
    for system, settings in (("k_bert", k_bert.SIZES["base"]), ("bert", bert.SIZES["base"])):
        settings = settings | {"head": "features", "vocab_size": 21128}
        module = systems.build(system, settings)
        shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
        counts.append(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(shapes))))
    assert counts == [PUBLISHED, PUBLISHED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a BertModel."""
    folder = tmp_path_factory.mktemp("bert")
    weights = {k.removeprefix("weights/"): v for k, v in frozen().items() if "weights/" in k}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(str(frozen()["config.json"]))
    return folder


def test_it_computes_what_pytorch_s_bert_does_under_its_mask_and_positions(folder, tmp_path):
    model = from_pretrained(folder, system="k_bert")
    found = jax.jit(functools.partial(forward, model.module))(model.params, batch(), None)
    real = frozen()["segments"] > 0
    hidden = frozen()["hidden"]
    np.testing.assert_allclose(found["hidden"][real], hidden[real], atol=TOLERANCE)
    np.testing.assert_allclose(found["summary"], frozen()["summary"], atol=TOLERANCE)
    # The mask and the positions matter in the rows with branches alone.
    flat = jax.jit(functools.partial(forward, model.module))(model.params, of_bert(batch()), None)
    change = np.abs(np.where(real[..., None], flat["hidden"] - hidden, 0)).max(axis=(1, 2))
    assert change[1] < TOLERANCE < 0.1 < change[[0, 2]].min()
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    assert again.system == "bert"
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


def test_the_mask_on_the_device_is_the_visible_matrix():
    found = make().mask(batch()).dense(queries=17, keys=17)[:, 0]
    real = frozen()["segments"] > 0
    assert real.sum() > 30
    np.testing.assert_array_equal(found[real], frozen()["mask"][real])
    lengths = {"inputs": 256}
    config = configs.get_config("base")
    config.data.lengths = lengths
    assert {len(x.shape) for x in batches.batch(parse(config).data).values()} <= {1, 2}


def test_without_branches_it_is_bert_bit_for_bit():
    def run(module, rows):
        def loss(params, rows):
            outputs = forward(module, params, rows, jax.random.key(0))  # with dropout
            return fine_tuning.classification(outputs, rows)[0], outputs

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params(), rows)

    found, gradient = run(make(), without_branches())
    expected, of_reference = run(make("bert"), of_bert(without_branches()))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    # The gradient of the positions is summed row by row, and not over the batch at once.
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), gradient, of_reference)


def outputs_of(module, head, rows):
    return jax.jit(functools.partial(forward, module, rng=None))(params(head), rows)


@pytest.mark.parametrize("soft_positions", [True, False])
def test_the_arms_leave_out_what_they_say(soft_positions):
    arm = make(visible_matrix=False, soft_positions=soft_positions, head="features")
    rows, of_reference = batch(), of_bert(batch())
    if soft_positions:
        of_reference["encoder_positions"] = rows["encoder_soft_positions"]
    found = outputs_of(arm, "features", rows)["hidden"]
    expected = outputs_of(make("bert", head="features"), "features", of_reference)["hidden"]
    real = rows["encoder_segment_ids"] > 0
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def test_hard_positions_under_the_matrix_are_those_of_the_row():
    rows = batch()
    places = np.broadcast_to(np.arange(17, dtype=np.int32), rows["encoder_branches"].shape)
    arm = make(soft_positions=False, head="features")
    found = outputs_of(arm, "features", rows)["hidden"]
    renumbered = rows | {"encoder_soft_positions": places}
    expected = outputs_of(make(head="features"), "features", renumbered)["hidden"]
    np.testing.assert_array_equal(found, expected)
    soft = outputs_of(make(head="features"), "features", rows)["hidden"]
    assert np.abs(soft - found)[0].max() > 1e-2


@functools.cache
def reach(layers):
    """Whether the hidden state of a token depends on each token of the first tree, [L, L]."""
    module = make(head="features", layers=layers, loop="unroll", dropout=0.0)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    weights = jax.tree.map(lambda x: x * 5, init(jax.random.key(0)))
    rows = {name: x[:1] for name, x in batch().items()}

    @jax.jit
    def hidden(tokens):
        return forward(module, weights, rows | {"encoder_input_tokens": tokens}, None)["hidden"][0]

    tokens = rows["encoder_input_tokens"]
    changed = np.repeat(tokens, 17, axis=0)
    changed[np.arange(17), np.arange(17)] = 60
    moved = [np.abs(hidden(one[None]) - hidden(tokens)).max(-1) > 1e-6 for one in changed]
    return np.stack(moved, axis=1)


def test_a_branch_reaches_the_sentence_through_its_entity_alone():
    real = frozen()["segments"][0] > 0
    visible = frozen()["mask"][0] & real
    np.testing.assert_array_equal(reach(1)[real], visible[real])
    twice = (visible[real][:, real].astype(int) @ visible[real]) > 0
    np.testing.assert_array_equal(reach(2)[real], twice)
    assert not visible[0, 3]  # of the first branch, for [CLS]
    assert twice[0, 3]


def test_no_branch_has_a_part_in_the_loss_of_answers():
    module, rows = make(head="question_answering"), batch()
    rows = {**rows, "answer": np.array([[1, 2], [0, 0], [0, 0]], np.int32)}
    weights = params("question_answering")
    total, weight, _ = jax.jit(functools.partial(k_bert.answer_loss, module, rng=None))(
        weights, rows
    )
    outputs = outputs_of(module, "question_answering", rows)
    trunk = (rows["encoder_segment_ids"] > 0) & (rows["encoder_branches"] == 0)
    expected = 0.0
    for end, name in enumerate(("start_logits", "end_logits")):
        logits = jnp.where(trunk, outputs[name], -jnp.inf)
        places = rows["answer"][:, end]
        expected -= jax.nn.log_softmax(logits)[np.arange(3), places].sum() / 2
    np.testing.assert_allclose((total, weight), (expected, 3), rtol=1e-5)


def test_packed_rows_are_refused():
    config = configs.get_config("tagging")
    config.data.pack = True
    with pytest.raises(ValueError, match=r"data.pack=True: .* feature 'branches', which describes"):
        batches.batch(parse(config).data)
    assert "branches" in converters.build("encoder", features=("inputs", "branches")).features


def settings(**mesh):
    made = configs.get_config("base").copy_and_resolve_references()
    made.model.update(TINY | {"dropout": 0.1})
    made.data.lengths, made.data.batch_size = {"inputs": 17}, 8
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 0.01}
    made.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1} | mesh
    return made


def rows_of_step(step):
    """Eight of the golden trees, with new tokens."""
    random = np.random.default_rng(step)
    chosen = {name: x[[0, 1, 2, 0, 2, 1, 0, 2]] for name, x in batch().items()}
    tokens = random.integers(5, 74, (8, 17)).astype(np.int32)
    return chosen | {"encoder_input_tokens": tokens}


def train(model, state, steps):
    found = []
    with partitioning.layout(model.mesh):
        for step in steps:
            state, metrics = model.train_step(state, model.put(rows_of_step(step)))
            found.append(float(metrics["loss"].compute()))
    return state, found


@pytest.mark.slow
def test_a_mesh_of_eight_trains_as_one_device_and_resumes_bit_for_bit(tmp_path):
    model = model_side.build(of_config(settings(data=2, fsdp=2, model=2)))
    expected, losses = train(model, model.initial_state(), range(4))
    state, _ = train(model, model.initial_state(), range(2))
    with Checkpoints(tmp_path) as saver:
        saver.save(2, state)
        del state
        restored, _ = saver.restore_latest(model.abstract_state)
    found, rest = train(model, restored, range(2, 4))
    assert rest == losses[2:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))
    alone = model_side.build(of_config(settings()), devices=jax.devices()[:1])
    _, others = train(alone, alone.initial_state(), range(2))
    np.testing.assert_allclose(others, losses[:2], rtol=1e-4)
