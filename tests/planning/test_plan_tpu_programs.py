"""What a TPU program sends and moves, in texts of libtpu 0.0.42 with sums by hand.

The texts are parts of the training step of LLaMA 7B on v5e:4x4 (fsdp 16, remat full, splash),
`kept_on_the_host.txt` of two small layers on v5e:2x2 (remat attention_on_host), and
`stacked_booleans.txt` of BERT large on v5e:2x4, with the compiler's own lines. In
`async_all_gather.txt` the loops and their tuples have only what the fusions need, and the offsets
of slices are constants.
"""

from pathlib import Path

import pytest

from configs import llama
from t5x_like import partitioning
from t5x_like.config import parse as parse_config
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, chips, collectives, compiling, products
from t5x_like.research.planning.hlo import parse

TEXTS = Path(__file__).resolve().parent / "hlo"
# A device's shard of a kernel of the feed-forward layer, bf16[256, 11008]. The gathered kernel is
# 16 times as large, an activation of the layer, bf16[2048, 11008], 8 times.
SHARD = 256 * 11_008 * 2


def read(name):
    return (TEXTS / f"{name}.txt").read_text("utf-8")


@pytest.fixture(scope="module")
def mesh():
    return partitioning.make_mesh({"fsdp": 16}, devices=chips.topology("v5e:4x4").devices())


def sent(program, mesh):
    """{kind: (executions, bytes that a device sends)}."""
    return {one.kind: (one.count, one.bytes) for one in collectives.collect(program, mesh)}


def test_a_collective_in_several_fusions_is_sent_when_it_is_started(mesh):
    # Each of 32 layers gathers two kernels. The first is started in the layer, advanced by two
    # fusions in each of the 4 trips of a loop of the layer (its counter goes up by 2 until 8), and
    # ended in the layer; the second is advanced by a fusion of the layer. A device sends its shard
    # to 15 others. The loop itself has 4 permutations of arrays as large as a shard.
    found = sent(parse(read("async_all_gather")), mesh)
    assert found == {
        "all-gather": (2 * 32, 2 * 32 * 15 * SHARD),
        "collective-permute": (4 * 4 * 32, 4 * 4 * 32 * SHARD),
    }


def test_a_gathered_array_is_written_once():
    # A trip of the inner loop, in shards; what has a buffer on the chip, S(1), is free:
    #   4: the first permutation of each pair reads its operand, the second writes its value;
    #   2: fusion.1001 reads both halves of a kernel, and its product stays on the chip;
    #   16: fusion.1006 reads and writes the activation.
    # And in bytes of scalars: 2 x 4 offsets, 2 x 4 and a truth value, the counter's 12, and the
    # condition's 9.
    inner = 22 * SHARD + 8 + 9 + 12 + 9
    # A layer beside its loop:
    #   2: the shards of both kernels are sliced from the stack, with an offset of 4 bytes each;
    #   2: a copy of the first shard from the chip, and one back;
    #   16: the first kernel is written; the second stays on the chip;
    #   24: fusion.1013 reads the first kernel, under another shape, and writes the activation.
    # The buffer of the activation, custom-call.94, is only reserved.
    layer = 44 * SHARD + 2 * 4 + 12 + 9
    program = parse(read("async_all_gather"))
    assert [loop.trips for loop in program.loops] == [32, 4]
    assert products.memory_bytes(program) == 32 * (layer + 4 * inner)


def test_slices_and_copies_are_read_at_their_start_and_written_at_their_end(mesh):
    program = parse(read("slices_and_copies"))
    # Four slices, f32[8, 2048, 128], are put on the chip; a copy to the chip, one from it, of
    # bf16[2048, 4096]; a permutation within the memory, of bf16[32, 128, 256]; a reserved buffer.
    copied = 2048 * 4096 * 2
    permuted = 32 * 128 * 256 * 2
    assert products.memory_bytes(program) == 4 * (8 * 2048 * 128 * 4) + 2 * copied + 2 * permuted
    assert sent(program, mesh) == {"collective-permute": (1, permuted)}


def test_fusions_count_slices_without_padding_and_nothing_on_the_chip():
    # fusion.924 multiplies an activation of the feed-forward layer, bf16[2048, 11008], with two
    # slices of an activation, bf16[2048, 256], each cut from it where it is padded to twice its
    # size; the product stays on the chip. The others read and write only what is there: one its
    # operand as float32, under another shape; one a slice, in place. Three offsets are read.
    slices = 2 * (2048 * 256 * 2)
    program = parse(read("fusions_on_the_chip"))
    assert products.memory_bytes(program) == 2048 * 11_008 * 2 + slices + 3 * 4


def test_stacked_booleans_are_read_and_written_by_slices():
    # The mask of dropout of one of 24 layers, pred[32, 16, 128, 128], is written into a stack, and
    # read from it. In both fusions a fusion states another tiling of the stack, in its own memory.
    # Two offsets are read. Here the new mask is a parameter on the chip.
    mask = 32 * 16 * 128 * 128
    assert products.memory_bytes(parse(read("stacked_booleans"))) == 2 * mask + 2 * 4


def test_what_is_kept_on_the_host_is_read_once_and_written_once():
    # The queries of two layers, bf16[4, 4, 1024, 128], are copied into a stack on the host, and one
    # is copied back.
    program = parse(read("kept_on_the_host"))
    assert products.memory_bytes(program) == 3 * (4 * 4 * 1024 * 128 * 2)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["query,key,value,context", "query,key,value,context,wi@host"])
def test_activations_are_what_a_device_keeps_for_the_backward_pass(remat):
    layers, rows, tokens, width = 6, 8, 128, 128
    settings = llama.get_config("demo")
    settings.model.update({"attention": "dense", "dtype": "bfloat16", "remat": remat})
    settings.model.layers = layers
    settings.data.batch_size = 4 * rows
    settings.mesh = {"data": 4, "fsdp": 1, "expert": 1, "model": 1}
    model = model_side.build(of_config(settings), devices=chips.topology("v5e:2x2").devices())
    compiled = compiling.compile_step(model, batches.batch(parse_config(settings).data))["update"]
    # Queries, keys, values, the output of attention, and the layer's input. What is on the host,
    # for which libtpu takes a trip out of the loop, takes none of the device's memory.
    assert compiled.memory["activations"] == 5 * layers * rows * tokens * width * 2


def test_a_fusion_reads_the_slice_that_it_puts_on_the_chip():
    text = """
%body (p: f32[9,100], i: s32[]) -> f32[1,100] {
  %p = f32[9,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %part = f32[1,100]{1,0:S(1)} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,100}
}

ENTRY %main (p: f32[9,100], i: s32[]) -> f32[1,100] {
  %p = f32[9,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %out = f32[1,100]{1,0:S(1)} fusion(%p, %i), kind=kLoop, calls=%body
}
"""
    assert products.memory_bytes(parse(text)) == 4 * 100 + 4  # and the index


def test_a_wrapped_collective_is_sent_and_moved_once(mesh):
    groups = "replica_groups=[1,16]<=[16]"
    text = f"""
%wrapped (a: f32[64]) -> f32[4] {{
  %a = f32[64]{{0}} parameter(0)
  ROOT %scatter = f32[4]{{0}} reduce-scatter(%a), channel_id=3, {groups}, to_apply=%add
}}

ENTRY %main (a: f32[64]) -> f32[4] {{
  %a = f32[64]{{0}} parameter(0)
  %start = ((f32[64]{{0}}), f32[4]{{0}}, u32[]) async-start(%a), calls=%wrapped
  %update = ((f32[64]{{0}}), f32[4]{{0}}, u32[]) async-update(%start), calls=%wrapped
  ROOT %done = f32[4]{{0}} async-done(%update), calls=%wrapped
}}
"""
    program = parse(text)
    assert sent(program, mesh) == {"reduce-scatter": (1, 4 * 64 * 15 // 16)}
    assert products.memory_bytes(program) == 4 * 64 + 4 * 4


def test_what_goes_from_slice_to_slice_is_apart():
    # Of the gradient of f32[1024, 2048] on two slices of v5e:2x4, data 4 and fsdp 4, with libtpu's
    # own attributes: a shard of 256 rows is reduced over the two replicas of each slice, 128 rows
    # of it are summed with the other slice's through the hosts, and gathered.
    devices = chips.topology("v5e:2x4", slices=2).devices()
    mesh = partitioning.make_mesh({"data": 4, "fsdp": 4}, devices=devices)
    pairs = "replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, dimensions={0}"
    host = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="'
        'xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.5_0",'
        '_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:7}",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    text = f"""
ENTRY %main (p: f32[256,2048]) -> f32[256,2048] {{
  %p = f32[256,2048]{{1,0}} parameter(0)
  %after = token[] after-all()
  %scatter = f32[128,2048]{{1,0}} reduce-scatter(%p), channel_id=6, {pairs}, to_apply=%add
  %part = f32[256,8,128]{{2,1,0}} bitcast(%scatter)
  %send = (f32[256,8,128]{{2,1,0}}, u32[], token[]) send(%part, %after), channel_id=4, {host}
  %recv = (f32[256,8,128]{{2,1,0}}, u32[], token[]) recv(%after), channel_id=3, {host}
  %send-done = token[] send-done(%send), channel_id=4, is_host_transfer=true
  %recv-done = (f32[256,8,128]{{2,1,0}}, token[]) recv-done(%recv), channel_id=3
  %sum = f32[256,8,128]{{2,1,0}} get-tuple-element(%recv-done), index=0
  %flat = f32[128,2048]{{1,0}} bitcast(%sum)
  ROOT %gather = f32[256,2048]{{1,0}} all-gather(%flat), channel_id=6, {pairs}
}}
"""
    program = parse(text)
    half = 128 * 2048 * 4
    found = collectives.collect(program, mesh)
    assert {(one.kind, one.axes): (one.count, one.bytes) for one in found} == {
        ("all-gather", ("data",)): (1, half),
        ("reduce-scatter", ("data",)): (1, half),
        # Two slices: each sends half of the array to be summed, and then half of the sums.
        ("all-reduce", ("slices",)): (1, half),
    }
    # Reduce: 2 read, 1 written; to the host and back: 1 and 1; gather: 1 read, 2 written.
    assert products.memory_bytes(program) == 8 * half
    # Only what stays within a slice uses its links.
    topology = chips.topology("v5e:2x4", slices=2)
    links = compiling.interconnect_seconds(found, topology)
    inside = [one for one in found if one.axes == ("data",)]
    assert links == compiling.interconnect_seconds(inside, topology) > 0


def test_collectives_of_one_channel_stay_several(mesh):
    # In a `shard_map` all may have the same channel, also beside one that fusions advance.
    gather = "all-gather(%a), channel_id=7, replica_groups=[1,16]<=[16], dimensions={0}"
    chain = 'frontend_attributes={chain_id="0"}'
    text = f"""
%started (a: f32[4]) -> (f32[4], f32[64]) {{
  %a = f32[4]{{0}} parameter(0)
  %gather.1 = f32[64]{{0}} {gather}, {chain}
  ROOT %c = (f32[4], f32[64]) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}}

%advanced (a: f32[4], b: f32[64]) -> (f32[4], f32[64]) {{
  %a = f32[4]{{0}} parameter(0)
  %b = f32[64]{{0}} parameter(1)
  %gather.2 = f32[64]{{0}} {gather}, {chain}
  ROOT %both = (f32[4], f32[64]) tuple(%a, %gather.2)
}}

%fused (a: f32[4]) -> f32[64] {{
  %a = f32[4]{{0}} parameter(0)
  ROOT %gather.3 = f32[64]{{0}} {gather}
}}

ENTRY %main (a: f32[4]) -> f32[64] {{
  %a = f32[4]{{0}} parameter(0)
  %start = (f32[4], f32[64]) fusion(%a), kind=kCustom, calls=%started
  %b = f32[64]{{0}} get-tuple-element(%start), index=1
  %next = (f32[4], f32[64]) fusion(%a, %b), kind=kOutput, calls=%advanced
  %other = f32[64]{{0}} fusion(%a), kind=kLoop, calls=%fused
  ROOT %plain = f32[64]{{0}} {gather}
}}
"""
    assert sent(parse(text), mesh) == {"all-gather": (3, 3 * 15 * 4 * 4)}
