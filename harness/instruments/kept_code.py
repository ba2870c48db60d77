"""Compiled code that later processes of a sweep find again, in a folder that is removed with the sweep."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER = "HARNESS_COMPILED"
"""Variable that names the folder. Without it nothing is kept."""


class KeptCode(NamedTuple):
    """`method`: "cached" where the code was found, "cold" where it was made and kept, else ""."""

    code: bytes
    method: str


def kept_code(make: Callable[[], bytes], *key: str) -> KeptCode:
    """Return what `make()` returns, or returned in an earlier process for the same key."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return KeptCode(make(), "")
    path = Path(folder, "kept", sha256("\0".join(key).encode()).hexdigest())
    if path.is_file():
        return KeptCode(path.read_bytes(), "cached")
    code = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(code)
    new.replace(path)
    return KeptCode(code, "cold")
