"""What torch's allocator can have on one device, how much more than its tensors it needs, and workspaces."""

from __future__ import annotations

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Floats, Layouts, Training
from suites.training.workload import Architecture

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

EXPANDABLE = 1.01
"""The same with expandable segments."""

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


CUBLAS_WORKSPACE_B: dict[Architecture, int] = {
    "volta": 4096 * 1024 * 2 + 16 * 1024 * 8,
    "turing": 4096 * 1024 * 2 + 16 * 1024 * 8,
    "ampere": 4096 * 1024 * 2 + 16 * 1024 * 8,
    "ada": 4096 * 1024 * 2 + 16 * 1024 * 8,
    "hopper": 4096 * 8 * 1024,
    "blackwell": 4096 * 8 * 1024,
    "cdna": 128 * 1024 * 1024,
}
"""cuBLAS's or hipBLAS's workspace by architecture, 128, 32 or 8.1 MiB: ATen/cuda/CublasHandlePool.cpp,
parseChosenWorkspaceSize."""

DETERMINISTIC_WORKSPACE_B = 4096 * 8 * 1024
"""cuBLAS's workspace by CUBLAS_WORKSPACE_CONFIG=:4096:8, without which its results may differ
(torch docs, use_deterministic_algorithms)."""


def cublas_workspace_B(training: Training, architecture: Architecture) -> int:
    """Return cuBLAS's workspace of a step.

    torch of Megatron-LM's containers takes Ampere's on Blackwell (CublasHandlePool.cpp at 26a39059; peaks
    that Megatron-LM's tests published on GB200 agree).
    """
    if training.program == "megatron" and training.deterministic:
        return DETERMINISTIC_WORKSPACE_B
    older = training.program == "megatron" and architecture == "blackwell"
    return CUBLAS_WORKSPACE_B["ampere" if older else architecture]


CUBLAS_HANDLES = 2
"""Workspaces, one per thread that multiplies matrices: the forward pass's, and autograd's for the device."""

ENGINE_WORKSPACE_B: dict[Architecture, int] = {"hopper": 32 * MiB + 1024, "blackwell": 32 * MiB + 1024}
"""Transformer Engine's workspace by architecture, 4 MiB for others: pytorch/cpp_extensions/gemm.py."""

GROUPED_STREAMS = 4
"""More such workspaces, for grouped matmuls: transformer_engine/pytorch/module/base.py,
_num_cublas_streams."""


def workspaces_B(
    shape: TransformerShape, layouts: Layouts, training: Training, architecture: Architecture
) -> Floats:
    """Return the workspaces of cuBLAS and Transformer Engine."""
    size_B = CUBLAS_HANDLES * cublas_workspace_B(training, architecture)
    if training.program == "megatron":
        engine_B = ENGINE_WORKSPACE_B.get(architecture, 4 * MiB)
        size_B += engine_B * (1 + (GROUPED_STREAMS if shape.num_experts and training.grouped_experts else 0))
    return np.full_like(layouts.tp, size_B, dtype=float)
