"""What torch's allocator can have on one device, and how much more than its tensors it needs."""

from __future__ import annotations

import numpy as np

from suites.training.layouts.layout import Floats, Layouts

MiB = 1024**2

CUDA_CONTEXT_B = 426 * MiB
"""The driver's empty context. Kernels that a step loads come on top, so it is a lower bound.

Measured with torch 2.10 and CUDA 13.0 on an RTX 6000 Ada (github.com/unslothai/unsloth-zoo, pull request
1053). torch's maintainers name about 400 MB with lazy loading (github.com/pytorch/pytorch, issue 109888). No
measurement by architecture was found, so it is taken for all.
"""

NCCL_OF_TWO_B, NCCL_OF_MORE_B = 544 * MiB, 688 * MiB
"""NCCL's buffers for one communicator of two ranks, and of more within one node.

Measured on four A100 with NVLink (github.com/NVIDIA/nccl, issue 964). They grow with the number of channels
and, up to two nodes, with that of ranks (issue 986); between nodes they can be larger.
"""

FRAGMENTED = 1.06
"""Smallest room for the allocator over the allocated peak: the median of ten dry runs of FSDP2 steps whose
allocations were replayed through torch's allocator, 1.03 to 1.16 (with expandable segments 1.00 to 1.01).
tests/suites/training/layouts/test_room.py repeats two."""

WITHOUT_RETRIES = 1.20
"""The same, so that the allocator never frees its cache to make room: 1.13 to 1.38, the median."""


def outside_allocator_B(layouts: Layouts) -> Floats:
    """Return the bytes of the CUDA context and of NCCL's buffers, one communicator per group of ranks."""
    total = np.full_like(layouts.tp, CUDA_CONTEXT_B, dtype=float)
    for ranks in (layouts.dp * layouts.cp, layouts.tp, layouts.pp, layouts.cp, layouts.ep):
        total += np.select([ranks > 2, ranks == 2], [NCCL_OF_MORE_B, NCCL_OF_TWO_B], 0.0)
    return total


def room_B(layouts: Layouts, usable_B: float) -> Floats:
    """Return what torch's allocator can have of the `usable_B` bytes that a process can use."""
    return usable_B - outside_allocator_B(layouts)
