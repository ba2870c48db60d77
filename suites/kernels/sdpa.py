"""Attention without its score matrix (arXiv 2205.14135): torch's scaled_dot_product_attention.

It uses the flash kernel on the CPU and on CUDA the backend that torch chooses: cuDNN's or flash in bf16, the
memory-efficient one in fp32.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from suites.kernels.op_replacement import STEP, replace_operation
from suites.kernels.step.training_step import with_techniques
from suites.kernels.subject import Subject


def attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, causal: bool) -> Tensor:
    """Map three tensors (B, H, T, K) to (B, H, T, K)."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=causal)


def apply(subject: Subject) -> Subject:
    """Return the subject with the fused kernel for its attention; raises `Unavailable` otherwise."""
    workload = subject.workload
    if workload.operation == STEP and workload.part in ("all", "attention"):
        return with_techniques(subject, [("attention", {"kernel": "flash"})])
    return replace_operation(subject, {"attention": attention}, "sdpa", attention="sdpa")
