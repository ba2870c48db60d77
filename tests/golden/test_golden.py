"""What commands answered: their exit status, and values of their first lines, which a change may not lose.

answers.jsonl has a line per command. `@M` stands for models/, `@C` for cases/, `@R` for results/reference. A
change that means to alter an answer takes that line anew, and says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT

HERE = Path(__file__).parent
PLACES = {"@M": HERE / "models", "@C": HERE / "cases", "@R": ROOT / "results/reference"}
ANSWERS = [json.loads(line) for line in (HERE / "answers.jsonl").read_text().splitlines()]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
KEPT = 0.9
"""Share of the values that have to be printed still; sentences and their order may change."""

CLOSE = 0.002
"""Relative difference up to which two values are the same."""


def share_kept(before, now):
    """Return the share of the values of two digits and more that are printed now."""
    said = [one for one in before if abs(one) >= 10 or one != int(one)]
    there = [
        one for one in said if any(abs(one - other) <= CLOSE * max(abs(one), abs(other)) for other in now)
    ]
    return len(there) / len(said) if said else 1.0


def test_a_lost_value_is_seen():
    assert share_kept([80.2, 83.8, 3.0], [80.25, 83.8]) == 1
    assert share_kept([80.2, 83.8], [80.2, 90.0]) == 0.5


@pytest.mark.long
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: one["command"])
def test_a_command_answers_as_before(answer, tmp_path):
    words = answer["command"]
    for mark, folder in PLACES.items():
        words = words.replace(mark, str(folder))
    command = [sys.executable, "-m", *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == answer["status"], run.stderr
    assert not [name for name in answer["named"] if name not in run.stderr], run.stderr
    printed = [float(one.replace(",", "")) for one in NUMBER.findall(run.stdout)]
    assert share_kept(answer["figures"], printed) >= KEPT, run.stdout
