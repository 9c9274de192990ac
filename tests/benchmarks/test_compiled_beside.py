"""The tables of our training steps beside others', from stored programs of the other side."""

import gzip
import json
import math
import sys

import pytest

from benchmarks import beside_flax, beside_flax_rows, compiled_beside
from benchmarks.beside_maxtext import MAXTEXT
from benchmarks.beside_maxtext_rows import ROWS

# An all-gather over `tensor` of a shard [256, 1024], and a product with what it gathers. MaxText
# writes what it compiled for 16 chips: their coordinates in the order of its mesh, here columns.
PROGRAM = """
ENTRY %main (p: bf16[256,1024], x: bf16[2048,1024]) -> bf16[2048,1024] {
  %p = bf16[256,1024]{1,0} parameter(0)
  %x = bf16[2048,1024]{1,0} parameter(1)
  %w = bf16[1024,1024]{1,0} all-gather(%p), channel_id=1, replica_groups=[4,4]<=[16], dimensions={0}
  ROOT %y = bf16[2048,1024]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
STORED = {
    "mesh": {"data": 1, "fsdp": 4, "tensor": 4},
    "coordinates": [[x, y, 0] for x in range(4) for y in range(4)],
    "memory": {
        "peak_memory_in_bytes": 7_000_000_000,
        "argument_size_in_bytes": 2_000_000_000,
        "output_size_in_bytes": 1_500_000_000,
        "alias_size_in_bytes": 1_500_000_000,
    },
    "seconds": 100.0,
    "versions": {"jax": "0.12.0.1", "libtpu": "0.0.52"},
}
SHARD = 256 * 1024 * 2  # bytes
FLOPS = 2 * 2048 * 1024 * 1024


def test_a_program_of_maxtext_counts_as_ours():
    found = compiled_beside.counted(PROGRAM, STORED, topology="v5e:4x4", flops=8 * FLOPS)
    assert found["flops_per_step_compiled"] == 16 * FLOPS
    [gather] = found["collectives"]
    assert (gather["kind"], gather["axis"], gather["bytes"]) == ("all-gather", "tensor", 3 * SHARD)
    # The gather reads a shard and writes four; the product reads these and x, and writes y.
    moved = 9 * SHARD + 2 * (2048 * 1024 * 2)
    assert found["memory_traffic"] == moved
    # The groups lie along y, a line of 4 chips: one link each way, 50 GB/s. v5e: 819 GB/s of
    # memory and 197 TFLOP/s.
    seconds = {"compute": FLOPS / 1.97e14, "memory": moved / 8.19e11}
    seconds["interconnect"] = 3 * SHARD / 5e10
    assert found["step_seconds"] == pytest.approx(seconds)
    # The model has half of the FLOPs that are compiled.
    at_peak = seconds["compute"] / 2
    assert found["utilization_without_overlap"] == pytest.approx(at_peak / sum(seconds.values()))


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    """MaxText's rows, with results in a new folder."""
    monkeypatch.setattr(compiled_beside, "ROOT", tmp_path)
    MAXTEXT.results.mkdir(parents=True)
    return MAXTEXT


def test_a_row_has_both_sides_in_each_cell(comparison):
    ours = {"flops_per_step": 8 * FLOPS, "flops_per_step_compiled": 32 * FLOPS, "devices": 16}
    ours |= {"bytes_per_device": {"temporaries": 4.914e9}, "memory_traffic": 205.4e9}
    ours |= {"collectives": [{"bytes": 40e9}, {"bytes": 6.4e9}]}
    ours |= {"utilization_without_overlap": 0.3512, "versions": {"jax": "0.10.2"}}
    (comparison.results / "llama2_7b_v5e.ours.json").write_text(json.dumps(ours))
    (comparison.results / "llama2_7b_v5e.maxtext.json").write_text(json.dumps(STORED))
    with gzip.open(comparison.results / "llama2_7b_v5e.maxtext.hlo.gz", "wt") as file:
        file.write(PROGRAM)
    own, theirs = compiled_beside.results(comparison, "llama2_7b_v5e")
    cells = compiled_beside.line(ROWS["llama2_7b_v5e"], own, theirs).split(" | ")
    assert cells[:2] == ["| LLaMA 2 7B, fsdp 16, full remat, 1 row", "v5e:4x4"]
    assert cells[2:5] == ["8.5899e+09 / 4.295e+09", "4.91 / 5.00", "205 / 0"]
    assert cells[5] == "46.4 / 0.0"
    assert cells[6].startswith("35.1% / ")
    assert cells[7] == "0.10.2 / 0.12.0.1 |"
    assert {row.count("|") for row in compiled_beside.head()} == {len(cells) + 1}


def test_a_step_that_does_not_fit_has_no_figures():
    refused = {"why": "RESOURCE_EXHAUSTED: Ran out of memory", "versions": {"jax": "0.10.2"}}
    cells = compiled_beside.line(ROWS["llama2_7b_v5e_4"], refused, refused).split(" | ")
    assert cells[2] == "does not fit / does not fit"


def test_an_environment_without_maxtext_is_named():
    with pytest.raises(ValueError, match=r"lacks MaxText or libtpu \(.*maxtext"):
        compiled_beside.find_environment(MAXTEXT, sys.prefix)


def test_stored_results_are_of_the_same_libtpu(comparison):
    def check():
        compiled_beside.check_stored(
            comparison, "llama2_7b_v5e", compiled=("ours",), libtpu="0.0.52"
        )

    with pytest.raises(ValueError, match=r"--only=ours needs .*llama2_7b_v5e.maxtext.json"):
        check()
    stored = comparison.results / "llama2_7b_v5e.maxtext.json"
    stored.write_text(json.dumps({"versions": {"libtpu": "0.0.42"}}))
    with pytest.raises(ValueError, match=r"by libtpu 0.0.42, and --maxtext has 0.0.52"):
        check()
    stored.write_text(json.dumps({"versions": {"libtpu": "0.0.52"}}))
    check()


@pytest.mark.parametrize("name", ROWS)
def test_both_sides_of_a_row_have_the_same_batch_and_mesh(name):
    row, config = ROWS[name], ROWS[name].config()
    settings = row.settings
    mesh = {"fsdp": "fsdp", "expert": "expert", "model": "tensor"}
    sizes = {axis: settings[f"ici_{theirs}_parallelism"] for axis, theirs in mesh.items()}
    assert {axis: config.mesh[axis] for axis in mesh} == sizes
    chips = math.prod(sizes.values())
    assert config.data.batch_size == settings["per_device_batch_size"] * chips
    assert config.data.lengths.targets == settings["max_target_length"]
    assert config.model.dtype == settings["dtype"]


# T5X's names of sizes, and ours.
T5X_NETWORK = {
    "emb_dim": "d_model",
    "num_heads": "heads",
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "head_dim": "d_kv",
    "mlp_dim": "d_ff",
    "logits_via_embedding": "tied_head",
}


@pytest.mark.parametrize("name", beside_flax_rows.ROWS)
def test_both_sides_of_a_row_of_flax_have_the_same_batch_and_mesh(name):
    row, config = beside_flax_rows.ROWS[name], beside_flax_rows.ROWS[name].config()
    settings = row.settings
    # T5X's `data` shards the batch and, in two dimensions, the parameters, as `fsdp` here.
    batch_axis = "fsdp" if settings["program"] == "t5x" else "data"
    axes = {batch_axis: "data", "expert": "expert", "model": "model"}
    sizes = {axis: settings["mesh"].get(theirs, 1) for axis, theirs in axes.items()}
    assert {axis: config.mesh[axis] for axis in axes} == sizes
    number = math.prod(config.mesh[axis] for axis in ("data", "fsdp", "expert", "model"))
    assert number == math.prod(sizes.values())
    assert len(compiled_beside.chips.topology(row.topology).devices()) == number
    assert math.prod(settings.get("submesh", (1,))) == sizes["model"]
    assert config.data.batch_size == settings["rows"]
    assert dict(config.data.lengths) == settings["lengths"]
    assert config.model.dtype == "bfloat16"


def test_sizes_that_t5x_has_in_another_file_are_ours():
    bindings = beside_flax_rows.ROWS["t5_11b_v4"].settings["bindings"]
    model = beside_flax_rows.ROWS["t5_11b_v4"].config().model
    expected = {name: repr(model[ours]) for name, ours in T5X_NETWORK.items()}
    expected["mlp_activations"] = repr((model.feed_forward,))
    assert bindings == {f"network.T5Config.{name}": value for name, value in expected.items()}


def test_a_row_of_t5x_needs_its_source(tmp_path):
    def options(*names, **sources):
        folders = dict.fromkeys(("t5x", "flaxformer")) | sources
        return beside_flax.comparison(names, folders).options

    with pytest.raises(ValueError, match="the row t5_xxl_v4 needs --t5x"):
        options("bert_large_v5e", "t5_xxl_v4")
    with pytest.raises(ValueError, match=r"is not the source of t5x: it has no t5x/trainer.py"):
        options("t5_xxl_v4", t5x=str(tmp_path))
    assert options("bert_large_v5e") == ()
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "trainer.py").touch()
    assert options("t5_xxl_v4", t5x=str(tmp_path)) == (str(tmp_path),)
    with pytest.raises(ValueError, match="the row switch_c_v4 needs --flaxformer"):
        options(t5x=str(tmp_path))
