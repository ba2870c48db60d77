"""Bad input is one line that people can read."""

from collections.abc import Callable

import pytest

from harness.config.validation import ConfigError


def refused(read: Callable[[], object], says: str) -> str:
    """Return the line with which `read` raises ValueError: it says this, in at most 300 characters."""
    line = _line(read, says, ValueError)
    assert len(line) <= 300
    return line


def mistaken(read: Callable[[], object], says: str) -> str:
    """Return the line with which `read` raises ConfigError: it says this. Commands shorten it."""
    return _line(read, says, ConfigError)


def _line(read: Callable[[], object], says: str, error: type[Exception]) -> str:
    with pytest.raises(error) as raised:
        read()
    line = str(raised.value)
    assert says in line
    assert "\n" not in line
    return line
