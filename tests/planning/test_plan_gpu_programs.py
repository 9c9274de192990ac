"""What a GPU program computes, sends and moves, in texts of JAX 0.11.2 with sums by hand.

The texts are whole training steps (AdamW, bfloat16, no dropout, 8 rows), compiled for the H100 by
JAX's plugin for CUDA, which is too large to install for tests (4 GB): a LLaMA of 3 layers on two
hosts with four GPUs each (data 2, fsdp 4), and a T5 of 2 and 2 layers on one GPU.
"""

import dataclasses
import gzip
import types
from pathlib import Path

import numpy as np
import pytest

from t5x_like.research.planning import chips, collectives, compiling, cuda_kernels, products, report
from t5x_like.research.planning.collectives import Collective
from t5x_like.research.planning.hlo import parse
from t5x_like.research.planning.products import Products

TEXTS = Path(__file__).resolve().parent / "hlo"
WIDTH, HIDDEN, WORDS, ROWS = 256, 512, 512, 8
HEADS, HEAD = 4, 64  # LLaMA's keys and values have half as many heads


def read(name):
    return parse(gzip.decompress((TEXTS / f"gpu_{name}.txt.gz").read_bytes()).decode())


@pytest.fixture(scope="module")
def llama():
    return read("llama_on_two_hosts")


@pytest.fixture(scope="module")
def t5():
    return read("t5")


@dataclasses.dataclass(eq=False)
class Described:
    """A mesh of described devices, which is hashed by identity, as JAX's is by value."""

    devices: np.ndarray
    axis_names: tuple[str, ...] = ("data", "fsdp")


def gpus(*shape, hosts):
    """A mesh as JAX's plugin describes the GPUs of several hosts: one host after the other."""
    number = int(np.prod(shape))
    devices = [
        types.SimpleNamespace(
            platform="gpu", id=n, process_index=n * hosts // number, slice_index=0, coords=[0, 0, n]
        )
        for n in range(number)
    ]
    flat = np.empty(number, dtype=object)
    flat[:] = devices
    return Described(flat.reshape(shape))


def test_loops_over_layers_state_how_often_they_run(llama, t5):
    assert [loop.trips for loop in llama.loops] == [3, 3]
    assert [loop.trips for loop in t5.loops] == [2, 2, 2, 2]


def test_products_of_llama(llama):
    # Per token: queries and outputs, keys and values, three kernels of the feed-forward; the head.
    layer = 2 * WIDTH**2 + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * HIDDEN
    tokens = ROWS * 128 // 8
    weights = 3 * 2 * tokens * (3 * layer + WIDTH * WORDS)
    # Two products of attention forward and five backward, of which causal kernels compute the pairs
    # of a query and an earlier key; of the 8 rows a device has one.
    attention = 3 * (2 + 5) * 2 * HEADS * HEAD * (128 * 129 // 2)
    # In each layer the output projection is computed twice: once for the layer, once more into the
    # stacked activations that the backward pass reads.
    twice = 3 * 2 * tokens * WIDTH**2
    assert products.flops(llama) == weights + attention + twice
    assert products.by_type(llama).keys() == {"bf16"}


def test_products_of_t5(t5):
    tokens, targets, layers = ROWS * 128, ROWS * 64, 2
    feed_forward = 3 * WIDTH * HIDDEN
    encoder = tokens * (4 * WIDTH**2 + feed_forward)
    # Self-attention, queries and outputs of cross-attention; its keys and values are the input's.
    decoder = targets * (6 * WIDTH**2 + feed_forward) + tokens * 2 * WIDTH**2
    weights = 3 * 2 * (layers * (encoder + decoder) + targets * WIDTH * WORDS)
    of_heads = 2 * ROWS * HEADS * HEAD
    pairs = 128 * 128 + 64 * 128 + 64 * 65 // 2  # the decoder's own attention is causal
    attention = layers * (2 + 5) * of_heads * pairs
    # The position biases: 32 buckets for each pair, forward and backward, 4 heads padded to 8.
    biases = 2 * 2 * 32 * 8 * (128 * 128 + 64 * 64)
    # Output projections, and the decoder's queries of cross-attention, are computed twice.
    twice = layers * 2 * (tokens + 3 * targets) * WIDTH**2
    assert products.flops(t5) == weights + attention + biases + twice


def test_kernels_by_name(t5, llama):
    found = cuda_kernels.names(t5)
    attention = {name: count for name, count in found.items() if name.startswith("__cudnn")}
    # In both self-attentions with a bias, in cross-attention without; two layers each.
    assert attention == {
        "__cudnn$fmhaScaleBiasSoftmax": 4,
        "__cudnn$fmhaScaleBiasSoftmaxBackward": 4,
        "__cudnn$fmhaSoftmax": 2,
        "__cudnn$fmhaSoftmaxBackward": 2,
    }
    assert found["__triton"] == 1
    assert cuda_kernels.names(llama)["__cudnn$fmhaSoftmaxBackward"] == 3
    # A call in a fusion that slices its operands is a call, and the fusion nothing of its own. In
    # each layer: q, k and v, o (twice), the first two kernels of the feed-forward at once, the
    # last; their seven gradients of inputs, six of kernels; and three of the output layer.
    assert cuda_kernels.names(llama)["__cublas$lt$matmul"] == products_in(llama)
    assert not any("custom_fusion" in name for name in found)


def products_in(program):
    [(_, found)] = products.by_type(program).items()
    return found.count - 2 * 3  # without attention, in 3 layers forward and backward


def test_what_gpus_send_each_other(llama):
    found = collectives.collect(llama, gpus(2, 4, hosts=2))
    # A device's shards of a layer's kernels, in bfloat16, and of the embedding.
    layer = 64 * (WIDTH + 2 * WIDTH // 2 + WIDTH + 3 * HIDDEN) * 2
    embedding = WORDS * WIDTH // 4
    assert {(one.kind, one.axes): (one.count, one.bytes, one.network) for one in found} == {
        # Each layer's kernels twice; the embedding, as both arrays of one collective; the tokens.
        ("all-gather", ("fsdp",)): (8, 3 * (6 * layer + 2 * 2 * embedding + 4 * 128), 0),
        # The gradients of each layer in bfloat16, of the embedding in float32: three of four parts.
        ("reduce-scatter", ("fsdp",)): (4, 3 * (3 * layer + 4 * embedding), 0),
        # The replicas are on two hosts: each sends half of its part, and then half of the sums.
        ("all-reduce", ("data",)): (4, 3 * layer + 4 * embedding, 3 * layer + 4 * embedding),
        # The rows of the embedding that tokens look up, and their gradients, in bfloat16.
        ("all-to-all", ("fsdp",)): (2, 2 * 3 * 128 * 64 * 2, 0),
        # Norms, metrics and a sum of weights: 2 * 7 / 8, of which a seventh goes to the other host.
        ("all-reduce", ("data", "fsdp")): (2, 2 * 7 * 1796 * 4 // 8 + 7, 1796 + 1),
        ("all-reduce", ("fsdp",)): (1, 2 * 3 * 16 * 4 // 4, 0),
    }


GATHER = """
ENTRY %main (a: bf16[1000]) -> bf16[8000] {{
  %a = bf16[1000]{{0}} parameter(0)
  %start = ((bf16[1000]{{0}}), bf16[8000]{{0}}) {kind}-start(%a), replica_groups={groups}
  ROOT %done = bf16[8000]{{0}} {kind}-done(%start)
}}
"""


@pytest.mark.parametrize(
    ("kind", "groups", "hosts", "bytes_sent", "network"),
    [
        # Eight GPUs on two hosts: of the 7 others' shards, 4 are on the other host; its GPUs each
        # send one there, and pass on what they receive within theirs.
        ("all-gather", "[1,8]<=[8]", 2, 7 * 2000, 2000),
        ("all-gather", "[1,8]<=[8]", 1, 7 * 2000, 0),
        ("all-gather", "{{0,1,2,3},{4,5,6,7}}", 2, 3 * 2000, 0),
        # Pairs of GPUs of both hosts.
        ("all-gather", "[4,2]<=[2,4]T(1,0)", 2, 2000, 2000),
        # On four hosts with two GPUs: three of the shards come through the own adapter.
        ("all-gather", "[1,8]<=[8]", 4, 7 * 2000, 3 * 2000),
        # Reduced within the host to a quarter, of which half goes over and half comes back.
        ("all-reduce", "[1,8]<=[8]", 2, 2 * 7 * 2000 // 8, 2 * 2000 // 4 // 2),
        # Half of the receivers are on the other host.
        ("all-to-all", "[1,8]<=[8]", 2, 7 * 2000 // 8, 2000 // 2),
    ],
)
def test_what_leaves_a_host(kind, groups, hosts, bytes_sent, network):
    program = parse(GATHER.format(kind=kind, groups=groups))
    [found] = collectives.collect(program, gpus(2, 4, hosts=hosts))
    assert (found.kind, found.bytes, found.network) == (kind, bytes_sent, network)


def test_the_bounds_of_links_and_network():
    # NVIDIA: an H100 sends 450 GB/s over NVLink, and DGX H100 400 Gbit/s over each adapter.
    found = [
        Collective("all-gather", ("fsdp",), 1, 9 * 10**9, 0, 0, ()),
        Collective("all-reduce", ("data",), 1, 5 * 10**9, 5 * 10**9, 0, ()),
    ]
    work = {"bf16": Products(1, 989_500 * 10**9), "f32": Products(1, 989_500 * 10**9)}
    work["f8e4m3fn x f8e5m2"] = Products(1, 989_500 * 10**9)
    compiled = types.SimpleNamespace(products=work, memory_bytes=335 * 10**9, collectives=found)
    device = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    bounds = compiling.step_bounds(compiled, chips.topology("h100:4x8"), device)
    # float32 in TF32 at half of the peak, 8 bits at twice the peak (the datasheet).
    assert bounds == pytest.approx(
        {"compute": 1 + 2 + 0.5, "memory": 0.1, "interconnect": 0.02, "between_hosts": 0.1}
    )
    alone = compiling.step_bounds(compiled, chips.topology("h100:1x8"), device)
    assert alone.keys() == {"compute", "memory", "interconnect"}
    # Nobody publishes a network for the L4.
    device = types.SimpleNamespace(device_kind="NVIDIA L4")
    slow = compiling.step_bounds(compiled, chips.topology("l4:4x8"), device)
    assert slow.keys() == {"compute", "memory", "interconnect"}


# A product that writes into a layer of a stacked array, as in the loop over layers, in the plugin's
# own words; its second output is cuBLAS's workspace.
INTO_A_STACK = """
%dynamic-slice-fusion.1 (p0: bf16[32768,2048], p1: bf16[2048,8192], p2: bf16[16,16,2048,8192], p3: s32[]) -> (bf16[16,16,2048,8192], s8[33554432]) {
  %p2.1 = bf16[16,16,2048,8192]{3,2,1,0} parameter(2)
  %p0.1 = bf16[32768,2048]{1,0} parameter(0)
  %p1.1 = bf16[2048,8192]{1,0} parameter(1)
  %custom-call.46 = (bf16[32768,8192]{1,0}, s8[33554432]{0}) custom-call(%p0.1, %p1.1), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %get-tuple-element.564 = bf16[32768,8192]{1,0} get-tuple-element(%custom-call.46), index=0
  %bitcast.334 = bf16[1,16,2048,8192]{3,2,1,0} bitcast(%get-tuple-element.564)
  %p3.1 = s32[] parameter(3)
  %constant_224 = s32[] constant(0)
  %dynamic_update_slice.140 = bf16[16,16,2048,8192]{3,2,1,0} dynamic-update-slice(%p2.1, %bitcast.334, %p3.1, %constant_224, %constant_224, %constant_224)
  %get-tuple-element.565 = s8[33554432]{0} get-tuple-element(%custom-call.46), index=1
  ROOT %tuple.22 = (bf16[16,16,2048,8192]{3,2,1,0}, s8[33554432]{0}) tuple(%dynamic_update_slice.140, %get-tuple-element.565)
}

ENTRY %main (x: bf16[32768,2048], w: bf16[2048,8192], s: bf16[16,16,2048,8192], i: s32[]) -> bf16[16,16,2048,8192] {
  %x = bf16[32768,2048]{1,0} parameter(0)
  %w = bf16[2048,8192]{1,0} parameter(1)
  %s = bf16[16,16,2048,8192]{3,2,1,0} parameter(2)
  %i = s32[] parameter(3)
  %dynamic_slice_fusion.1 = (bf16[16,16,2048,8192]{3,2,1,0}, s8[33554432]{0}) fusion(%x, %w, %s, %i), kind=kCustom, calls=%dynamic-slice-fusion.1, backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion","kernel_index":0}}}
  ROOT %out = bf16[16,16,2048,8192]{3,2,1,0} get-tuple-element(%dynamic_slice_fusion.1), index=0
}
"""  # noqa: E501


def test_a_product_into_a_stack_writes_one_layer_and_no_workspace():
    program = parse(INTO_A_STACK)
    assert products.by_type(program) == {"bf16": Products(1, 2 * 32_768 * 2048 * 8192)}
    read_and_written = 2 * (32_768 * 2048 + 2048 * 8192 + 32_768 * 8192)
    assert products.memory_bytes(program) == read_and_written + 4  # and the layer's index
    assert cuda_kernels.names(program) == {"__cublas$lt$matmul": 1}


def test_a_fusion_of_another_stream_moves_its_slices_once():
    # One layer of a stack is read, and put into another stack.
    text = """
%read (p: f32[16,2048], i: s32[]) -> f32[1,2048] {
  %p = f32[16,2048]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %part = f32[1,2048]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,2048}
}

%write (p: f32[16,2048], v: f32[1,2048], i: s32[]) -> f32[16,2048] {
  %p = f32[16,2048]{1,0} parameter(0)
  %v = f32[1,2048]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %whole = f32[16,2048]{1,0} dynamic-update-slice(%p, %v, %i, %zero)
}

ENTRY %main (a: f32[16,2048], b: f32[16,2048], i: s32[]) -> f32[16,2048] {
  %a = f32[16,2048]{1,0} parameter(0)
  %b = f32[16,2048]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %first = ((f32[16,2048], s32[]), f32[1,2048]{1,0}, u32[]) fusion-start(%a, %i), kind=kLoop, calls=%read
  %part = f32[1,2048]{1,0} fusion-done(%first)
  %second = ((f32[16,2048], f32[1,2048], s32[]), f32[16,2048]{1,0}, u32[]) fusion-start(%b, %part, %i), kind=kLoop, calls=%write
  ROOT %out = f32[16,2048]{1,0} fusion-done(%second)
}
"""  # noqa: E501
    program = parse(text)
    assert products.memory_bytes(program) == 4 * 4 * 2048 + 2 * 4  # and both indices
    assert cuda_kernels.names(program) == {"fusion": 2}


def test_a_window_of_causal_attention_counts_its_pairs():
    shape = '"intermediate_tensor_shape": {"dimensions": ["2", "4", "64", "64"]'
    mask = '"mask_type": "PADDING_CAUSAL", "sliding_window_length": 16'
    text = f"""
ENTRY %main (q: bf16[2,64,4,32]) -> bf16[2,4,64,32] {{
  %q = bf16[2,64,4,32]{{3,2,1,0}} parameter(0)
  %k = (bf16[2,4,64,32]{{3,1,2,0}}, f32[2,4,64]{{2,1,0}}, u8[100]{{0}}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={{"cudnn_fmha_backend_config": {{{shape}}}, {mask}}}}}
  ROOT %o = bf16[2,4,64,32]{{3,1,2,0}} get-tuple-element(%k), index=0
}}
"""  # noqa: E501
    program = parse(text)
    pairs = sum(range(1, 17)) + 48 * 16  # the first 16 queries have fewer keys
    assert products.flops(program) == 2 * 2 * 2 * 4 * 32 * pairs
    # Three times the operand and the output, in bfloat16, and the sums of the softmax.
    assert products.memory_bytes(program) == 4 * 2 * (2 * 64 * 4 * 32) + 4 * 2 * 4 * 64


def test_products_of_8_bits_have_types_of_their_own():
    # As the plugin writes a gradient in FP8: two matrices, their scales, cuBLAS's workspace.
    numbers = '{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"]}'
    text = f"""
ENTRY %main (a: f8e4m3fn[128,256], b: f8e5m2[128,512], s: f32[]) -> bf16[256,512] {{
  %a = f8e4m3fn[128,256]{{1,0}} parameter(0)
  %b = f8e5m2[128,512]{{1,0}} parameter(1)
  %s = f32[] parameter(2)
  %p = (bf16[256,512]{{1,0}}, s8[1000]{{0}}) custom-call(%a, %b, %s, %s),
    custom_call_target="__cublas$lt$matmul$f8",
    backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{numbers}}}}}
  ROOT %o = bf16[256,512]{{1,0}} get-tuple-element(%p), index=0
}}
"""
    program = parse(text.replace(",\n    ", ", "))
    assert products.by_type(program) == {"f8e4m3fn x f8e5m2": Products(1, 2 * 128 * 256 * 512)}
    assert products.memory_bytes(program) == 128 * 256 + 128 * 512 + 2 * 256 * 512 + 2 * 4
    assert cuda_kernels.names(program) == {"__cublas$lt$matmul$f8": 1}


def test_a_plan_shows_kernels_types_and_what_leaves_a_host(llama):
    found = collectives.collect(llama, gpus(2, 4, hosts=2))
    memory = {"parameters": 1, "optimizer": 2, "arguments": 3, "activations": 4}
    memory |= {"cache": 0, "temporaries": 9, "outputs": 0, "program": 0, "peak": 12}
    compiled = compiling.Compiled(
        text="",
        products=products.by_type(llama),
        kernels=cuda_kernels.names(llama),
        memory_bytes=products.memory_bytes(llama),
        memory=memory,
        collectives=found,
        unknown_loops=0,
        early_loops=0,
        seconds=1.0,
    )
    device = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    plan = {"flops_per_step": 12_884_901_888}
    measured = report.measured(plan, compiled, chips.topology("h100:2x4"), [device] * 8)
    lines = report.measured_lines(measured | {"memory_per_device": None})
    assert any(line.split() == ["__cudnn$fmhaSoftmax", "3"] for line in lines)
    assert any(line.split()[:2] == ["bf16", "57"] for line in lines)
    heading = next(line for line in lines if line.startswith("a device sends"))
    assert heading.endswith("between hosts")
    reduced = next(line for line in lines if line.split()[:2] == ["all-reduce", "data"])
    assert reduced.endswith("1.02 MB")
    assert measured["step_seconds"]["between_hosts"] == pytest.approx(1_017_605 / 5e10)
