"""Memory of a step by DDP: its dry run against the allocator, among fake ranks and on real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_steps import GPT, HOST
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from suites.memory.live_bytes import measure_peak
from suites.training.correctness import check
from suites.training.dry_run.dry_run import among_ranks, dry_run
from suites.training.techniques import build_step
from suites.training.workload import Workload

WIDE = replace(GPT, dp_size=2, num_hidden_layers=3, hidden_size=96, intermediate_size=300)
"""Its states are larger than what its layers keep."""

VIEWS = {"ddp": {"gradient_as_bucket_view": True}}
SET_UPS: dict[str, list[Any]] = {
    "ddp": ["ddp"],
    "views": [VIEWS],
    "mixed precision": ["ddp", "mixed_precision"],
    "bf16 reduction": [{"ddp": {"reduce_dtype": "bf16"}}],
    "checkpointing": ["ddp", "activation_checkpointing"],
}
NUMBERS_B = 64
"""Numbers that torch makes tensors of, and a dry run does not: 8 bytes each."""


def measured_B(given: list[Any], workload: Workload = WIDE) -> int:
    step = build_step(workload, given)
    with among_ranks(step):
        return max(peak.live_B for peak in measure_peak(step, steady_steps=1).peaks)


@pytest.mark.parametrize("name", SET_UPS)
def test_the_dry_run_has_the_buckets(name: str) -> None:
    assert dry_run(build_step(WIDE, SET_UPS[name]), HOST).peak_B == pytest.approx(
        measured_B(SET_UPS[name]), abs=NUMBERS_B
    )


def test_buckets_hold_the_gradients_once_more_and_count_as_communication() -> None:
    plain, ours = (dry_run(build_step(WIDE, given), HOST) for given in ([], ["ddp"]))
    gradients_B = plain.by_kind_B["parameters"]  # fp32, as the gradients
    assert ours.by_kind_B["communication"] == pytest.approx(gradients_B, rel=0.01)
    assert ours.peak_B - plain.peak_B == ours.by_kind_B["communication"]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool([RankLocation(environment={"OMP_NUM_THREADS": "1"})] * 2, "127.0.0.1") as ranks:
        yield ranks


@pytest.mark.parametrize("name", ["ddp", "views"])
def test_real_ranks_take_as_much(name: str, pool: RankPool) -> None:
    step = build_step(WIDE, SET_UPS[name])
    each_B = pool.call("suites.training.on_rank:peak_memory", step=step.described)
    assert each_B == pytest.approx([dry_run(step, HOST).peak_B] * 2, rel=0.0025)


def test_states_that_come_later_than_the_first_update_are_measured() -> None:
    """An outer step keeps a common model's gradients and momentum; PowerSGD keeps what it did not send."""
    parameters_B = dry_run(build_step(WIDE, []), HOST).by_kind_B["parameters"]
    with_common_model_B = measured_B(["ddp"])  # the copy is as large as buckets
    assert measured_B(["local_sgd"]) == pytest.approx(with_common_model_B + 2 * parameters_B, rel=0.01)
    # Of a short sequence the meeting itself, eight tensors as large as the model: its parameters and moments,
    # the common model with gradient and momentum, the rank's change by parameter and as one vector.
    short = replace(WIDE, micro_batch_size=1, seq_len=4)
    assert measured_B(["local_sgd"], short) == pytest.approx(8 * parameters_B, rel=0.01)
    approximated_B = measured_B([{"ddp": {"buckets": 1}}, "powersgd"])
    assert approximated_B > with_common_model_B + parameters_B


@pytest.mark.parametrize("buckets", [1, 4])
def test_torch_compile_takes_buckets_below_a_mebibyte(buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda model, **_: compiled(model, dynamic=False, backend=aot_eager)
    )
    check(build_step(GPT, [{"ddp": {"buckets": buckets}}, "compile"]))  # by a model of less than that
    torch._dynamo.reset()
