"""The extra `portability`: whether an engine's packages are here, in a version whose interface is known.

And StableHLO of a captured graph, by torch-mlir: what IREE and XLA compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from harness.records import Unavailable

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'throughput-harness[portability]'"


def require(*modules: str) -> None:
    """Raise `Unavailable`, with the extra that brings it, where a module is not installed."""
    for module in modules:
        try:
            found = find_spec(module) is not None
        except ModuleNotFoundError:  # the package that the module would be in
            found = False
        if not found:
            raise Unavailable(f"{module} is not installed; the extra `portability` brings it: {INSTALL}")


def installed(package: str) -> str:
    """Return a package's version, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def as_tried(package: str, tried: str) -> Iterator[None]:
    """Raise `Unavailable` where a package's interface is not that of the version that was tried.

    Encloses calls of the engine's own Python interface, not what compiles the graph.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        message = " ".join(str(error).split())[:160]
        raise Unavailable(
            f"{package} {installed(package)}: its interface is not that of {tried}, the one tried: {message}"
        ) from error


TORCH_MLIR_TRIED = "20261001"


def text_of(exported: torch.export.ExportedProgram) -> str:
    """Return the module as text, its function named `main`; raises what torch-mlir raises."""
    with as_tried("torch-mlir", TORCH_MLIR_TRIED):
        from torch_mlir import fx
    return str(fx.export_and_import(exported, output_type="stablehlo", func_name="main"))


def without_other_dialects(text: str) -> str:
    """Return the module with torch-mlir's `arith.constant` as StableHLO's, which XLA's plugins take alone."""
    return text.replace("arith.constant dense", "stablehlo.constant dense")
