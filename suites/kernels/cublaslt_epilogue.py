"""The activation in the epilogue of cuBLASLt's product, through torch's `_addmm_activation`.

The function has no gradient, so it is tried on the forward pass alone. Whether cuBLASLt applies the
activation in the product's kernel depends on the GPU, the type and its version. It can also start a second
kernel that reads the product again (karpathy/llm.c, pull request 338). So the first call is traced and its
kernels are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.records import HostInfo, Unavailable
from suites.kernels.operations import LINEAR_GELU
from suites.kernels.subject import IN_PRODUCT, SEPARATE, Subject

NOT_KERNELS = ("Memcpy", "Memset")


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run: on a CPU torch's function computes the other form of GELU."""
    return None if host.device == "cuda" else "cuBLASLt's products need a GPU"


def apply(subject: Subject) -> Subject:
    """Return the subject with cuBLASLt's epilogue; raises `Unavailable` where there is a backward pass."""
    if subject.operation is not LINEAR_GELU:
        raise Unavailable(f"cublaslt_epilogue has no {subject.operation.name}; it has linear_gelu")
    if subject.workload.backward:
        raise Unavailable("torch's _addmm_activation has no gradient: backward must be false")
    function = TracedOnce()
    return replace(subject, function=function, activation=function.activation)


class TracedOnce:
    """gelu(x W^T + bias) by cuBLASLt, and the GPU's kernels of its first call."""

    def __init__(self) -> None:
        self.kernels: list[str] | None = None

    def __call__(self, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """Map (N, D), (F, D) and (F) to (N, F)."""
        if self.kernels is not None:
            return torch._addmm_activation(bias_F, x_ND, weight_FD.T, use_gelu=True)
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            y_NF = torch._addmm_activation(bias_F, x_ND, weight_FD.T, use_gelu=True)
            torch.cuda.synchronize(x_ND.device)
        self.kernels = [one.name for one in trace.events() or [] if one.device_type == DeviceType.CUDA]
        return y_NF

    def activation(self) -> str:
        """Return which kernel computes the activation; raises ValueError where the trace has none."""
        return kernel_of_activation(self.kernels or [])


def kernel_of_activation(events: Sequence[str]) -> str:
    """Return IN_PRODUCT where the names of a call's events on the GPU contain one kernel, else SEPARATE."""
    kernels = [one for one in events if not one.startswith(NOT_KERNELS)]
    if not kernels:
        raise ValueError("the trace of cuBLASLt's product has no kernel")
    return IN_PRODUCT if len(kernels) == 1 else SEPARATE
