"""Reading a compiled program: how often things run, the work of products, bytes, exchanges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like.research.planning import collectives, hlo, products
from t5x_like.research.planning.hlo import Array, parse

AXES = ("data", "fsdp", "expert", "model")


def mesh(*shape):
    devices = np.asarray(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * 4)


def compiled(fn, *args):
    return parse(jax.jit(fn).lower(*args).compile().as_text())


def matrix(*shape, **kwargs):
    return jax.ShapeDtypeStruct(shape, jnp.float32, **kwargs)


def test_products_in_loops_count_as_often_as_they_run():
    def fn(x, w):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        def part(total, rows):
            return total + jax.lax.scan(layer, rows, w)[0].sum(), None

        return jax.lax.scan(part, 0.0, x)[0]

    program = compiled(fn, matrix(3, 16, 32), matrix(5, 32, 32))
    assert products.flops(program) == 3 * 5 * 2 * 16 * 32 * 32
    assert [loop.trips for loop in program.loops] == [3, 5]


_DECLARED = '"cost_estimate":{"flops":"5000","transcendentals":"1","bytes_accessed":"4000"}'


def test_a_kernel_counts_with_what_it_declares():
    def text(settings):
        return f"""HloModule made

ENTRY %main (p: f32[8,16]) -> f32[8,16] {{
  %p = f32[8,16]{{1,0}} parameter(0)
  ROOT %k = f32[8,16]{{1,0}} custom-call(%p), custom_call_target="tpu_custom_call", {settings}
}}
"""

    declared = parse(text(f'backend_config={{"custom_call_config":{{"body":"TU",{_DECLARED}}}}}'))
    silent = parse(text('backend_config={"custom_call_config":{"body":"TU"}}'))
    assert (products.flops(declared), products.memory_bytes(declared)) == (5000, 4000)
    assert (products.flops(silent), products.memory_bytes(silent)) == (0, 2 * 4 * 8 * 16)


def test_a_table_of_biases_is_no_factor_of_a_kernels_products():
    # The operands of `relative_flash` for 16 heads, as libtpu orders them.
    found = parse(f"""HloModule made

ENTRY %main () -> bf16[32,16,64,512] {{
  %table = f32[16,32]{{1,0}} parameter(0)
  %segments = s32[32,1,512]{{2,1,0}} parameter(1)
  %q = bf16[32,16,64,512]{{3,2,1,0}} parameter(2)
  ROOT %k = bf16[32,16,64,512]{{3,2,1,0}} custom-call(%table, %segments, %segments, %q, %q, %q), custom_call_target="tpu_custom_call", backend_config={{"custom_call_config":{{"body":"TU",{_DECLARED}}}}}
}}
""")  # noqa: E501  # HLO has an instruction per line
    assert products.by_type(found) == {"bf16": products.Products(count=1, flops=5000)}


@pytest.mark.parametrize(
    ("kernel", "numbers", "sizes", "pairs", "times"),
    [
        ("fwd_segmented_residuals", "1,4,4", (512, 512), 10 * 512 * 512, 2),
        ("fwd_no_residuals", "1,4,4", (512, 512), 2048 * 2048, 2),
        ("dq_no_residuals", "1,4,3", (512, 512), 9 * 512 * 512, 3),
        ("dkv_no_residuals", "1,3,4", (512, 512), 9 * 512 * 512, 4),
        # Queries up to 1,024 see two blocks of 512 keys, and further ones four.
        ("dq_no_residuals", "1,2,4", (1024, 512), 6 * 1024 * 512, 3),
        # Of three blocks of 512 queries each sees one of 1,536 keys; the fourth sees both.
        ("fwd_segmented_residuals", "1,4,2", (512, 1536), 5 * 512 * 1536, 2),
        # The first half of the keys is seen by four blocks of queries, the second by two.
        ("dkv_segmented_no_residuals", "1,4,2", (512, 1024), 6 * 512 * 1024, 4),
        ("dkv_segmented_no_residuals", "1,4,2", (512, 1024), 6 * 512 * 1024, 5),
    ],
    ids=["causal", "full", "window", "window, by keys", "wide", "long", "long, by keys", "fused"],
)
def test_splash_attention_counts_with_the_products_of_its_blocks(
    kernel, numbers, sizes, pairs, times
):
    slots = "s32[2,8,2048]" if kernel == "fwd_no_residuals" else "s32[2048,128]"
    # The values of libtpu 0.0.42: two sums, in the fused kernel the parts of the queries' gradient,
    # and the gradients of keys and values.
    of_queries = ["bf16[2,2,4,2048,64]"] * (times == 5)
    parts = ["f32[512,64]"] * 2 + of_queries + ["bf16[2,2,2048,64]"] * 2
    value = f"({', '.join(parts)})" if kernel.startswith("dkv") else "bf16[2,4,2048,64]"
    phase = {"dq": "_dq", "dk": "_dkv"}.get(kernel[:2], "")
    queries, keys = sizes
    found = parse(f"""
ENTRY %main () -> f32[2,4,2048,64] {{
  %n = s8[{numbers}]{{2,1,0}} parameter(0)
  %q = bf16[2,4,2048,64]{{3,2,1,0}} parameter(1)
  %k = bf16[2,2,2048,64]{{3,2,1,0}} parameter(2)
  %s = {slots}{{1,0}} parameter(3)
  ROOT %splash_mha_{kernel}.1 = {value} custom-call(%n, %q, %k, %k, %s), custom_call_target="tpu_custom_call", frontend_attributes={{kernel_metadata={{
"xprof_metadata":"{{\\"block_q{phase}\\": {queries}, \\"block_kv{phase}\\": {keys}, \\"q_layout\\": 1}}"
}}}}
}}""")  # noqa: E501  # HLO has an instruction per line
    assert products.flops(found) == times * pairs * (2 * 4) * 2 * 64


def test_a_loop_of_unknown_length_is_counted():
    program = compiled(
        lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x), matrix(8, 8)
    )
    assert [loop.trips for loop in program.loops] == [None]
    assert products.flops(program) == 2 * 8**3


@pytest.mark.parametrize(
    ("first", "step", "limit", "trips"), [(0, 1, 7, 7), (2, 1, 7, 5), (0, 2, 7, 4), (9, 1, 7, 0)]
)
def test_a_loop_counts_from_its_start_by_its_step(first, step, limit, trips):
    text = f"""HloModule made

%condition (p: (s32[], f32[2,2])) -> pred[] {{
  %p = (s32[], f32[2,2]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] constant({limit})
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}

%body (p: (s32[], f32[2,2])) -> (s32[], f32[2,2]) {{
  %p = (s32[], f32[2,2]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  %x = f32[2,2] get-tuple-element(%p), index=1
  %square = f32[2,2] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %both = (s32[], f32[2,2]) tuple(%next, %square)
}}

ENTRY %main (x: f32[2,2]) -> (s32[], f32[2,2]) {{
  %x = f32[2,2] parameter(0)
  %first = s32[] constant({first})
  %start = s32[] copy(%first)
  %both = (s32[], f32[2,2]) tuple(%start, %x)
  ROOT %loop = (s32[], f32[2,2]) while(%both), condition=%condition, body=%body
}}
"""
    program = parse(text)
    assert [loop.trips for loop in program.loops] == [trips]
    assert products.flops(program) == trips * 2 * 2 * 2 * 2


@pytest.mark.parametrize("other", ["%going", "%less"])
def test_a_loop_that_can_end_early_counts_in_full(other):
    text = f"""HloModule made

%condition (p: (s32[], pred[], f32[2,2], f32[2,2])) -> pred[] {{
  %p = (s32[], pred[], f32[2,2], f32[2,2]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %limit = s32[] constant(7)
  %less = pred[] compare(%next, %limit), direction=LT
  %going = pred[] get-tuple-element(%p), index=1
  ROOT %both = pred[] and({other}, %{"less" if other == "%going" else "going"})
}}

%body (p: (s32[], pred[], f32[2,2], f32[2,2])) -> (s32[], pred[], f32[2,2], f32[2,2]) {{
  %p = (s32[], pred[], f32[2,2], f32[2,2]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %going = pred[] get-tuple-element(%p), index=1
  %x = f32[2,2] get-tuple-element(%p), index=2
  %w = f32[2,2] get-tuple-element(%p), index=3
  %y = f32[2,2] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %all = (s32[], pred[], f32[2,2], f32[2,2]) tuple(%next, %going, %y, %w)
}}

ENTRY %main (g: pred[], x: f32[2,2], w: f32[2,2]) -> (s32[], pred[], f32[2,2], f32[2,2]) {{
  %g = pred[] parameter(0)
  %x = f32[2,2] parameter(1)
  %w = f32[2,2] parameter(2)
  %first = s32[] constant(0)
  %all = (s32[], pred[], f32[2,2], f32[2,2]) tuple(%first, %g, %x, %w)
  ROOT %loop = (s32[], pred[], f32[2,2], f32[2,2]) while(%all), condition=%condition, body=%body
}}
"""
    program = parse(text)
    [loop] = program.loops
    assert (loop.trips, loop.early) == (6, True)
    assert products.flops(program) == 6 * 2 * 2 * 2 * 2
    # The counter and `x`; `w` stays.
    assert loop.changed(program.computations) == 4 + 16


def test_without_loops_the_compiler_counts_the_same_work():
    def fn(q, k):
        return jnp.einsum("bthk,bshk->bhts", q, k)

    q = matrix(2, 16, 3, 8)
    lowered = jax.jit(fn).lower(q, q).compile()
    ours = products.flops(parse(lowered.as_text()))
    # It adds element-wise work; here there is none.
    assert ours == lowered.cost_analysis()["flops"] == 2 * 2 * 3 * 16 * 16 * 8


CONVOLUTION = """HloModule made

ENTRY %main (a: bf16[4,512,6,64], b: bf16[4,512,6,64]) -> f32[4,6,512,512] {
  %a = bf16[4,512,6,64]{3,2,1,0} parameter(0)
  %b = bf16[4,512,6,64]{3,2,1,0} parameter(1)
  ROOT %out = f32[4,6,512,512]{3,2,1,0:T(8,128)S(1)} convolution(%a, %b), \
window={size=4x6 stride=3x5 lhs_dilate=4x6}, dim_labels=0b1f_0o1i->01bf
}
"""


def test_a_product_of_a_batch_that_a_tpu_writes_as_a_convolution():
    program = parse(CONVOLUTION)
    assert products.flops(program) == 2 * 4 * 6 * 512 * 512 * 64
    # Two operands in the main memory; the result lies beside the arithmetic.
    assert products.memory_bytes(program) == 2 * 2 * 4 * 512 * 6 * 64


@pytest.mark.parametrize(
    ("window", "positions"),
    [
        ("size=5", 8 - 5 + 1),  # inside alone: every pair meets an input
        ("size=3 pad=1_1", 8),
        ("size=2 stride=2", 4),
        ("size=3 rhs_dilate=2", 4),
    ],
)
def test_only_pairs_that_meet_an_input_are_work(window, positions):
    size = int(window.split()[0].removeprefix("size="))
    text = f"""HloModule made

ENTRY %main (a: f32[1,8,2], b: f32[{size},2,3]) -> f32[1,{positions},3] {{
  %a = f32[1,8,2] parameter(0)
  %b = f32[{size},2,3] parameter(1)
  ROOT %out = f32[1,{positions},3] convolution(%a, %b), window={{{window}}}, dim_labels=b0f_0io->b0f
}}
"""
    beside = 2 * ("pad" in window)  # at either end one pair meets padding
    assert products.flops(parse(text)) == 2 * 2 * 3 * (positions * size - beside)


def test_of_what_is_sliced_or_updated_in_place_the_slice_is_moved():
    text = """HloModule made

%body (p: f32[9,100], i: s32[], u: f32[1,100]) -> f32[9,100] {
  %p = f32[9,100] parameter(0)
  %i = s32[] parameter(1)
  %u = f32[1,100] parameter(2)
  %zero = s32[] constant(0)
  ROOT %done = f32[9,100] dynamic-update-slice(%p, %u, %i, %zero)
}

ENTRY %main (p: f32[9,100], i: s32[], u: f32[1,100]) -> f32[9,100] {
  %p = f32[9,100] parameter(0)
  %i = s32[] parameter(1)
  %u = f32[1,100] parameter(2)
  ROOT %out = f32[9,100] fusion(%p, %i, %u), kind=kLoop, calls=%body
}
"""
    index = 4
    assert products.memory_bytes(parse(text)) == 400 + index + 400  # read and written


def test_types_are_read_with_their_place():
    found = hlo.arrays("(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/s32[], pred[4]{0})")
    assert found == (
        Array("bf16", (2, 3), space=1),
        Array("s32", ()),
        Array("pred", (4,)),
    )
    assert [array.bytes for array in found] == [12, 4, 4]


def test_the_settings_of_a_kernel_take_several_lines():
    text = """HloModule m

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %kernel = f32[2]{0} custom-call(%x), custom_call_target="tpu_custom_call", attributes={
"blocks": "{ a = b }"
}}, metadata={op_name="kernel"}
  ROOT %y = f32[2]{0} negate(%kernel)
}
"""
    (computation,), entry = hlo.read(text)[0].values(), hlo.read(text)[1]
    assert entry == "main"
    assert [one.opcode for one in computation.values()] == ["parameter", "custom-call", "negate"]
    assert computation["y"].is_root


def test_a_text_without_an_entry_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("HloModule empty")


def gathered(groups, *, shape=(2, 2, 1, 2)):
    """The exchange of a program that has one all-gather among these groups."""
    text = f"""HloModule made

ENTRY %main (a: f32[4,8]) -> f32[8,8] {{
  %a = f32[4,8] parameter(0)
  ROOT %out = f32[8,8] all-gather(%a), channel_id=1, replica_groups={groups}, \
dimensions={{0}}, use_global_device_ids=true
}}
"""
    [one] = collectives.collect(parse(text), mesh(*shape))
    return one


@pytest.mark.parametrize(
    ("groups", "axes", "members"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("model",), 2),
        ("[4,2]<=[8]", ("model",), 2),
        ("[4,2]<=[2,4]T(1,0)", ("data",), 2),
        ("[4,2]<=[2,2,2]T(0,2,1)", ("fsdp",), 2),
        ("[2,4]<=[8]", ("fsdp", "model"), 4),
        ("{}", ("data", "fsdp", "model"), 8),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ("data",), 2),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ("data",), 2),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ("fsdp",), 2),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", ("model",), 2),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ("data", "model"), 4),
    ],
)
def test_every_way_to_write_groups_gives_the_axes(groups, axes, members):
    one = gathered(groups)
    assert (one.kind, one.axes, one.count) == ("all-gather", axes, 1)
    assert one.bytes == (members - 1) * 4 * 8 * 4
    assert one.largest == members * 4 * 8 * 4


def test_exchanges_of_a_real_program_are_over_the_axes_that_they_cross():
    here = mesh(2, 2, 1, 2)
    rows = NamedSharding(here, P("data"))
    weights = NamedSharding(here, P("fsdp", "model"))

    def fn(x, w):
        def layer(x, w):
            return jax.lax.with_sharding_constraint(x @ w, rows), None

        return jax.lax.scan(layer, x, w)[0]

    with jax.set_mesh(here):
        program = compiled(
            fn,
            matrix(16, 32, sharding=rows),
            matrix(3, 32, 32, sharding=NamedSharding(here, P(None, *weights.spec))),
        )
    found = {one.axes: one for one in collectives.collect(program, here)}
    assert all(one.count == 3 for one in found.values())
    assert {axis for axes in found for axis in axes} == {"fsdp", "model"}


def test_an_exchange_that_several_fusions_share_counts_once():
    text = """HloModule made

%first (a: f32[4]) -> f32[8] {
  %a = f32[4] parameter(0)
  ROOT %gather.1 = f32[8] all-gather(%a), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}
}

%second (a: f32[4]) -> f32[8] {
  %a = f32[4] parameter(0)
  ROOT %gather.2 = f32[8] all-gather(%a), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}
}

ENTRY %main (a: f32[4]) -> f32[8] {
  %a = f32[4] parameter(0)
  %one = f32[8] fusion(%a), kind=kCustom, calls=%first
  ROOT %two = f32[8] fusion(%a), kind=kCustom, calls=%second
}
"""
    [one] = collectives.collect(parse(text), mesh(2, 2, 1, 2))
    assert one.count == 1


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("%out = f32[64] all-reduce(%a)", "all-reduce", 2 * 256 * 3 // 4),
        ("%out = f32[16] reduce-scatter(%a)", "reduce-scatter", 256 * 3 // 4),
        ("%out = f32[64] all-to-all(%a)", "all-to-all", 256 * 3 // 4),
    ],
)
def test_bytes_that_a_device_sends(line, kind, sent):
    text = f"""HloModule made

ENTRY %main (a: f32[64]) -> f32[64] {{
  %a = f32[64] parameter(0)
  ROOT {line}, channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
}}
"""
    [one] = collectives.collect(parse(text), mesh(2, 2, 1, 2))
    assert (one.kind, one.axes, one.bytes) == (kind, ("fsdp", "model"), sent)


def test_a_permutation_lies_along_the_axis_of_its_pairs():
    text = """HloModule made

ENTRY %main (a: f32[64]) -> f32[64] {
  %a = f32[64] parameter(0)
  ROOT %out = f32[64] collective-permute(%a), source_target_pairs={{0,4},{4,0},{1,5},{5,1}}
}
"""
    [one] = collectives.collect(parse(text), mesh(2, 2, 1, 2))
    assert (one.axes, one.bytes) == (("data",), 256)
