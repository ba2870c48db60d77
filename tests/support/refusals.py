"""Bad input is one line that people can read."""

from collections.abc import Callable

import pytest


def refused(read: Callable[[], object], says: str) -> str:
    """Return the line with which `read` raises ValueError: it says this, in at most 300 characters."""
    with pytest.raises(ValueError) as raised:
        read()
    line = str(raised.value)
    assert says in line
    assert "\n" not in line
    assert len(line) <= 300
    return line
