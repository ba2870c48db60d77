"""What 59 commands answered: their exit status, and the values of their first lines, which a change may not lose.

answers.jsonl has a line per command. `@M` stands for models/, `@C` for cases/, `@R` for results/reference. A change that
means to alter an answer takes that line anew, and says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.config.code_fingerprint import ROOT

HERE = Path(__file__).parent
ANSWERS = [json.loads(line) for line in (HERE / "answers.jsonl").read_text().splitlines()]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
KEPT = 0.9
"""Share of the values that have to be printed still; sentences and their order may change."""

CLOSE = 0.002
"""Relative difference up to which two values are the same."""


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in NUMBER.findall(text)]


def share_kept(before: list[float], now: list[float]) -> float:
    """Return the share of the values of two digits and more that are printed now."""
    said = [one for one in before if abs(one) >= 10 or one != int(one)]
    there = [
        one for one in said if any(abs(one - other) <= CLOSE * max(abs(one), abs(other)) for other in now)
    ]
    return len(there) / len(said) if said else 1.0


def test_a_lost_value_is_seen() -> None:
    assert share_kept([80.2, 83.8, 3.0], [80.25, 83.8]) == 1
    assert share_kept([80.2, 83.8], [80.2, 90.0]) == 0.5


@pytest.mark.long
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: one["command"])
def test_a_command_answers_as_before(answer: dict[str, Any], tmp_path: Path) -> None:
    places = {"@M": HERE / "models", "@C": HERE / "cases", "@R": ROOT / "results/reference"}
    words = answer["command"]
    for mark, folder in places.items():
        words = words.replace(mark, str(folder))
    run = subprocess.run(
        [sys.executable, "-m", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == answer["status"], run.stderr
    assert not [name for name in answer["named"] if name not in run.stderr], run.stderr
    assert share_kept(answer["figures"], numbers(run.stdout)) >= KEPT, run.stdout
