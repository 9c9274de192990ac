"""Folders of benchmarks, for the tests of their tasks."""

import pytest

from tests.programs import benchmark_rows
from tests.programs.benchmark_tasks import SUITES


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("benchmarks")
    return {name: str(benchmark_rows.write(made / name, own)) for name, own in SUITES.items()}
