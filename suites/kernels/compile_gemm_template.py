"""torch.compile with Inductor's own templates of matrix products, whose epilogue takes the activation.

By default Inductor calls a library's product, and its kernel for the activation follows.

- Forward pass alone: templates are the only candidates, in Triton on a GPU and in C++ on a CPU, and weights
  are constants, without which Inductor has no template for a CPU. So the product's kernel has the activation.
- With gradients: `max_autotune` chooses between templates and libraries by time, as it does for a user. On a
  CPU it has libraries alone.

The conditions of a record name the kernel that has the activation, read from the generated code: names do not
show it, `cpp_fused_addmm_gelu_0` may hold the activation alone, behind a library's product.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import Unavailable
from suites.kernels.operations import LINEAR_GELU, linear_gelu
from suites.kernels.subject import IN_PRODUCT, SEPARATE, Subject

KERNEL = re.compile(r"async_compile\.\w+\(.*?(r?''')(.*?)'''", re.DOTALL)
"""The source of one generated kernel, in Triton or C++, as Inductor's wrapper code has it."""

PRODUCT = re.compile(r"\btl\.dot\(|\bkernel_micro_gemm\b")
"""A product of blocks in such a source: of Triton's template, and of the C++ one."""

ACTIVATION = re.compile(r"\btanh\(")

LIBRARY = re.compile(r"_addmm_activation|_linear_pointwise\.\w+\([^)]*'gelu'")
"""Calls of a library's product with a GELU: cuBLASLt's and oneDNN's."""


def kernel_of_activation(code: str) -> str:
    """Return IN_PRODUCT where a kernel of `code` computes both a product and a GELU's tanh, else SEPARATE.

    Raises ValueError where `code` has no GELU at all, so that what changes in torch is noticed.
    """
    sources = [source for _, source in KERNEL.findall(code)]
    activations = [one for one in sources if ACTIVATION.search(one)]
    if LIBRARY.search(code) or any(PRODUCT.search(one) for one in activations):
        return IN_PRODUCT
    if not activations:
        raise ValueError("the generated code has no kernel with a tanh")
    return SEPARATE


class WithItsCode:
    """A function of torch.compile, and the code of its forward pass, kept at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.code = function, ""

    def __call__(self, *inputs: Any) -> Any:
        """Call the function."""
        if self.code:
            return self.function(*inputs)
        from torch._inductor.utils import run_and_get_code

        result, codes = run_and_get_code(self.function, *inputs)
        self.code = "\n".join(codes)
        return result

    def activation(self) -> str:
        """Return what `kernel_of_activation` does; raises ValueError before the first call."""
        return kernel_of_activation(self.code)


TEMPLATES = {"cuda": "TRITON", "cpu": "CPP"}
"""Inductor's templates by device, as its setting max_autotune_gemm_backends names them."""


def apply(subject: Subject) -> Subject:
    """Return the subject compiled with templates; raises `Unavailable` for another operation."""
    if subject.operation is not LINEAR_GELU:
        raise Unavailable(f"compile_gemm_template has no {subject.operation.name}; it has linear_gelu")
    if subject.workload.backward:
        options: dict[str, Any] = {"max_autotune_gemm": True}
        made, notes = torch.compile(linear_gelu, dynamic=False, options=options), subject.notes
    else:
        made = with_constants(TEMPLATES[subject.device.type])
        notes = (*subject.notes, "the weight and the bias are constants of the compiled code")
    function = WithItsCode(made)
    return replace(
        subject,
        function=function,
        compiles=True,
        compiler_cache=True,
        activation=function.activation,
        notes=notes,
    )


class _Layer(nn.Module):
    """The operation with its weight and bias as constants."""

    def __init__(self, weight_FD: Tensor, bias_F: Tensor) -> None:
        super().__init__()
        self.weight_FD = nn.Parameter(weight_FD, requires_grad=False)
        self.bias_F = nn.Parameter(bias_F, requires_grad=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Map (N, D) to (N, F)."""
        return linear_gelu(x_ND, self.weight_FD, self.bias_F)


def with_constants(templates: str) -> Callable[..., Tensor]:
    """Return the operation compiled once for each weight and bias that it gets, for one shape of x.

    Inductor is called without dynamo, which would compile again, with weights that are no constants, as soon
    as another function was compiled in the process.
    """
    layers: dict[tuple[int, int], tuple[Callable[..., Tensor], Tensor, Tensor]] = {}
    settings: dict[str, Any] = {
        "freezing": True,
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": templates,
        "benchmark_epilogue_fusion": False,  # else the activation is left out where that is faster
    }

    def constant(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        from torch._inductor.compile_fx import compile_fx

        key = id(weight_FD), id(bias_F)  # both are kept, so that no other tensor gets their identity
        with torch.no_grad():
            if key not in layers:
                graph = torch.fx.symbolic_trace(_Layer(weight_FD, bias_F))
                compiled: Any = compile_fx(graph, [x_ND], config_patches=settings)
                layers[key] = compiled, weight_FD, bias_F
            return layers[key][0](x_ND)

    return constant
