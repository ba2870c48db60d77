"""A full dry run, which traces every layer twice, equals the quick and the cached one to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_steps import COUNT, random_steps

from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.live_tensors import live_tensors
from suites.training.dry_run.trace_cache import TraceCache
from suites.training.step import TrainingStep

DRAWS, DRAWN = random_steps(), []  # drawn as far as needed: each takes a moment


def step_of(number: int) -> TrainingStep:
    while len(DRAWN) <= number:
        DRAWN.append(next(DRAWS))
    return DRAWN[number]


@pytest.mark.parametrize("number", range(COUNT))
def test_quick_and_cached_dry_runs_equal_full_ones(number: int, tmp_path: Path, monkeypatch) -> None:
    step = step_of(number)

    def shown(**quick: object) -> tuple[object, ...]:
        """Return all that an answer has of a dry run."""
        run = dry_run(step, Device("cuda"), **quick)
        tensors = live_tensors(run.timeline, step.workload.vocab_size, step.workload.seq_len)
        return run._replace(timeline=None), tensors

    full = shown(full=True)
    quick = {"make_first_step": True, "in_two_processes": True, "traces": TraceCache(tmp_path)}
    assert shown(**quick) == full

    def traced_again(*arguments: object) -> None:
        raise AssertionError("the cache has this trace")

    monkeypatch.setattr(training_dry_run, "timeline_of_step", traced_again)
    assert shown(**quick) == full
