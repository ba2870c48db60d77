"""RMSNorm (arXiv 1910.07467), by the kernels of `layer_norm`, without what it lacks."""

from __future__ import annotations

from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.training.triton_kernels.layer_norm import Norm, constexprs, norm_backward, norm_forward
from suites.training.triton_kernels.tiles import compilations


def rms_norm(x_ND: Tensor, weight_D: Tensor) -> Tensor:
    """Map (N, D) and (D) to (N, D), with any leading dimensions; differentiable once."""
    return Norm.apply(x_ND, weight_D, None)  # type: ignore[no-any-return]


def kernels(workload_dtype: str) -> list[Compilation]:
    """Return both kernels, for inputs of type fp32 | bf16 | fp16 in rows of TYPICAL_COLUMNS."""
    of = {"rms_norm_forward": norm_forward, "rms_norm_backward": norm_backward}
    return compilations(workload_dtype, constexprs(centred=False), of)
