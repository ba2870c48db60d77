"""A plugin of pytest: processes that a test starts are covered under the test's name.

`-p context` with this folder on PYTHONPATH; see README.md.
"""

import os
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parent / "coverage.rc"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Name the test in the environment while it runs: coverage.rc has it as the context."""
    os.environ |= {"MUTANTS_TEST": item.nodeid, "COVERAGE_PROCESS_START": str(SETTINGS)}
    try:
        return (yield)
    finally:
        del os.environ["MUTANTS_TEST"], os.environ["COVERAGE_PROCESS_START"]
