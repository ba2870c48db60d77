"""The workspaces of matrix products by GPU architecture; torch is not needed for them."""

from __future__ import annotations

from suites.training.workload import Architecture

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

CUBLAS_HANDLES = 2
"""Workspaces, one per thread that multiplies matrices: the forward pass's, and autograd's for the device."""
