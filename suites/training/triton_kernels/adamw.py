"""AdamW (arXiv 1711.05101) over a list of tensors in one launch: every element read and written once.

Least traffic, in bytes per element of s bytes: read parameter, gradient and two moments, write parameter and
two moments, 7 s. In addition a table: 40 B per tensor and 8 B per block.
Cached: that table, for the TABLES lists last seen, so that a list that stays in place sends nothing.

Each program works on a block of one tensor, found in the table. Arithmetic is in fp32, the bias corrections
in fp64 (1 - 0.999^step loses four digits in fp32). Not tuned: the kernel works in place, and tuning would
take the step more than once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import Compilation
from suites.training.optimizers import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY

BLOCK = 2048
WARPS = 4
"""Elements of a program, 16 per thread: two wide loads of 16 B for each of the four tensors in bf16, four in
fp32."""

TABLES = 16
ALIGNMENT_B = 16
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

NUMBERS = {
    "LR": LEARNING_RATE,
    "BETA_1": BETAS[0],
    "BETA_2": BETAS[1],
    "LOG_1": math.log(BETAS[0]),
    "LOG_2": math.log(BETAS[1]),
    "EPSILON": EPSILON,
    "DECAY": WEIGHT_DECAY,
}

Tensors = Sequence[Tensor]


@triton.jit
def _read(place, offsets, size, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(place + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    return tl.load(place + offsets).to(tl.float32)


@triton.jit
def _write(place, offsets, size, value, MASKED: tl.constexpr):
    if MASKED:
        tl.store(place + offsets, value.to(place.dtype.element_ty), mask=offsets < size)
    else:
        tl.store(place + offsets, value.to(place.dtype.element_ty))


@triton.jit
def _update(
    parameter_at, gradient_at, exp_avg_at, exp_avg_sq_at, offsets, size, correction_1, root_1,
    LR: tl.constexpr, BETA_1: tl.constexpr, BETA_2: tl.constexpr, EPSILON: tl.constexpr, DECAY: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Update as `operations.adamw.eager`, line by line."""
    parameter = _read(parameter_at, offsets, size, MASKED) * (1 - LR * DECAY)
    gradient = _read(gradient_at, offsets, size, MASKED)
    exp_avg = _read(exp_avg_at, offsets, size, MASKED)
    exp_avg += (gradient - exp_avg) * (1 - BETA_1)
    exp_avg_sq = _read(exp_avg_sq_at, offsets, size, MASKED) * BETA_2 + gradient * gradient * (1 - BETA_2)
    denominator = (tl.sqrt(exp_avg_sq) / root_1 + EPSILON) * correction_1
    _write(parameter_at, offsets, size, parameter - LR * exp_avg / denominator, MASKED)
    _write(exp_avg_at, offsets, size, exp_avg, MASKED)
    _write(exp_avg_sq_at, offsets, size, exp_avg_sq, MASKED)


@triton.jit
def _place(addresses, tensor, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the address of a tensor's first element."""
    place = tl.load(addresses + tensor).to(tl.pointer_type(TYPE))
    if ALIGNED:
        place = tl.multiple_of(place, 16)
    return place


@triton.jit
def _adamw(
    addresses, blocks, step, tensors,
    LR: tl.constexpr, BETA_1: tl.constexpr, BETA_2: tl.constexpr, LOG_1: tl.constexpr, LOG_2: tl.constexpr,
    EPSILON: tl.constexpr, DECAY: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update one block of one tensor; only a tensor's last block is masked."""
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    first = tl.load(blocks + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK
    parameter_at = _place(addresses, tensor, TYPE, ALIGNED) + first
    gradient_at = _place(addresses + tensors, tensor, TYPE, ALIGNED) + first
    exp_avg_at = _place(addresses + 2 * tensors, tensor, TYPE, ALIGNED) + first
    exp_avg_sq_at = _place(addresses + 3 * tensors, tensor, TYPE, ALIGNED) + first
    size = tl.load(addresses + 4 * tensors + tensor) - first
    count = tl.load(step).to(tl.float64)
    correction_1 = (1 - tl.exp(count * LOG_1)).to(tl.float32)
    root_1 = tl.sqrt(1 - tl.exp(count * LOG_2)).to(tl.float32)
    offsets = tl.arange(0, BLOCK)
    if size >= BLOCK:
        _update(
            parameter_at, gradient_at, exp_avg_at, exp_avg_sq_at, offsets, size, correction_1, root_1,
            LR, BETA_1, BETA_2, EPSILON, DECAY, False,
        )  # fmt: skip
    else:
        _update(
            parameter_at, gradient_at, exp_avg_at, exp_avg_sq_at, offsets, size, correction_1, root_1,
            LR, BETA_1, BETA_2, EPSILON, DECAY, True,
        )  # fmt: skip


@lru_cache(maxsize=TABLES)
def _addresses(addresses: tuple[int, ...], sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a table (5, tensors): addresses of parameters, gradients and both moments, and element counts.

    A training step may have its gradients elsewhere each time: then this is a synchronous copy from host to
    device within the timed call.
    """
    return torch.tensor([*addresses, *sizes], dtype=torch.int64, device=device)


@lru_cache(maxsize=TABLES)
def _blocks(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return (blocks, 2): which tensor, and which block of it."""
    counts = torch.tensor([triton.cdiv(size, BLOCK) for size in sizes])
    tensor_of = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    first_of = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    block_of = torch.arange(len(tensor_of)) - first_of
    return torch.stack((tensor_of, block_of), dim=1).to(torch.int32).to(device)


@torch.no_grad()
def adamw(
    parameters: Tensors, gradients: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, step_1: Tensor
) -> list[Tensor]:
    """Update in place, with decoupled weight decay, and return the parameters; `step_1` counts from 1.

    All tensors are of one type of fp32, bf16, fp16 and on one device; those that are written are contiguous.
    Raises ValueError where they are not, or where the lists do not fit together.
    """
    gradients = [one.contiguous() for one in gradients]
    lists = (parameters, gradients, exp_avgs, exp_avg_sqs)
    _refuse_misfits(lists)
    if not parameters:
        return []
    first = parameters[0]
    addresses = tuple(one.data_ptr() for of in lists for one in of)
    sizes = tuple(one.numel() for one in parameters)
    blocks = _blocks(sizes, first.device)
    aligned = all(one % ALIGNMENT_B == 0 for one in addresses)
    launch(
        _adamw, (len(blocks),), _addresses(addresses, sizes, first.device), blocks, step_1, len(sizes),
        **NUMBERS, TYPE=TYPES[first.dtype], ALIGNED=aligned, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return list(parameters)


def _refuse_misfits(lists: tuple[Tensors, ...]) -> None:
    if len({len(of) for of in lists}) > 1:
        raise ValueError(
            f"adamw takes four lists of one length, got {', '.join(str(len(of)) for of in lists)}"
        )
    kinds = {(one.dtype, one.device) for of in lists for one in of}
    if len(kinds) > 1 or any(dtype not in TYPES for dtype, _ in kinds):
        given = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(f"adamw takes tensors of one type of fp32, bf16, fp16 on one device, got {given}")
    for index, of_one in enumerate(zip(*lists, strict=True)):
        if len({one.shape for one in of_one}) > 1 or not all(one.is_contiguous() for one in of_one):
            shapes = ", ".join(f"{tuple(one.shape)} of strides {one.stride()}" for one in of_one)
            raise ValueError(f"adamw takes contiguous tensors of one shape, got at {index}: {shapes}")


def kernels(dtype: str) -> list[Compilation]:
    """Return the only kernel; `dtype` as Triton names it."""
    element = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}[dtype]
    signature = {"addresses": "*i64", "blocks": "*i32", "step": "*fp32", "tensors": "i32"}
    return [
        Compilation(
            "adamw", _adamw, signature, NUMBERS | {"TYPE": element, "ALIGNED": True, "BLOCK": BLOCK}, WARPS
        )
    ]
