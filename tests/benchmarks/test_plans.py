"""The tables of docs/plans.md that `make plans` writes."""

from benchmarks import plans


def test_each_row_has_a_cell_for_each_heading():
    plan = {"mesh": {"data": 1, "fsdp": 4}, "devices": 4, "topology": "v5e:2x2"}
    plan |= {"parameters": 1000, "memory_per_device": 16e9, "text": "the output\n"}
    plan |= {"bytes_per_device": {"state": 4e9}}
    fits = plan | {"bytes_per_device": {"peak": 8e9}, "step_seconds_lower_bound": 0.5}
    fits |= {"utilization_ceiling": 0.804, "utilization_without_overlap": 0.351}
    found = {"t5_11b_v4": fits, "gpt3_175b_v4": plan}
    lines = plans.section(found).splitlines()
    heads, rule, small, large = lines[1:5]
    assert heads.endswith("| step at least | utilization at most | without overlap |")
    assert small.endswith("| 8.0 GB | 16.0 GB | 0.5 s | 80% | 35% |")
    assert "does not fit" in large
    assert {line.count("|") for line in (heads, rule, small, large)} == {heads.count("|")}


def test_a_published_run_has_the_errors_of_its_plan():
    # Published: 66.86%; 33.43% is half of it, 80.232% is 1.2 times as much.
    found = {"utilization_ceiling": 0.80232, "utilization_without_overlap": 0.3343}
    found |= {"bytes_per_device": {"peak": 20.16e9}, "memory_per_device": 16.9e9}
    too_large = {"bytes_per_device": {"state": 4e9}, "memory_per_device": 16.9e9}
    lines = plans.published({"32b_v5e": found, "16b_v5e": too_large}).splitlines()
    assert lines[1].endswith("| plan | peak | of | without overlap | error | at most | error |")
    row = "| 32B, MaxText | v5e:16x16 | 66.9% | [4] | 32b_v5e | 20.2 GB | 16.9 GB "
    assert row + "| 33.4% | -50% | 80.2% | +20% |" in lines
    assert any(line.endswith("| does not fit | 16.9 GB |  |  |  |  |") for line in lines)
    # A run without a stored plan is there, too.
    assert "| 64B, MaxText | v5e:16x16 | 59.9% | [4] | 64b_v5e |  |  |  |  |  |  |" in lines
    assert {line.count("|") for line in lines if line} == {12}


def test_only_what_make_plans_writes_of_the_page_changes():
    begin, end = plans.BEGIN, plans.END
    page = f"a\n{begin}old{end}b\n{begin}old{end}c\n"
    assert plans.written(page, "1", "2") == f"a\n{begin}1{end}b\n{begin}2{end}c\n"
