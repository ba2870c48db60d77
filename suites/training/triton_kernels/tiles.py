"""What row-wise and elementwise kernels share: tiles, programs, tuned configurations, launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import Compilation

WARPS = [triton.Config({}, num_warps=warps) for warps in (4, 8, 16)]
"""Configurations for `@triton.autotune(WARPS, key=[...])` where only the number of warps is tuned."""

STAGED_WARPS = [
    triton.Config({"STAGES": stages}, num_warps=warps) for stages in (1, 2) for warps in (4, 8, 16)
]
"""The same for kernels that loop over rows: also whether a row is fetched while another is processed."""

TILE_ELEMENTS = 4096
"""Elements that a program takes at once where possible: 16 per thread at 8 warps, so several wide loads."""

WIDEST_BLOCK = 16384
"""Most columns of one block, 32 per thread at 16 warps; wider rows are looped over in tiles."""

WIDEST_WITH_SUMS = 8192
"""The same for the backward pass of a norm, which also keeps a row of sums in registers."""

TYPICAL_COLUMNS = 4096
"""Columns for which kernels are compiled where no workload names them: the hidden size of Llama's 7B
model."""

PROGRAMS_PER_CORE = 4
"""Programs per core of kernels that loop over rows, so that each core has several programs' loads in
flight."""


class Tile(NamedTuple):
    """How a program covers rows: `rows` and `block` columns at once; `whole` if those are all columns."""

    rows: int
    block: int
    whole: bool


def tile(columns: int, widest: int = WIDEST_BLOCK) -> Tile:
    """Return the tile for rows of `columns` elements, powers of two; several rows where they are short."""
    block = triton.next_power_of_2(columns)
    if block > widest:
        return Tile(1, min(widest, TILE_ELEMENTS), False)
    return Tile(max(1, TILE_ELEMENTS // block), block, True)


def cover(tensor: Tensor) -> int:
    """Return how many programs of TILE_ELEMENTS elements each cover a contiguous tensor."""
    return -(-tensor.numel() // TILE_ELEMENTS)


def programs(tiles: int, tensor: Tensor) -> int:
    """Return how many programs share `tiles` of rows where each keeps partial sums: enough for the device.

    On the CPU two, so that sums over programs are tested there too.
    """
    if not tensor.is_cuda:
        return min(tiles, 2)
    cores = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return min(tiles, PROGRAMS_PER_CORE * cores)


class OfTwo(torch.autograd.Function):
    """An elementwise function of two tensors by a kernel, and both gradients by another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, forward: Any, backward: Any) -> Tensor:
        """Return the result, of the shape of both tensors."""
        x, y = x.contiguous(), y.contiguous()
        result = torch.empty_like(x)
        launch(forward, (cover(x),), x, y, result, x.numel(), BLOCK=TILE_ELEMENTS)
        ctx.save_for_backward(x, y)
        ctx.kernel = backward
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of both tensors."""
        x, y = ctx.saved_tensors
        gradients = torch.empty_like(x), torch.empty_like(y)
        tensors = (x, y, gradient.contiguous(), *gradients)
        launch(ctx.kernel, (cover(x),), *tensors, x.numel(), BLOCK=TILE_ELEMENTS)
        return *gradients, None, None


TYPES = {
    **dict.fromkeys(("rows", "columns", "elements"), "i32"),
    **dict.fromkeys(("means", "inverse", "partial"), "*fp32"),
    "epsilon": "fp32",
}
"""Types of arguments of our kernels; all others are data."""


def compilations(dtype: str, constexprs: Mapping[str, Any], kernels: Mapping[str, Any]) -> list[Compilation]:
    """Return the kernels for data of type fp32 | bf16 | fp16, each with those constexprs that it takes."""
    return [
        Compilation(
            name,
            kernel,
            {one: TYPES.get(one, f"*{dtype}") for one in kernel.arg_names if one not in constexprs},
            {one: constexprs[one] for one in kernel.arg_names if one in constexprs},
            8,
        )
        for name, kernel in kernels.items()
    ]
