"""How much room the allocator needs over its allocated peak: replays of dry runs, in stated ranges."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from harness.instruments.memory.caching_allocator import AllocatorSettings, DeviceFullError, replay
from suites.training import techniques
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.layouts.layout import Layouts
from suites.training.layouts.room import CUDA_CONTEXT_B, NCCL_OF_MORE_B, NCCL_OF_TWO_B, outside_allocator_B
from suites.training.workload import Workload

SIZES: dict[str, Any] = {
    "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 8192, "vocab_size": 128256, "seq_len": 4096, "dp_size": 8, "optimizer_impl": "fused",
}  # fmt: skip


@pytest.mark.parametrize("recipe", [[], ["activation_checkpointing"]], ids=str)
def test_the_needed_room_is_within_the_stated_range(recipe: list[Any]):
    listed = ["fsdp2", "mixed_precision", {"attention": {"kernel": "flash"}}, *recipe]
    step = techniques.build_step(asdict(Workload(**SIZES)), listed, 0)
    run = dry_run(step, Device("cuda", architecture="hopper"))
    requests = list(run.timeline.requests())

    def retries(room_B: float) -> float:
        try:
            return replay(requests, AllocatorSettings(), room_B).retries
        except DeviceFullError:
            return np.inf

    shares = np.linspace(1.0, 1.5, 51)
    found = [retries(share * run.allocated_B) for share in shares]
    needed = next(share for share, count in zip(shares, found, strict=True) if count < np.inf)
    quiet = next(share for share, count in zip(shares, found, strict=True) if count == 0)
    assert 1.0 <= needed <= 1.17
    assert 1.05 <= quiet <= 1.40


def test_each_group_of_ranks_has_a_communicator():
    layouts = Layouts.of([{}, {"dp": 2}, {"dp": 8, "tp": 2, "pp": 4}])
    assert list(outside_allocator_B(layouts)) == [
        CUDA_CONTEXT_B,
        CUDA_CONTEXT_B + NCCL_OF_TWO_B,
        CUDA_CONTEXT_B + 2 * NCCL_OF_MORE_B + NCCL_OF_TWO_B,
    ]
