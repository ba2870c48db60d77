"""Host memory of offloaded states: bytes of one rank, and what page-locked blocks take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.layouts.layout import Floats, Layouts, Training
from suites.training.layouts.states import RankParameters, sharded


class HostBytes(NamedTuple):
    """Bytes of one rank in host memory, as arrays over layouts."""

    pageable: Floats
    pinned: Floats  # as they are asked for
    reserved: Floats  # all, with pinned blocks as torch reserves them

    @property
    def asked(self) -> Floats:
        """Return both as they are asked for."""
        return self.pageable + self.pinned


def host_B(layouts: Layouts, training: Training, parameters: RankParameters) -> HostBytes:
    """Return what one rank has on its host.

    DeepSpeed with states on the host, per parameter of a rank's part: fp32 weights and gradients (4 and 4)
    and their bf16 copy (2), page-locked, and Adam's moments (8); the bf16 parameters (2) where they are
    there, too (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py). FSDP2 has fp32 weights and gradients (4
    and 4), page-locked, and the moments (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, offload_to_cpu).
    """
    part = sharded(layouts, parameters, 1)
    nothing = np.zeros_like(part)
    if training.offload == "none":
        return HostBytes(nothing, nothing, nothing)
    blocks = [4.0, 4.0]
    if training.program == "deepspeed":
        blocks += [2.0, *([2.0] if training.offload == "parameters" else [])]
    pinned = sum((each * part for each in blocks), nothing)
    reserved = sum((power_of_two(each * part) for each in blocks), nothing)
    return HostBytes(8 * part, pinned, 8 * part + reserved)


def power_of_two(size_B: Floats) -> Floats:
    """Return sizes rounded up to powers of two, as torch reserves page-locked blocks.

    aten/src/ATen/core/CachingHostAllocator.h, getSizeIndex; github.com/pytorch/pytorch, issue 95823.
    """
    return np.where(size_B > 0, np.exp2(np.ceil(np.log2(np.maximum(size_B, 1.0)))), 0.0)
