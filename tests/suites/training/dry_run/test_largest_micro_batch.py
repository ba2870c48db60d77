"""The largest micro-batch of a dry run, and what its live tensors are called."""

from __future__ import annotations

import pytest
from small_steps import LLAMA

from harness.instruments.memory.memory_timeline import OpSite
from suites.training.dry_run import largest_batch
from suites.training.dry_run.largest_batch import Fit, Target
from suites.training.dry_run.live_tensors import group_of
from suites.training.techniques import build_step


def test_the_largest_is_the_first_after_which_more_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 109 on the allocator frees its cache in time again, and from 128 on nothing helps."""

    def predicted(step, target, run, workload, count):
        return Fit(count <= 107 or count in (109, 126, 127), int(count > 107))

    monkeypatch.setattr(largest_batch, "predicted_fit", predicted)
    step = build_step(LLAMA, ())
    assert largest_batch.predicted_largest(step, Target(1e9), None, 1, 0, 1000) == 107


def test_activations_are_no_scores_where_the_hidden_size_is_the_sequence_length() -> None:
    def subject(operation: str, *shape: int) -> str:
        return group_of("activations", OpSite("forward 0", operation, shape), 500, 64).subject

    assert subject("aten.mul.Tensor", 2, 64, 64) == "activations kept for the backward pass"
    assert subject("aten._softmax.default", 2, 4, 64, 64) == "attention scores"
    assert subject("aten.bmm.default", 8, 64, 64) == "attention scores"
