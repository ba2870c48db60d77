"""A full dry run, which traces every layer twice, equals the quick and the cached one to the byte."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from random_recipes import COUNT, random_steps

from suites.training.dry_run import dry_run as training_dry_run
from suites.training.dry_run.dry_run import Device, DryRun, dry_run
from suites.training.dry_run.live_tensors import live_tensors
from suites.training.dry_run.trace_cache import TraceCache
from suites.training.step import TrainingStep

CUDA = Device("cuda")


@cache
def steps() -> list[TrainingStep]:
    return list(random_steps())


def shown(step: TrainingStep, run: DryRun) -> tuple[object, ...]:
    """Return all that an answer has of a dry run."""
    assert run.timeline is not None
    workload = step.workload
    return run._replace(timeline=None), live_tensors(run.timeline, workload.vocab_size, workload.seq_len)


@pytest.mark.parametrize("number", range(COUNT))
def test_quick_and_cached_dry_runs_equal_full_ones(number: int, tmp_path: Path, monkeypatch) -> None:
    """All that an answer has is that of two full steps through every layer."""
    step = steps()[number]
    full = shown(step, dry_run(step, CUDA, full=True))
    quick = {"make_first_step": True, "in_two_processes": True, "traces": TraceCache(tmp_path)}
    assert shown(step, dry_run(step, CUDA, **quick)) == full

    def traced_again(*arguments: object) -> None:
        raise AssertionError("the cache has this trace")

    monkeypatch.setattr(training_dry_run, "timeline_of_step", traced_again)
    assert shown(step, dry_run(step, CUDA, **quick)) == full
