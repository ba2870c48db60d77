"""A question goes through few files of this project until its first line is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

pytest.importorskip("transformers", reason="the extra `hf` brings it")

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 64
"""
MOST = {"parent": 30, "child": 45}


@pytest.mark.slow
def test_a_frameworks_file_is_answered_through_few_files(tmp_path: Path) -> None:
    file = tmp_path / "titan.toml"
    file.write_text(TITAN)
    words = [f"config={file}", "devices=8", f"out={tmp_path / 'out'}"]
    script = ROOT / "tests/support/files_on_the_way.py"
    done = subprocess.run(
        [sys.executable, str(script), *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for block in done.stdout.split("\n\n"):
        head, *files = block.splitlines() or [""]
        if " files in the " in head:
            found[head.rpartition(" ")[2]] = [one.strip() for one in files if one.startswith("  ")]
    assert found.keys() == MOST.keys()
    assert {name: len(files) for name, files in found.items() if len(files) > MOST[name]} == {}, found
