"""What torch.compile's code allocates, without its kernels: a backend for steps on fake tensors.

Inductor partitions the graph, fuses operations and generates the code that allocates buffers and calls kernels,
as it does for real tensors. Here no kernel is built: a call of one does nothing, and buffers are made by torch
operations, which dry runs log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


def without_kernels(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return Inductor's code for a graph; a backend of torch.compile."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(enable_autograd_cache=False):
        return compile_fx(graph, inputs, inner_compile=_inner)


def _inner(graph, inputs, **kwargs):
    from torch._inductor.compile_fx import compile_fx_inner

    with _no_kernels():
        return compile_fx_inner(graph, inputs, **kwargs)


def _empty(size, stride, dtype):
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpret(tensor, size, stride, offset=0):
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def _nothing(*args):
    return None


def _stub(self, argtypes, source):
    return _nothing


@contextmanager
def _no_kernels():
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    guards = torch._C._dynamo.guards
    with ExitStack() as s:
        s.enter_context(config.patch(fx_graph_cache=False, fx_graph_remote_cache=False, compile_threads=1))
        s.enter_context(patch.object(AsyncCompile, "cpp_pybinding", _stub))
        s.enter_context(patch.object(PyCodeCache, "modules", []))
        s.enter_context(patch.object(PyCodeCache, "modules_no_attr", {}))
        s.enter_context(patch.object(guards, "_empty_strided_cpu", _empty))
        s.enter_context(patch.object(guards, "_reinterpret_tensor", _reinterpret))
        yield
