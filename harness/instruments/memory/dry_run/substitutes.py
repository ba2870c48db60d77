"""torch.compile in a dry run: loaded only where something compiles, and run without its kernels.

Loading `torch._dynamo` takes as long as torch itself. Eager code needs little of it: fake tensors read its
settings; FSDP2, optimizers, dispatch modes and transformers mark functions that are not to be compiled.

As for real tensors, Inductor partitions a graph, fuses operations and generates the Python code that
allocates buffers and calls kernels. No kernel is built: a call of one does nothing. Buffers are made by
torch's operations, which a dry run logs (`fake_tensors`).

FSDP2 is made to do what it does on CUDA and not on a CPU: streams of its own, and copies of shards from the
host. Both need functions of torch that are not its interface, see `torch_internals`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._guards import Source

from harness.instruments.torch_internals import require_tried_version

DYNAMO = "torch._dynamo"

LIGHT = ("config", "_trace_wrapped_higher_order_op")
"""Modules of the compiler that fake tensors and transformers import, and that load without it."""


def defer_compiler() -> None:
    """Put a stand-in for `torch._dynamo`, which loads the compiler once anything else is used of it."""
    require_tried_version()
    if DYNAMO in sys.modules:
        return
    stand_in = DeferredDynamo(DYNAMO)
    sys.modules[DYNAMO] = torch._dynamo = stand_in
    for name in LIGHT:
        file = Path(torch.__file__).parent / "_dynamo" / f"{name}.py"
        spec = spec_from_file_location(f"{DYNAMO}.{name}", file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = stand_in.__dict__[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    sources = DeferredSources(f"{DYNAMO}.source")
    sys.modules[sources.__name__] = sources


def is_deferred() -> bool:
    """Return whether the stand-in is in its place, and so nothing was compiled."""
    return isinstance(sys.modules.get(DYNAMO), DeferredDynamo)


def load_compiler() -> ModuleType:
    """Return `torch._dynamo`, loaded in the place of its stand-in."""
    stand_in = sys.modules.get(DYNAMO)
    if not isinstance(stand_in, DeferredDynamo):
        return importlib.import_module(DYNAMO)
    del sys.modules[DYNAMO], sys.modules[f"{DYNAMO}.source"], torch._dynamo
    loaded: Any = importlib.import_module(DYNAMO)
    for function in stand_in.allowed:
        loaded.allow_in_graph(function)
    return loaded  # type: ignore[no-any-return]


class DeferredDynamo(ModuleType):
    """Stands for `torch._dynamo`; what it marks stays marked once the compiler is loaded."""

    allowed: list[Callable[..., Any]]

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.allowed = []

    def disable(
        self, fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
    ) -> Any:
        """Return what runs the function, without compiling it."""
        if fn is None:
            return lambda one: self.disable(one, recursive, reason=reason, wrapping=wrapping)

        def run(*arguments: Any, **named: Any) -> Any:
            if sys.modules[DYNAMO] is self:
                return fn(*arguments, **named)
            loaded: Any = sys.modules[DYNAMO]
            return loaded.disable(fn, recursive, reason=reason, wrapping=wrapping)(*arguments, **named)

        return wraps(fn)(run) if wrapping else run

    def graph_break(self, msg: str = "") -> None:
        """Do nothing: no graph is being made."""

    def assume_constant_result(self, fn: Any) -> Any:
        """Mark a function whose result is a constant of a graph."""
        fn._dynamo_marked_constant = True
        return fn

    def allow_in_graph(self, fn: Any) -> Any:
        """Mark a function that a graph calls as it is."""
        self.allowed.append(fn)
        return fn

    @property
    def trace_rules(self) -> Any:
        """Return rules of which none are cached; `init_process_group` clears them."""
        if is_deferred():
            return SimpleNamespace(clear_lru_cache=lambda: None)
        return load_compiler().trace_rules

    def __getattr__(self, name: str) -> Any:
        """Return what the compiler has; its `__path__`, from which modules are imported, is among that."""
        if name in ("__file__", "__all__", "__wrapped__"):  # inspected of every module
            raise AttributeError(name)
        return getattr(load_compiler(), name)


class UnknownSource(Source):
    """Where a constant comes from, which only a compiled graph needs to know."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name


class RandomSource(UnknownSource):
    """Where a random value comes from: what no tensor outside of a graph has."""


class DeferredSources(ModuleType):
    """Stands for `torch._dynamo.source`, by which fake tensors name constants."""

    ConstantSource, RandomValueSource = UnknownSource, RandomSource

    def __getattr__(self, name: str) -> Any:
        """Return what the compiler's module has."""
        if name.startswith("__"):
            raise AttributeError(name)
        load_compiler()
        return getattr(importlib.import_module(f"{DYNAMO}.source"), name)


MOST_COMPILATIONS = 10_000


def _fused(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return _compiled(graph, inputs, _generate)


def _unfused(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
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
        # Kernels write into their arguments and allocate nothing.
        (AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None),
        (cpu_vec_isa, "valid_vec_isa_list", list),  # found by a C++ compiler, and only of use for kernels
        (PyCodeCache, "modules", []),
        (PyCodeCache, "modules_no_attr", {}),  # by source, which is that of a real step
        (guards, "_empty_strided_cpu", lambda *sizes: torch.empty_strided(*sizes[:2], dtype=sizes[2])),
        (guards, "_reinterpret_tensor", _reinterpret),
    )
    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1))
        for owner, name, stand_in in replaced:
            stack.enter_context(patch.object(owner, name, stand_in))
        return compile_fx_inner(graph, inputs, **options)


def _reinterpret(tensor: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


def load() -> None:
    """Import what compiles, before processes are forked and before a dry run replaces functions of torch."""
    require_tried_version()
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


ALL_GATHER_STREAM, REDUCE_SCATTER_STREAM = 1, 2


@contextmanager
def fsdp2_streams(enter: Callable[[int], None], copies_on_own_stream: bool = False) -> Iterator[None]:
    """Call `enter` with the stream of FSDP2's allocations from there on; 0 is the computation's.

    As on CUDA (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): what an implicit all-gather
    allocates is `ALL_GATHER_STREAM`'s; what a reduction allocates is `REDUCE_SCATTER_STREAM`'s, from its
    output on. Its input is the computation's; with `copies_on_own_stream` it is the reduction's, as before
    pytorch's pull request 129721 of June 2024.
    """
    noticed = 1 if copies_on_own_stream else 2
    require_tried_version()
    module: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    gather, reduce = module.foreach_all_gather, module.foreach_reduce

    def gathered(parameters: Any, group: Any, async_op: bool, *rest: Any) -> Any:
        enter(0 if async_op else ALL_GATHER_STREAM)
        try:
            return gather(parameters, group, async_op, *rest)
        finally:
            enter(0)

    def reduced(*args: Any) -> Any:
        before, communicator, rest = args[:4], args[4], args[5:]
        try:
            return reduce(*before, _Noticed(communicator, enter, noticed), *rest)
        finally:
            enter(0)

    with patch.multiple(module, foreach_all_gather=gathered, foreach_reduce=reduced):
        yield


class _Noticed:
    """A reduce-scatter that enters its stream with an allocation: 1, its input, or 2, its output."""

    def __init__(self, communicator: Any, enter: Callable[[int], None], noticed: int) -> None:
        self._communicator, self._enter, self._noticed = communicator, enter, noticed
        self._allocations = 0

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        self._allocations += 1
        if self._allocations == self._noticed:
            self._enter(REDUCE_SCATTER_STREAM)
        return self._communicator.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._communicator(*args, **kwargs)


def fsdp2_copies_up(is_below: Callable[[torch.Tensor], bool]) -> AbstractContextManager[Any]:
    """Make FSDP2 copy shards up first, as on CUDA (_fully_shard/_fsdp_param.py, `all_gather_inputs`)."""
    require_tried_version()
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    parameter_class: Any = FSDPParam
    original = parameter_class.all_gather_inputs

    def all_gather_inputs(parameter: Any) -> Any:
        shard = parameter._sharded_param_data
        if not is_below(shard):
            return original.fget(parameter)
        parameter._sharded_param_data = torch.empty(shard.shape, dtype=shard.dtype).copy_(shard)
        try:
            return original.fget(parameter)
        finally:
            parameter._sharded_param_data = shard

    return patch.object(parameter_class, "all_gather_inputs", property(all_gather_inputs))
