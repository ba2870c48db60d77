"""What is measured while actors are killed: recovery times, and that changed batches are noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_dataloader_loader import corpus, specification

from harness.records import WrongResult
from suites.dataloader.batch import LoaderSpec, pack
from suites.dataloader.disaggregation.plan import BalanceSettings, Mixture, plan_steps
from suites.dataloader.disaggregation.source_reader import SourceReader
from suites.dataloader.failures import TakenBatch, checksum, recoveries_s, refuse_changed


def taken_steps(spec: LoaderSpec, count: int) -> list[list[TakenBatch]]:
    reader, mixture = SourceReader(spec), Mixture(spec)
    plans = plan_steps(spec, mixture, BalanceSettings(), 0, count, lambda wanted: reader.lengths(wanted, {}))
    steps = []
    for groups in plans:
        batches = []
        for pieces in groups:
            parts = [reader.tokens(pieces.chosen(np.array([one]))) for one in range(len(pieces.lengths))]
            batches.append(TakenBatch(np.stack(pieces, axis=1), checksum(*pack(parts, spec.context_length))))
        steps.append(batches)
    return steps


def test_batches_of_the_plan_are_right_and_any_change_is_noticed(tmp_path: Path) -> None:
    spec = specification(corpus(tmp_path), dp_size=2)
    steps = taken_steps(spec, 9)
    assert refuse_changed(spec, steps) == 9 * spec.documents_per_step
    first, second = steps[4]
    for wrong, said in [
        ([first, first], "step 4 has"),
        ([first._replace(pieces=first.pieces[1:]), second], "step 4 has"),
        ([first._replace(checksum=first.checksum ^ 1), second], "step 4: the rows of group 0 differ"),
    ]:
        with pytest.raises(WrongResult, match=said):
            refuse_changed(spec, [*steps[:4], wrong, *steps[5:]])
    with pytest.raises(WrongResult, match="step 4 has"):
        refuse_changed(spec, [*steps[:4], *steps[5:]])


def test_recovery_is_the_time_until_throughput_is_never_low_again() -> None:
    steady_s = np.arange(0, 20, 0.1)
    paused_s = steady_s[(steady_s < 10) | (steady_s >= 13)]
    (at_once_s,) = recoveries_s(paused_s, [10.05], 20.0, 10.0)
    assert at_once_s == pytest.approx(13 - 10.05, abs=0.25)
    (hidden_s,) = recoveries_s(paused_s, [8.0], 20.0, 10.0)  # batches that were ready lasted for two seconds
    assert hidden_s == pytest.approx(13 - 8.0, abs=0.25)
    assert recoveries_s(steady_s, [10.05], 20.0, 10.0) == [0.0]
    (never_s,) = recoveries_s(steady_s[steady_s < 15], [14.0], 20.0, 10.0)
    assert never_s == pytest.approx(20.0 - 14.0, abs=1.2)
    slow_s = np.arange(0, 20, 1.0)  # never back at what it was before
    assert recoveries_s(slow_s, [5.0, 12.0], 20.0, 10.0) == [
        pytest.approx(6.0, abs=0.2),
        pytest.approx(7.0, abs=0.2),
    ]
    first_s, second_s = recoveries_s(paused_s, [9.0, 11.0], 20.0, 10.0)
    assert (first_s, second_s) == (pytest.approx(1.0, abs=0.25), pytest.approx(2.0, abs=0.25))
