"""A process that loads no compiler and few of transformers' modules shows what one with all of them shows."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from places import ROOT

pytest.importorskip("transformers", reason="the extra `hf` brings it")


def process(how: str) -> dict[str, Any]:
    script = ROOT / "tests/support/processes/light_start.py"
    done = subprocess.run(
        [sys.executable, str(script), how],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_bytes_with_few_modules_and_with_all() -> None:
    light, whole = process("lightly"), process("wholly")
    assert light["shown"] == whole["shown"]
    assert (light["deferred"], light["loaded"]) == (True, [])
    assert not whole["deferred"]
