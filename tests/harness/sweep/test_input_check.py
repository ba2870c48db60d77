"""The check that builds each cell before any is run: each of its failures is one line."""

import pytest
from toy.sweep import cell, group

from harness.config.validation import ConfigError
from harness.sweep import preflight
from harness.sweep.preflight import refuse_bad_inputs


def test_a_suite_that_fails_to_build_or_builds_for_too_long_is_one_line(monkeypatch):
    groups = [group(cell("nothing"))._replace(package="no_such_package")]
    with pytest.raises(ConfigError) as error:
        refuse_bad_inputs(groups)
    assert str(error.value).startswith("the suite cannot build its cells: ModuleNotFoundError: ")
    assert "\n" not in str(error.value)
    monkeypatch.setattr(preflight, "BUILD_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigError, match=r"it took longer than 0\.01 s"):
        refuse_bad_inputs(groups)
