"""cuDNN's attention without a GPU: what reaches the kernel, and that it means dense attention."""

import functools
import types

import flax.linen as nn
import jax
import jax._src.cudnn.fused_attention_stablehlo as binding
import jax.numpy as jnp
import numpy as np
import pytest

from configs import llama, t5
from t5x_like import partitioning, systems
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.nn.attention import kernels
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.kernels import cudnn_core, select_core
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask, RelativeBias
from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.pretrained.model import Pretrained
from t5x_like.research.planning import batches
from t5x_like.training import flops

ROWS, LENGTH, HEADS, WIDTH = 3, 28, 4, 8
# Sums of at most 84 float32 numbers of order 1, in another order.
ROUNDING = 2e-5

PACKED = np.repeat(np.array([[1, 2, 0], [1, 2, 3], [1, 1, 1]]), [10, 8, 10], axis=1)
PADDED = (np.arange(LENGTH) < np.array([[LENGTH], [10], [1]])).astype(np.int32)
LEFT_PADDED = PADDED[:, ::-1]
MASKS = {
    "full": AttentionMask(),
    "causal": AttentionMask(visibility="causal"),
    "window": AttentionMask(visibility="causal", window=5),
    "padded": AttentionMask(key_segments=PADDED, padding="at_end"),
    "padded causal": AttentionMask(key_segments=PADDED, padding="at_end", visibility="causal"),
    "left-padded": AttentionMask(key_segments=LEFT_PADDED, visibility="causal"),
    "packed": AttentionMask(query_segments=PACKED, key_segments=PACKED),
    "packed causal": AttentionMask(
        query_segments=PACKED, key_segments=PACKED, visibility="causal", window=7
    ),
}
# What JAX calls the masks: NO_MASK, PADDING, CAUSAL, PADDING_CAUSAL.
KINDS = {
    "full": 0,
    "causal": 2,
    "window": 2,
    "padded": 1,
    "padded causal": 3,
    "left-padded": 2,
    "packed": 0,
    "packed causal": 2,
}


def draw(*shape, seed, dtype):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def inputs(*, queries=LENGTH, heads=HEADS, groups=HEADS, width=WIDTH, dtype=jnp.float32):
    """A query, keys, values, and T5's table of biases."""
    return (
        draw(ROWS, queries, heads, width, seed=0, dtype=dtype),
        draw(ROWS, groups, LENGTH, width, seed=1, dtype=dtype),
        draw(ROWS, groups, LENGTH, width, seed=2, dtype=dtype),
        draw(8, heads, seed=3, dtype=jnp.float32),
    )


def seen(mask):
    """The queries that attend to any key; what the others do does not matter."""
    with jax.ensure_compile_time_eval():
        allowed = mask.dense(queries=LENGTH, keys=LENGTH)
        if allowed is None:
            return np.ones((ROWS, LENGTH), bool)
        return np.broadcast_to(np.any(allowed, axis=(1, 3)), (ROWS, LENGTH))


def total(core, mask, query, key, value, table, *, biased=True, **settings):
    """A number of the outputs that matter, to differentiate, and the outputs."""
    bias = None
    if biased:
        bias = RelativeBias(table).dense(queries=query.shape[1], keys=LENGTH, dtype=query.dtype)
    keys_values = KeyValues(key, value)
    out = core(query, keys_values, bias=bias, mask=mask, scale=0.25, **settings)
    out = out.astype(jnp.float32)
    if query.shape[1] == LENGTH:
        out = jnp.where(seen(mask)[..., None, None], out, 0.0)
    return jnp.sum(out * jnp.cos(jnp.arange(out.shape[-1]))), out


@pytest.fixture
def plain_jax(monkeypatch):
    """JAX's own attention in place of the kernel, with the same arguments, in float32 as well."""
    monkeypatch.setattr(kernels, "_cudnn_problem", lambda *_, **__: None)
    real = jax.nn.dot_product_attention

    def attend(*arguments, implementation, **settings):
        assert implementation == "cudnn"
        return real(*arguments, implementation="xla", **settings)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    kernels._within_segments.clear_cache()
    yield
    kernels._within_segments.clear_cache()


@pytest.fixture
def detected(monkeypatch):
    """A cuDNN to trace for."""
    monkeypatch.setattr(binding, "check_cudnn_version", lambda: 91200)


def assert_same(mask, arguments, **settings):
    of = {"argnums": (0, 1, 2, 3), "has_aux": True}
    (_, found), gradients = jax.value_and_grad(functools.partial(total, cudnn_core, mask), **of)(
        *arguments, **settings
    )
    (_, expected), wanted = jax.value_and_grad(functools.partial(total, dense_core, mask), **of)(
        *arguments, **settings
    )
    np.testing.assert_allclose(found, expected, atol=ROUNDING)
    for one, other in zip(gradients, wanted, strict=True):
        assert jnp.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("name", MASKS)
def test_what_the_kernel_is_told_is_dense_attention(plain_jax, name):
    assert_same(MASKS[name], inputs())


def test_grouped_heads_and_cross_attention_have_segments_too(plain_jax):
    assert_same(MASKS["packed causal"], inputs(groups=2), biased=False)
    mask = AttentionMask(query_segments=PACKED[:, 4:16], key_segments=PACKED)
    found, expected = (
        total(core, mask, *inputs(queries=12), biased=False)[1] for core in (cudnn_core, dense_core)
    )
    np.testing.assert_allclose(
        found[mask.query_segments > 0], expected[PACKED[:, 4:16] > 0], atol=ROUNDING
    )


def test_segments_of_any_number_are_apart(plain_jax):
    segments = np.broadcast_to(np.arange(4096 - LENGTH, 4096), (ROWS, LENGTH))
    mask = AttentionMask(query_segments=segments, key_segments=segments)
    query, key, value, table = inputs()
    # Every query has its own key alone, whose value it gets exactly, however others score.
    found = total(cudnn_core, mask, 1000 * query, key, value, table, biased=False)[1]
    np.testing.assert_array_equal(found, jnp.swapaxes(value, 1, 2).astype(jnp.float32))


def test_t5s_dropout_has_the_draws_of_dense_attention(plain_jax):
    dropout = {"dropout": 0.3, "dropout_rng": jax.random.key(5), "dropout_broadcast": True}
    assert_same(MASKS["padded"], inputs(), **dropout)


def test_dropout_of_single_weights_is_refused():
    dropout = {"dropout": 0.3, "dropout_rng": jax.random.key(5), "dropout_broadcast": True}
    half = {"dtype": jnp.bfloat16}
    with pytest.raises(ValueError, match="dropout_broadcast=True"):
        total(cudnn_core, MASKS["full"], *inputs(**half), **dropout | {"dropout_broadcast": False})
    with pytest.raises(ValueError, match="heads are not grouped"):
        total(cudnn_core, MASKS["full"], *inputs(groups=2, **half), **dropout)


def equations(jaxpr):
    """All equations of a program and of those inside."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


def traced(mask, arguments, **settings):
    """All equations of the outputs and gradients, and those of the kernel by direction."""
    run = jax.value_and_grad(
        functools.partial(total, cudnn_core, mask, **settings), argnums=(0, 1, 2, 3), has_aux=True
    )
    found = list(equations(jax.make_jaxpr(run)(*arguments).jaxpr))
    launched = [
        next(e for e in found if e.primitive.name == f"dot_product_attention_{way}_wrapper")
        for way in ("fwd", "bwd")
    ]
    return found, launched


@pytest.mark.parametrize("name", MASKS)
def test_the_bias_stays_one_for_all_rows(detected, name):
    found, launched = traced(MASKS[name], inputs(dtype=jnp.bfloat16))
    for kernel in launched:
        query, key, value, bias, own, read = (x.aval for x in kernel.invars[:6])
        assert bias.shape == (1, HEADS, LENGTH, LENGTH)
        assert bias.dtype == jnp.bfloat16
        assert kernel.params["mask_type"].value == KINDS[name]
        assert kernel.params["sliding_window_length"] == MASKS[name].window
        assert kernel.params["dropout_rate"] == 0
        lengths = (ROWS,) if "padded" in name and "left" not in name else (0,)
        assert own.shape == read.shape == lengths
        by_segments = "packed" in name or "left" in name
        width = WIDTH + kernels._FEATURES * by_segments
        assert query.shape == key.shape == value.shape == (ROWS, LENGTH, HEADS, width)
    assert launched[1].outvars[3].aval.shape == (1, HEADS, LENGTH, LENGTH)
    # Nothing has pairs of positions for each row: neither scores nor a mask.
    shapes = [x.aval.shape for e in found for x in e.outvars]
    pairs = [s for s in shapes if s.count(LENGTH) == 2 and s[0] == ROWS]
    assert not pairs


def test_the_lengths_are_those_of_the_rows(detected):
    program = jax.make_jaxpr(functools.partial(kernels._lengths, queries=7))(PADDED)
    own, read = jax.core.eval_jaxpr(program.jaxpr, program.consts, PADDED)
    np.testing.assert_array_equal(own, [7, 7, 7])
    np.testing.assert_array_equal(read, [LENGTH, 10, 1])
    nothing = kernels._lengths(np.zeros((2, 4), np.int32), queries=4)[1]
    np.testing.assert_array_equal(nothing, 1)  # else a softmax over no key


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(prefix=PADDED > 0, visibility="prefix"),
        AttentionMask(offset=jnp.array(2), visibility="causal"),
        AttentionMask(key_slots=jnp.arange(LENGTH)),
        ComputedMask(
            allowed=np.broadcast_to(np.eye(LENGTH, dtype=bool), (ROWS, 1, LENGTH, LENGTH))
        ),
    ],
    ids=["prefix", "offset", "slots", "computed"],
)
def test_other_masks_are_matrices(detected, mask):
    kernel = traced(mask, inputs(dtype=jnp.bfloat16), biased=False)[1][0]
    assert kernel.invars[3].aval.shape[1:] == (1, LENGTH, LENGTH)
    assert kernel.params["mask_type"].value == 0


def test_segments_of_wide_heads_are_a_matrix_before_hopper(detected, monkeypatch):
    # On an H100 with JAX 0.11.2, heads of 128, rows of 2,048, forward and backward: 5.4 ms by
    # features and 7.1 ms by a matrix, with errors as large as each other's.
    wide = inputs(width=128, dtype=jnp.bfloat16)
    kernel = traced(MASKS["packed causal"], wide, biased=False)[1][0]
    assert kernel.invars[3].aval.shape == (ROWS, 1, LENGTH, LENGTH)

    card = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [card])
    monkeypatch.setattr(binding, "check_compute_capability", lambda least: least == "9.0")
    kernel = traced(MASKS["packed causal"], wide, biased=False)[1][0]
    assert kernel.invars[0].aval.shape == (ROWS, LENGTH, HEADS, 128 + kernels._FEATURES)
    assert kernel.invars[3].aval.shape == (0,)
    assert kernel.params["mask_type"].value == KINDS["packed causal"]


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("loop", ["unroll", "scan"])
def test_layers_that_are_computed_again_stay_causal(detected, loop, remat):
    # A matrix [1, 1, T, T] here became `__cudnn$fmhaScaleBiasSoftmax` where XLA compiled LLaMA 7B
    # for eight H100; without one it is `__cudnn$fmhaSoftmax`.
    config = llama.get_config("demo")
    config.model.update({"dtype": "bfloat16", "attention": "cudnn", "loop": loop, "remat": remat})
    config.data.update({"lengths": {"targets": 32}, "batch_size": 2, "pack": False})
    assert launched(config) == {("CAUSAL", (0,))}


@pytest.mark.parametrize("mask", [MASKS["causal"], MASKS["packed"]], ids=["causal", "packed"])
def test_flops_are_those_of_dense_attention(detected, mask):
    counts = [
        flops.count(functools.partial(total, core, mask, biased=False), *inputs(dtype=jnp.bfloat16))
        for core in (cudnn_core, dense_core)
    ]
    assert counts[0] == counts[1] > 0


def test_one_query_and_odd_lengths_with_a_bias_are_dense():
    # No cuDNN is there: the kernel would not trace.
    query, key, value, table = inputs()
    total(cudnn_core, AttentionMask(), query[:, :1], key, value, table, biased=False)
    total(cudnn_core, AttentionMask(), query[:, :7], key, value, table)


@pytest.mark.parametrize(
    ("given", "takes"),
    [
        ({}, True),
        ({"dropout": 0.1, "dropout_broadcast": True}, True),
        ({"dropout": 0.1}, False),
        ({"dropout": 0.1, "dropout_rng": None}, True),
        ({"dtype": jnp.float32}, False),
        ({"kind": "AMD Instinct MI300X"}, False),
        ({"mask": MASKS["window"]}, True),
        ({"mask": MASKS["window"], "dtype": jnp.float32}, False),
    ],
    ids=["plain", "T5's dropout", "dropout", "evaluated", "float32", "AMD", "window", "banded"],
)
def test_auto_takes_the_kernel_where_it_fits(given, takes, detected, monkeypatch):
    monkeypatch.setattr(partitioning, "platform", lambda: "gpu")
    monkeypatch.setattr(
        partitioning, "device_kind", lambda: given.get("kind", "NVIDIA A100-SXM4-40GB")
    )
    query, key, value, _ = inputs(dtype=given.get("dtype", jnp.bfloat16))
    terms = {"mask": AttentionMask(), "dropout": 0.0, "dropout_rng": jax.random.key(0)}
    terms |= {name: x for name, x in given.items() if name not in ("kind", "dtype")}
    run = functools.partial(select_core("auto"), bias=None, scale=1.0, **terms)
    text = str(jax.make_jaxpr(lambda q, k, v: run(q, KeyValues(k, v)))(query, key, value))
    assert ("dot_product_attention" in text) == takes


def test_auto_reads_the_devices_that_a_program_is_compiled_for(detected, monkeypatch):
    # The process has only CPUs: a plan, or a step that is compiled before there is a GPU.
    card = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    auto = (jax.sharding.AxisType.Auto,)  # as `layout` has it
    mesh = jax.sharding.AbstractMesh((1,), ("data",), axis_types=auto, abstract_device=card)
    core, rows = select_core("auto"), inputs(dtype=jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(mesh):
        program = jax.jit(functools.partial(total, core, MASKS["causal"], biased=False))
        assert "dot_product_attention" in str(program.trace(*rows).jaxpr)


def launched(config):
    """The kinds of masks and shapes of biases of a step's launched."""
    model = model_side.build(of_config(config), devices=jax.devices()[:1])
    batch = batches.batch(parse(config).data)
    with model.layout():
        program = jax.make_jaxpr(lambda p, b: model.loss(p, b, jax.random.key(0)))(
            model.shapes.params, batch
        )
    return {
        (e.params["mask_type"].name, e.invars[3].aval.shape)
        for e in equations(program.jaxpr)
        if e.primitive.name.startswith("dot_product_attention_fwd")
    }


def kernels_of_t5(pack):
    """Those of T5's encoder, decoder and across."""
    config = t5.get_config("small")
    config.model.update({"heads": 4, "encoder_layers": 1, "decoder_layers": 1})
    config.model.update({"dtype": "bfloat16", "attention": "cudnn", "loop": "unroll"})
    config.data.update({"lengths": {"inputs": 32, "targets": 16}, "batch_size": 2, "pack": pack})
    return launched(config)


def test_t5s_rows_are_lengths_and_packed_rows_segments(detected):
    encoder, decoder, none = (1, 4, 32, 32), (1, 4, 16, 16), (0,)
    lengths = {("PADDING", encoder), ("CAUSAL", decoder), ("PADDING", none)}
    assert kernels_of_t5(False) == lengths
    segments = {("NO_MASK", encoder), ("CAUSAL", decoder), ("NO_MASK", none)}
    assert kernels_of_t5(True) == segments


LEFT = (np.arange(10) >= np.array([[0], [3], [9]])).astype(np.int32)
TOKENS = np.random.default_rng(4).integers(5, 50, LEFT.shape) * LEFT


def tiny(system, *, kind=Pretrained, **changes):
    """A model of random parameters, for the rows above."""
    config = next(iter(systems.find(system).sizes.values()))
    config = config | {"vocab_size": 50, "heads": 2, "d_model": 16, "d_ff": 16} | changes
    module = systems.build(system, config)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return kind(module, init(jax.random.key(0)), system=system, config=config)


def test_an_encoder_reads_no_padding_before_a_text(plain_jax):
    expected, found = (
        tiny("bert", kind=PretrainedEncoder, layers=2, head="features", attention=name)
        for name in ("dense", "cudnn")
    )
    rows = {"input_ids": TOKENS, "attention_mask": LEFT}
    np.testing.assert_allclose(found(**rows).hidden, expected(**rows).hidden, atol=ROUNDING)


def test_what_t5_generates_does_not_depend_on_the_side_of_the_padding(plain_jax):
    # Only distances order T5's tokens (Raffel et al. 2020, section 2.1).
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    model = tiny("t5", attention="cudnn", **layers)
    model.params = jax.tree.map(lambda x: 3 * x, model.params)  # else all rows are the same
    left = model.generate(TOKENS, LEFT, max_new_tokens=6)
    pairs = zip(TOKENS, LEFT, strict=True)
    moved = np.stack([np.concatenate([row[own > 0], row[own == 0]]) for row, own in pairs])
    right = model.generate(moved, np.sort(LEFT)[:, ::-1], max_new_tokens=6)
    np.testing.assert_array_equal(left, right)
    assert len({tuple(row) for row in left}) == len(left)
