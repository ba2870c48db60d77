"""StableHLO of a captured graph, by torch-mlir: what IREE and XLA compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.portability.extra import as_tried, missing

if TYPE_CHECKING:
    import torch

TRIED = "20261001"


def text_of(exported: torch.export.ExportedProgram) -> str:
    """Return the module as text, its function named `main`; raises what torch-mlir raises."""
    with as_tried("torch-mlir", TRIED):
        from torch_mlir import fx
    return str(fx.export_and_import(exported, output_type="stablehlo", func_name="main"))


def without_other_dialects(text: str) -> str:
    """Return the module with torch-mlir's `arith.constant` as StableHLO's, which XLA's plugins take alone."""
    return text.replace("arith.constant dense", "stablehlo.constant dense")


def unavailable() -> str | None:
    """Return why no StableHLO can be made here."""
    return missing("torch_mlir")
