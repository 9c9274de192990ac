"""FLOPs are those of the products in the program, whatever it is wrapped in."""

import types

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.sharding import AxisType, PartitionSpec

from t5x_like.nn import matrix_product
from t5x_like.research.planning import chips
from t5x_like.training import flops

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
PRODUCT = 2 * 4 * 8 * 8


def product(x, w):
    return jnp.tanh(x @ w)


def test_a_product_is_two_flops_a_multiply_add():
    assert flops.count(product, X, W) == PRODUCT


def test_a_batched_product_counts_its_batch():
    query = jax.ShapeDtypeStruct((2, 5, 3, 7), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, 6, 3, 7), jnp.bfloat16)
    scores = flops.count(lambda q, k: jnp.einsum("BTHK,BSHK->BHTS", q, k), query, key)
    assert scores == 2 * (2 * 3) * 5 * 6 * 7


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.custom_vjp, jax.custom_jvp])
def test_wrappers_change_nothing(wrap):
    wrapped = wrap(product)
    if wrap is jax.custom_vjp:
        wrapped.defvjp(lambda x, w: (product(x, w), None), lambda _, g: (g, g))
    if wrap is jax.custom_jvp:
        wrapped.defjvp(lambda xs, ts: (product(*xs), ts[0]))
    assert flops.count(wrapped, X, W) == PRODUCT


def test_a_scan_counts_its_length():
    def scanned(x, w):
        return jax.lax.scan(jax.checkpoint(lambda x, _: (product(x, w), None)), x, length=6)

    assert flops.count(scanned, X, W) == 6 * PRODUCT


def test_a_cond_counts_its_dearest_branch():
    def branches(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x, lambda: product(product(x, w), w))

    assert flops.count(branches, X, W) == 2 * PRODUCT


def test_a_while_loop_with_products_is_refused():
    def loop(x, w):
        return jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: product(x, w), x)

    with pytest.raises(ValueError, match="while loop"):
        flops.count(loop, X, W)
    assert flops.count(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, jnp.tanh, x), X) == 0


def test_grouped_rows_meet_one_matrix_each():
    experts = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)
    assert flops.count(jax.lax.ragged_dot, X, experts, sizes) == PRODUCT


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "recomputed"])
def test_rows_in_blocks_count_as_often_as_they_meet_a_matrix(wrap):
    """Differentiation cuts the programs of matrix_product.py into two of the same name."""
    experts = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)
    made = matrix_product.ragged_product

    def layers(x, experts, sizes):
        layer = wrap(lambda x, _: (jnp.tanh(made(x, experts, sizes)), None))
        return jnp.sum(jax.lax.scan(layer, x, length=2)[0])

    assert flops.count(layers, X, experts, sizes) == 2 * PRODUCT
    trained = flops.count(jax.grad(layers, argnums=(0, 1)), X, experts, sizes)
    assert trained == (3 if wrap is not jax.checkpoint else 4) * 2 * PRODUCT


def test_a_convolution_counts_its_kernel_at_every_output():
    image = jax.ShapeDtypeStruct((2, 3, 10), jnp.float32)
    kernel = jax.ShapeDtypeStruct((5, 3, 4), jnp.float32)
    convolved = flops.count(lambda x, k: jax.lax.conv(x, k, (1,), "VALID"), image, kernel)
    assert convolved == 2 * (2 * 5 * 7) * (3 * 4)


def test_shapes_of_a_shard_map_are_global():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = (PartitionSpec("data"), PartitionSpec())
    mapped = jax.shard_map(product, mesh=mesh, in_specs=specs, out_specs=specs[0])
    assert flops.count(mapped, X, W) == PRODUCT


def test_a_cudnn_kernel_counts_two_products_over_all_pairs():
    # The real one traces only where cuDNN is; this stands in with its name and arguments.
    kernel = Primitive("dot_product_attention_fwd_wrapper")
    kernel.def_abstract_eval(lambda q, k, v, **_: q)
    query = jax.ShapeDtypeStruct((2, 5, 3, 8), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, 6, 3, 8), jnp.bfloat16)
    expected = 2 * flops.count(lambda q, k: jnp.einsum("BTHK,BSHK->BHTS", q, k), query, key)
    assert flops.count(lambda q, k: kernel.bind(q, k, k, layout=0), query, key) == expected


def test_training_is_the_product_and_the_gradients_of_both_factors():
    def loss(x, w):
        return jnp.sum(product(x, w))

    assert flops.training(loss, X, W) == 3 * PRODUCT
    assert flops.count(jax.value_and_grad(loss, argnums=(0, 1)), X, W) == 3 * PRODUCT


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        # Names as libtpu 0.0.42 describes v2, v3, v4, v5e, v5p, v6e and tpu7x slices; peaks of
        # cloud.google.com/tpu/docs/v6e, v5e, ..., of a device.
        ("TPU v2", 45 / 2),
        ("TPU v3", 123 / 2),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v6 lite", 918),
        ("TPU7x", 2307 / 2),
        # Names as the driver has them; NVIDIA's datasheets, half of the figures with sparsity.
        ("NVIDIA A100-SXM4-80GB", 624 / 2),
        ("NVIDIA A100 80GB PCIe", 624 / 2),
        ("NVIDIA A40", 299.4 / 2),
        ("NVIDIA H100 PCIe", 1513 / 2),
        ("NVIDIA H100 NVL", 1671 / 2),
        ("NVIDIA H100 80GB HBM3", 1979 / 2),
        ("NVIDIA H200", 1979 / 2),
        ("NVIDIA L4", 242 / 2),
        ("NVIDIA L40", 362.1 / 2),
        ("NVIDIA L40S", 362.05),
    ],
)
def test_peaks_of_known_devices(kind, teraflops):
    device = types.SimpleNamespace(device_kind=kind)
    assert flops.peak_flops(device) == pytest.approx(teraflops * 1e12)
    assert flops.peak_flops(device, jnp.float32) is None


@pytest.mark.parametrize(
    "kind",
    [
        # Names of NVIDIA's driver that begin with another's, and slices of a GPU.
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10G",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H20",
        "NVIDIA L40G",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "TPU v6",
        "AMD Instinct MI300X",
    ],
)
def test_no_device_has_the_peak_of_another(kind):
    assert flops.peak_of_kind(kind) is None


@pytest.mark.parametrize("chip", chips.CHIPS)
def test_chips_have_the_names_of_libtpu(chip):
    shape = {2: "2x2", 3: "2x2x1"}[chips.CHIPS[chip].dimensions]
    [kind] = {device.device_kind for device in chips.topology(f"{chip}:{shape}").devices()}
    assert kind == chips.CHIPS[chip].kind
    assert flops.peak_of_kind(kind) is not None


def test_the_peak_of_a_cpu_is_unknown():
    assert flops.peak_flops(jax.devices("cpu")[0]) is None
