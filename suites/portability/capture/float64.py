"""Evaluate a captured graph in float64: the reference that every engine is compared with.

Every floating-point input, constant and type that the graph names becomes float64, so that only the order
of operations is left of its precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

WIDE = torch.float64
FUSED_TYPES = ("_softmax", "_log_softmax")
"""Operators whose last argument asks for a result of another type, which float64 has no use for."""


class InFloat64(fx.Interpreter):
    """Runs a graph with every floating-point type replaced by float64."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator with wide types in the place of those that the graph names."""
        packet = getattr(target, "overloadpacket", None)
        if getattr(packet, "__name__", "") in FUSED_TYPES:
            args = (*args[:2], False)
        wide = [_wide(one) for one in args]
        return super().call_function(target, tuple(wide), {key: _wide(one) for key, one in kwargs.items()})

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a constant, wide where it is floating-point."""
        return _wide(super().get_attr(target, args, dict(kwargs)))


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return WIDE if value.is_floating_point else value
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(WIDE)
    return value


def evaluated(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the graph's outputs in float64."""
    with torch.no_grad():
        result = InFloat64(graph).run(*(_wide(one) for one in inputs))
    return [_wide(one) for one in result]
