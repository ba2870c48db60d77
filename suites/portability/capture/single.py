"""A graph of one operator, taken out of a captured graph, to ask an engine whether it has code for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from suites.portability.capture.graph import Capture


def single(node: fx.Node) -> tuple[str, Capture]:
    """Return the operator alone, with inputs of the shapes that it has in the graph, and a key of its kind.

    Nodes with the same operator and the same types have one key. Index inputs are zeros.
    """
    graph = fx.Graph()
    inputs: list[Tensor] = []

    def placed(argument: fx.Node) -> fx.Node:
        value = argument.meta["val"]
        place = graph.placeholder(f"input_{len(inputs)}")
        place.meta["val"] = value
        inputs.append(_example(value))
        return place

    args = fx.map_arg(node.args, placed)
    kwargs = fx.map_arg(node.kwargs, placed)
    target: Any = node.target
    call = graph.call_function(target, args, kwargs)
    call.meta["val"] = node.meta["val"]
    output = graph.output((call,))
    output.meta = {}
    kinds = ",".join(str(one.dtype) for one in inputs)
    module = fx.GraphModule(torch.nn.Module(), graph)
    return f"{node.target}({kinds})", Capture(module, inputs, ("output",))


def _example(value: Any) -> Tensor:
    if value.dtype.is_floating_point:
        return torch.full(value.shape, 0.5, dtype=value.dtype)
    return torch.zeros(value.shape, dtype=value.dtype)
