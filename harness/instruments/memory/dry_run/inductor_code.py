"""Run what torch.compile generates without its kernels: a backend for steps on fake tensors.

As for real tensors, Inductor partitions a graph, fuses operations and generates the Python code that
allocates buffers and calls kernels. No kernel is built: a call of one does nothing. Buffers are made by
torch's operations, which a dry run logs (`fake_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.instruments.deferred_compiler import load_compiler

MOST_COMPILATIONS = 10_000


def _fused(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Return Inductor's code for a graph; a backend of torch.compile."""
    return _compiled(graph, inputs, _generate)


def _unfused(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Return Inductor's graphs run operation by operation; a backend of torch.compile."""
    return _compiled(graph, inputs, _interpret)


def _compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], inner: Callable[..., Any]) -> Any:
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(enable_autograd_cache=False):
        return compile_fx(graph, inputs, inner_compile=inner)


def _interpret(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Return a forward or backward graph as a function that releases arguments after their last use."""

    def run(arguments: list[Any]) -> Any:
        return torch.fx.Interpreter(graph).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _generate(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Return the code of a forward or backward graph; the latter is generated when it is first needed."""
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.compile_fx import compile_fx_inner

    guards = torch._C._dynamo.guards
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (AsyncCompile, "cpp_pybinding", lambda *_: _run_nothing),
        (cpu_vec_isa, "valid_vec_isa_list", list),  # found by a C++ compiler, and only of use for kernels
        (PyCodeCache, "modules", []),
        (PyCodeCache, "modules_no_attr", {}),  # by source, which is that of a real step
        (guards, "_empty_strided_cpu", _empty_strided),
        (guards, "_reinterpret_tensor", _reinterpret),
    )
    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1))
        for owner, name, stand_in in replaced:
            stack.enter_context(patch.object(owner, name, stand_in))
        return compile_fx_inner(graph, inputs, **options)


def _run_nothing(*arguments: Any) -> None:
    """Take a kernel's place: kernels write into their arguments and allocate nothing."""


def _empty_strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def _reinterpret(tensor: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


def load() -> None:
    """Import what compiles: processes that are forked later need not do it again.

    Dynamo looks up what it knows by name once, so it does before a dry run replaces functions of torch.
    """
    load_compiler()
    import_module("torch._dynamo.trace_rules").get_torch_obj_rule_map()
    import_module("torch._inductor.compile_fx")


@contextmanager
def unbuilt_kernels(fused: bool = True) -> Iterator[None]:
    """Let torch.compile generate code without kernels inside the block, for any number of shapes.

    It would otherwise run a function as it is after eight of them. `fused`: operations are fused as Inductor
    does it for a CPU; else none is, which takes at least as much memory as on any device.
    """
    from torch._dynamo import config

    unlimited = config.patch(
        recompile_limit=MOST_COMPILATIONS,
        accumulated_recompile_limit=MOST_COMPILATIONS,
        fail_on_recompile_limit_hit=True,
    )
    guards = import_module("torch._dynamo.guards")
    untimed = patch.object(guards, "profile_guard_manager", lambda *_: 0.0)  # it empties caches
    with unlimited, untimed, torch.compiler.set_stance(force_backend=_fused if fused else _unfused):
        yield
