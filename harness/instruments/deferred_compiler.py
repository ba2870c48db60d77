"""Let torch load its compiler when something compiles: a step that is not compiled runs without it.

Loading `torch._dynamo` takes as long as torch itself. Eager code needs little of it: fake tensors read its
settings; FSDP2, optimizers, dispatch modes and transformers mark functions that are not to be compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._guards import Source

from harness.instruments.torch_internals import require_tried_version

DYNAMO = "torch._dynamo"

LIGHT = ("config", "_trace_wrapped_higher_order_op")
"""Modules of the compiler that fake tensors and transformers import, and that load without it."""


def defer_compiler() -> None:
    """Put a stand-in in the place of `torch._dynamo`, unless that is loaded already.

    It loads the compiler as soon as anything is used of it that it does not have.
    """
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
