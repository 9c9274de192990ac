"""The table of docs/plans.md that `make plans` writes."""

from benchmarks import plans


def test_each_row_has_a_cell_for_each_heading():
    plan = {"mesh": {"data": 1, "fsdp": 4}, "devices": 4, "topology": "v5e:2x2"}
    plan |= {"parameters": 1000, "memory_per_device": 16e9, "text": "the output\n"}
    fits = plan | {"bytes_per_device": {"peak": 8e9}, "step_seconds_lower_bound": 0.5}
    fits |= {"utilization_ceiling": 0.804, "utilization_without_overlap": 0.351}
    lines = plans.section({"small": fits, "large": plan}).splitlines()
    heads, rule, small, large = lines[1:5]
    assert heads.endswith("| step at least | utilization at most | without overlap |")
    assert small.endswith("| 8.0 GB | 16.0 GB | 0.5 s | 80% | 35% |")
    assert "does not fit" in large
    assert {line.count("|") for line in (heads, rule, small, large)} == {heads.count("|")}
