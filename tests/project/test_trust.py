"""docs/trust.md says what the kept samples say, and the experiments' table counts right."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.trust import table

from harness.config.code_fingerprint import ROOT


def rounds_of(units: Sequence[int], spread: float, seed: int) -> list[list[list[float]]]:
    """Return times of five processes of 20 rounds: each variant takes as long as it has units, with noise."""
    draw = random.Random(seed)
    return [[[n * (1 + draw.gauss(0, spread)) for _ in range(20)] for n in units] for _ in range(5)]


def test_a_slowdown_without_noise_costs_and_identical_code_does_not(tmp_path: Path) -> None:
    units = [20, 20, 20, 21, 19]
    line = {"op": "exp_1", "units": units, "times": rounds_of(units, 0.001, 0)}
    (tmp_path / "ours_five.jsonl").write_text(json.dumps(line) + "\n")
    found = list(table.comparisons(table.lines_of(tmp_path, "ours_five")))
    assert [(round(one.slowdown, 3), one.called) for one in found] == [
        (0.0, "no difference"),
        (0.05, "costs"),
        (-0.05, "pays"),
    ]
    assert found[1].found.value == pytest.approx(1.05, rel=2e-3)


@pytest.mark.skipif(not (table.REFERENCE / "ours_five.jsonl.gz").exists(), reason="no kept samples here")
def test_the_page_says_what_the_kept_samples_say() -> None:
    page = (ROOT / "docs/trust.md").read_text().splitlines()
    parts = (table.ours, table.by_duration, table.peers, table.watching)
    missing = [line for part in parts for line in part(table.REFERENCE) if line not in page]
    assert not missing
