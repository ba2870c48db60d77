"""Engines that compile once for sequences of any length, from a graph that leaves the length open.

The result is compared at the workload's length and, from the same code, at half of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from harness.records import Unavailable
from suites.portability.extra import missing
from suites.portability.subject import Compiled, Subject

if TYPE_CHECKING:
    from suites.portability.capture.graph import Capture

PACKAGES: dict[str, tuple[str, ...]] = {
    "inductor": (),
    "iree": ("iree.compiler", "iree.runtime", "torch_mlir"),
    "onnx_runtime": ("onnxruntime", "onnx", "onnxscript"),
    "openvino": ("openvino",),
}
"""The packages that each engine imports."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`engine`: which one compiles."""

    engine: Literal["inductor", "iree", "onnx_runtime", "openvino"] = "inductor"


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject compiled for any length."""
    engine = engine_module(settings.engine).apply(subject).engine
    assert engine is not None
    return replace(
        subject, engine=replace(engine, compile=partial(compiled, name=settings.engine), any_length=True)
    )


def compiled(capture: Capture, name: str) -> Compiled:
    """Return the graph compiled by an engine; raises `Unavailable` where a package is missing."""
    if reason := missing(*PACKAGES[name]):
        raise Unavailable(reason)
    found: Compiled = engine_module(name).compiled(capture)
    return found


def engine_module(name: str) -> Any:
    """Return the module of an engine."""
    from suites.portability.engines import inductor, iree, onnx_runtime, openvino

    modules = {"inductor": inductor, "iree": iree, "onnx_runtime": onnx_runtime, "openvino": openvino}
    return modules[name]
