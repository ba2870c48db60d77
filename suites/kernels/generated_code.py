"""Which kernel computes an activation, read from the code that torch.compile generates.

Names do not show it: `cpp_fused_addmm_gelu_0` may hold the activation alone, behind a library's product.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from suites.kernels.subject import IN_PRODUCT, SEPARATE

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
