"""Let MKL choose its code for torch's functions of one argument before several threads call them.

MKL chooses on the first call of each function. Where threads make that call together, one of them may get the
least accurate code (pytorch/pytorch, issue 188792): a process's first fp32 cosine was off by 1.5e-4.
"""

from __future__ import annotations

import sys

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2"),
    *("sin", "sqrt", "tan", "tanh", "trunc"),
)
"""Those that torch leaves to MKL: IMPLEMENT_VML_MKL in its ATen/cpu/vml.h."""


def call_each() -> None:
    """Call each with one number, in fp32 and fp64; nothing happens where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for name in FUNCTIONS:
            getattr(torch, name)(one)
