"""XLNet in training: runs that resume with their memory, and what an order of prediction gains."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from configs import xlnet as configs
from t5x_like import partitioning, systems, train
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import masked_lm
from t5x_like.research.studies import estimate
from t5x_like.systems import bert, xlnet

WORDS = "the man went to a store he bought milk and sang in rain"
SMALL = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "dropout": 0.0}
ROWS, LENGTH = 8, 12


def settings(**model):
    """The settings of a small run on eight devices."""
    made = configs.get_config("base").copy_and_resolve_references()
    made.model.update(SMALL | {"vocab_size": 20, "memory": 7, "dropout": 0.1} | model)
    made.data.lengths, made.data.batch_size = {"inputs": LENGTH}, ROWS
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 0.01}
    made.mesh = {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
    return made


def batch(step):
    random = np.random.default_rng(step)
    tokens = random.integers(4, 20, (ROWS, LENGTH)).astype(np.int32)
    order = np.stack([np.maximum(random.permutation(LENGTH) - 9, 0) for _ in range(ROWS)])
    return {
        "encoder_input_tokens": tokens,
        "encoder_target_tokens": tokens,
        "encoder_loss_weights": (order > 0).astype(np.float32),
        "encoder_segment_ids": np.ones_like(tokens),
        "encoder_token_types": np.zeros_like(tokens),
        "encoder_order": order.astype(np.int32),
        "reversed": np.full(ROWS, step % 2, np.int32),
        "continued": np.full(ROWS, step > 0, np.int32),
        "reused": np.full(ROWS, 6, np.int32),
    }


def step_on(model, state, steps):
    losses = []
    with partitioning.layout(model.mesh):
        for step in steps:
            state, metrics = model.train_step(state, model.put(batch(step)))
            losses.append(float(metrics["loss"].compute()))
    return state, losses


def test_a_study_times_steps_that_have_a_memory():
    assert estimate._rate_of_steps(of_config(settings())) > 0


def started(model):
    return model.initial_state().replace(carry=model.initial_carry(model.put(batch(0))))


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_with_its_memory(tmp_path):
    model = model_side.build(of_config(settings()))
    expected, losses = step_on(model, started(model), range(4))
    assert expected.carry["hidden"].shape == (ROWS, 2, 7, 16)
    assert expected.carry["real"].all()
    assert np.isfinite(losses).all()
    state, _ = step_on(model, started(model), range(2))
    without = state.replace(carry=started(model).carry)
    with Checkpoints(tmp_path) as saver:
        saver.save(2, state)
        del state
        restored, _ = saver.restore_latest(model.abstract_state_on(model.put(batch(0))))
    found, rest = step_on(model, restored, range(2, 4))
    assert rest == losses[2:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))
    assert step_on(model, without, range(2, 3))[1] != losses[2:3]  # the memory is read


def test_an_evaluation_reads_as_long_a_memory_as_is_set():
    """Three rows, of which each continues 6 tokens of the row before, so at most 12 are before."""
    large = {"initializer_range": 0.5}  # so that what is attended to matters
    params = model_side.build(of_config(settings(**large))).initial_state().params
    found = {}
    for memory in (0, 7, 12, 24):
        model = model_side.build(of_config(settings(memory=memory, **large)))
        with partitioning.layout(model.mesh):
            found[memory] = model.measure(params, [batch(n) for n in range(3)])["loss"]
    assert found[12] == pytest.approx(found[24], abs=1e-5)  # the order of float32 sums
    gaps = np.abs(np.diff([found[memory] for memory in (0, 7, 12)]))
    assert gaps.min() > 1e-3


def test_a_model_without_memory_has_an_empty_one():
    model = model_side.build(of_config(settings(memory=0)))
    rows = batch(0)
    assert model.initial_carry(model.put(rows)) == {}
    params = jax.eval_shape(lambda: nn.unbox(model.module.init(jax.random.key(0), rows)))["params"]
    loss = functools.partial(xlnet.loss, model.module, rng=None, carry={})
    assert jax.eval_shape(lambda params: loss(params, rows)[1], params) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"continue_rows": False}, "data.continue_rows=False, and system='xlnet' has a memory"),
        ({"pack": True}, "data.pack=True: examples with the feature 'reused'"),
        (
            {"objective": "bert"},
            "data.continue_rows=True: EncoderConverter makes examples of their own",
        ),
    ],
)
def test_rows_that_do_not_go_on_are_refused_before_work_starts(tmp_path, capsys, changes, message):
    (tmp_path / "text.txt").write_text("".join(f"{WORDS} {n}\n" for n in range(40)))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *WORDS.split()]))
    made = settings()
    made.workdir = str(tmp_path / "run")
    made.data.module, made.data.task = "data/text_files.py", "text_files"
    made.data.settings = {"files": str(tmp_path / "text.txt"), "held_out": 0.3}
    made.data.vocabulary = str(tmp_path / "vocab.txt")
    made.data.lengths = {"inputs": 24}
    for name, value in changes.items():
        made.data[name] = value
    if "objective" in changes:
        made.data.objective_settings = {}
    with pytest.raises(SystemExit) as error:
        train.main(parse(made))
    assert error.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


@pytest.mark.parametrize("size", ["demo", *xlnet.SIZES])
def test_configs_are_valid(size):
    of_config(configs.get_config(size))


KINDS, MASK, TWINS = 8, 3, 64


def twins(random):
    """Rows of four tokens whose middle two, each any of 8, always come together."""
    kinds = random.integers(0, KINDS, TWINS)
    # Different ends: the same ones on both sides would not show a query where it is.
    tokens = np.tile(np.array([1, 0, 0, 2], np.int32), (TWINS, 1))
    tokens[:, 1], tokens[:, 2] = 4 + kinds, 4 + KINDS + kinds
    weights = np.tile(np.array([0, 1, 1, 0], np.float32), (TWINS, 1))
    order = np.zeros_like(tokens)
    order[:, 1] = 1 + random.integers(0, 2, TWINS)
    order[:, 2] = 3 - order[:, 1]
    return {
        "encoder_input_tokens": tokens,
        "encoder_target_tokens": tokens,
        "encoder_loss_weights": weights,
        "encoder_segment_ids": np.ones_like(tokens),
        "encoder_order": order,
    }


def masked(batch):
    """The same rows for a masked language model."""
    hidden = np.where(batch["encoder_loss_weights"] > 0, MASK, batch["encoder_input_tokens"])
    rows = {name: x for name, x in batch.items() if name != "encoder_order"}
    return rows | {"encoder_input_tokens": hidden.astype(np.int32)}


def log_likelihood(module, loss, change):
    """The log-likelihood of the two tokens together, of new rows after a short training."""
    params = jax.jit(module.init)(jax.random.key(0), module.example_batch())["params"]
    params = jax.tree.map(lambda x: x.unbox(), params, is_leaf=lambda x: hasattr(x, "unbox"))
    optimizer = optax.adam(1e-2)

    def mean(params, batch):
        total, weight, _ = loss(params, batch)
        return total / weight

    @jax.jit
    def step(params, state, batch):
        value, gradient = jax.value_and_grad(mean)(params, batch)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    random, state = np.random.default_rng(0), optimizer.init(params)
    for _ in range(250):
        params, state, _ = step(params, state, change(twins(random)))
    held_out = [step(params, state, change(twins(random)))[2] for _ in range(20)]
    return -2 * float(np.mean(held_out))


@pytest.mark.slow
def test_tokens_that_depend_on_each_other_gain_their_mutual_information_by_an_order():
    sizes = SMALL | {"vocab_size": 4 + 2 * KINDS, "d_model": 32, "d_ff": 64}
    permuted = systems.build("xlnet", xlnet.SIZES["base"] | sizes | {"memory": 0})
    in_order = log_likelihood(
        permuted,
        lambda params, batch: xlnet.loss(permuted, params, batch, None, carry={}, predicted=0.5)[0],
        lambda batch: batch,
    )
    apart = systems.build(
        "bert", bert.SIZES["base"] | sizes | {"head": "masked_lm", "positions": 8}
    )
    at_once = log_likelihood(
        apart,
        lambda params, batch: masked_lm.loss(apart, params, batch, None, predicted=0.5),
        masked,
    )
    # The entropy of one of them, which determines the other; and that of both apart.
    information = math.log(KINDS)
    assert in_order == pytest.approx(-information, abs=0.05)
    assert at_once == pytest.approx(-2 * information, abs=0.05)
    assert in_order - at_once == pytest.approx(information, abs=0.1)
