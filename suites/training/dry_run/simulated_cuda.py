"""CUDA's operations on fake CPU tensors: its fused kernels, its autocast list, its allocator's rounding.

`dry_run.py` enters `cuda_operations` for the simulated device "cuda". Written from torch's sources and
compared with small steps on an H100 (docs/suites/memory.md): its values are a model of CUDA's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suites.training.step import TrainingStep

TorchFunction = Callable[..., Any]

BLOCK_B = 512
"""Granularity of allocations, which are rounded up to it: c10/cuda/CUDACachingAllocator.h, kMinBlockSize."""

WITHOUT_BF16_ATTENTION = ("volta", "turing")
"""Architectures on which torch's fused attention kernels take no bf16: its flash kernel needs Ampere, and its
memory-efficient one takes fp16 and fp32 there (ATen/native/transformers/cuda/sdp_utils.cpp)."""

CUBLASLT_WORKSPACE_B = 1024 * 1024
"""cuBLASLt's workspace on NVIDIA's GPUs: ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace. One per
thread, too, from its first product with a bias. Steps with biases held so much more on an H100."""


def cublaslt_threads(model: nn.Module, recompute: str) -> int:
    """Return how many threads multiply with a bias: forward's, and autograd's where it recomputes."""
    biased = any(
        (isinstance(one, nn.Linear) or type(one).__name__ == "Conv1D")  # transformers'
        and one.bias is not None
        for one in model.modules()
    )
    return int(biased) * (2 if recompute.startswith("full") else 1)


def as_on_cuda(step: TrainingStep) -> TrainingStep:
    """Return the step with CUDA's foreach optimizers; Adafactor's is a for-loop (optim/_adafactor.py)."""
    if step.workload.optimizer_impl != "default":
        return step
    for_loop = step.workload.optimizer == "adafactor"
    workload = replace(step.workload, optimizer_impl="for_loop" if for_loop else "foreach")
    return replace(step, workload=workload)


@contextmanager
def cuda_operations() -> Iterator[None]:
    """Replace, inside the block, functions whose CUDA kernels keep other tensors than the CPU's.

    A mode for torch functions would not do: torch leaves it during the backward pass, which recomputes.
    """
    replaced = [(owner, name, vars(owner).get(name)) for owner, name, _ in REPLACEMENTS]
    try:
        for owner, name, make in REPLACEMENTS:
            setattr(owner, name, make(getattr(owner, name)))
        yield
    finally:
        for owner, name, original in reversed(replaced):
            if original is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, original)


def _widen(value: Any) -> Any:
    narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if narrow else value


def _narrow(value: Tensor) -> Tensor:
    return value.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else value


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Apply SDPA's flash kernel in 16-bit types, the memory-efficient one otherwise. (B, H, T, K).

    Otherwise: in fp32, with a mask, or where values are of another size than keys, as in DeepSeek-V3. Of a
    `CausalBias` no mask is made. For fewer queries than keys in fp32, it calls another operation of the
    memory-efficient kernel (torch/nn/attention/bias.py).
    """
    bias: Any = attn_mask if type(attn_mask).__name__ == "CausalBias" else None
    if bias is not None:
        attn_mask, is_causal = None, True
    query, key, value = _narrow(query), _narrow(key), _narrow(value)
    aten = torch.ops.aten
    if attn_mask is None and query.dtype != torch.float32 and value.shape[-1] == query.shape[-1]:
        flash = aten._scaled_dot_product_flash_attention
        return first(flash(query, key, value, dropout_p, is_causal, False, scale=scale))
    groups = query.shape[1] // key.shape[1]
    if enable_gqa and groups > 1:  # only the flash kernel takes grouped heads unexpanded
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if bias is not None and bias.seq_len_q != bias.seq_len_kv:
        by_token = (one.transpose(1, 2) for one in (query, key, value))
        lengths = (None, None, None, None)
        kernel = aten._efficient_attention_forward
        found = kernel(*by_token, None, *lengths, dropout_p, int(bias.variant), True, scale=scale)
        return first(found).transpose(1, 2)
    efficient = aten._scaled_dot_product_efficient_attention
    return first(efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale))


def first(results: Sequence[Any]) -> Tensor:
    """Return the result, without what the kernel keeps for its backward pass."""
    result: Tensor = results[0]
    return result


def rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Apply one kernel that keeps its input and one number per row, in fp32 under autocast.

    In a compiled step Inductor takes the kernel apart.
    """
    if torch.is_autocast_enabled("cpu"):
        input, weight = _widen(input), _widen(weight)
    if torch.compiler.is_compiling():
        return first(torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps))
    result: Tensor = _FusedRMSNorm.apply(input, weight)  # type: ignore[no-untyped-call]
    return result


class _FusedRMSNorm(torch.autograd.Function):
    """The tensors of `aten._fused_rms_norm` and its backward without their values, for fake tensors only."""

    @staticmethod
    def forward(context: Any, input: Tensor, weight: Tensor | None) -> Tensor:
        rows = input.new_empty((*input.shape[:-1], 1), dtype=torch.float32)
        context.save_for_backward(input, weight, rows)
        return torch.empty_like(input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        input, weight, _ = context.saved_tensors
        return torch.empty_like(input), None if weight is None else torch.empty_like(weight)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Apply one kernel that keeps a mask of one byte per element; a CPU keeps noise in the input's type."""
    if not training or p == 0.0:
        return input
    return first(torch.ops.aten.native_dropout(input, p, True))


def in_fp32(function: TorchFunction) -> TorchFunction:
    """Wrap a function: under autocast it gets fp32 copies (ATen/autocast_mode.h, AT_FORALL_FP32)."""

    @wraps(function)
    def widened(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            return function(*map(_widen, args), **{name: _widen(one) for name, one in kwargs.items()})
        return function(*args, **kwargs)

    return widened


def to_fp32(function: TorchFunction) -> TorchFunction:
    """Wrap a function: its result is fp32 unless requested otherwise (AT_FORALL_FP32_SET_OPT_DTYPE)."""

    @wraps(function)
    def widened(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu") and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": torch.float32}
        return function(*args, **kwargs)

    return widened


REPLACEMENTS: tuple[tuple[Any, str, Callable[[TorchFunction], TorchFunction]], ...] = (
    (F, "scaled_dot_product_attention", lambda _: attention),
    (F, "rms_norm", lambda _: rms_norm),
    (F, "dropout", lambda _: dropout),
    (F, "layer_norm", in_fp32),
    (torch, "pow", in_fp32),
    (Tensor, "pow", in_fp32),
    (torch, "rsqrt", in_fp32),
    (F, "softmax", to_fp32),
    (torch, "softmax", to_fp32),
    (Tensor, "softmax", to_fp32),
    (F, "log_softmax", to_fp32),
)
"""The functions of CUDA's kernels and of its autocast list that transformers call."""


def cuda_workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return the temporary bytes of flash attention's backward kernel beyond its results, on CUDA.

    Source: flash_attn/flash_api.cpp, mha_bwd: the gradient of the queries in fp32, and one number per row.
    """
    if operation.name().partition(".")[0] != "aten::_scaled_dot_product_flash_attention_backward":
        return 0
    batch, num_attention_heads, length, size = arguments[1].shape
    length, size = -(-length // 128) * 128, -(-size // 32) * 32
    return int(4 * batch * num_attention_heads * length * (size + 1))
