"""Memory of a step by DDP: its dry run against the allocator, among fake ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_steps import GPT, HOST
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

from harness.records import Unavailable
from suites.memory.live_bytes import measure_peak
from suites.training.correctness import check
from suites.training.dry_run.dry_run import among_ranks, dry_run
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

WIDE = replace(GPT, dp_size=2, num_hidden_layers=3, hidden_size=96, intermediate_size=300)
"""Its states are larger than what its layers keep."""


SETTINGS: list[dict[str, object]] = [{}, {"gradient_as_bucket_view": True}, {"reduce_dtype": "bf16"}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_dry_run_has_the_buckets(settings: dict[str, object]) -> None:
    step = build_step(WIDE, [{"ddp": settings}])
    numbers_B = 64  # torch makes tensors of numbers, and a dry run does not: 8 bytes each
    assert dry_run(step, HOST).peak_B == pytest.approx(measured_B(step), abs=numbers_B)


def measured_B(step: TrainingStep) -> int:
    with among_ranks(step):
        return max(peak.live_B for peak in measure_peak(step, steady_steps=1).peaks)


def test_states_that_come_later_than_the_first_update_are_measured() -> None:
    """An outer step keeps a common model's gradients and momentum; PowerSGD keeps what it did not send."""
    parameters_B = dry_run(build_step(WIDE, []), HOST).by_kind_B["parameters"]
    with_common_model_B = measured_B(build_step(WIDE, ["ddp"]))  # the copy is as large as buckets
    outer_B = with_common_model_B + 2 * parameters_B
    assert measured_B(build_step(WIDE, ["local_sgd"])) == pytest.approx(outer_B, rel=0.01)
    # Of a short sequence the meeting itself, eight tensors as large as the model: its parameters and moments,
    # the common model with gradient and momentum, the rank's change by parameter and as one vector.
    short = build_step(replace(WIDE, micro_batch_size=1, seq_len=4), ["local_sgd"])
    assert measured_B(short) == pytest.approx(8 * parameters_B, rel=0.01)
    approximated = build_step(WIDE, [{"ddp": {"buckets": 1}}, "powersgd"])
    assert measured_B(approximated) > with_common_model_B + parameters_B


def test_torch_compile_takes_buckets_below_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda model, **_: compiled(model, dynamic=False, backend=aot_eager)
    )
    few = replace(GPT, num_hidden_layers=1)  # less than that in all
    check(build_step(few, [{"ddp": {"buckets": 4}}, "compile"]))
    torch._dynamo.reset()


def test_no_outer_step_is_taken_that_masters_undo() -> None:
    with pytest.raises(Unavailable, match="from masters"):
        build_step(WIDE, ["local_sgd", {"mixed_precision": {"gradients": "bf16"}}])
    build_step(WIDE, ["local_sgd", "mixed_precision"])
