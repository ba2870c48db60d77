"""Find the line of a model's or a trainer's code that called the operation which is running."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from harness.instruments import torch_internals

LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[3]),
    sysconfig.get_path("stdlib") + "/",
)
"""Folders of code that calls operations for others. What is installed lies below the last one, too."""

INSTALLED = tuple({sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")})


class CallingLine:
    """Returns "folder/file.py:12", the innermost line outside of torch, this harness and `skipped` files.

    An operation of the backward pass gets the line of the operation in the forward pass that it belongs to.
    """

    def __init__(self, skipped: Collection[str] = ()) -> None:
        self._skipped = frozenset(skipped)
        self._of_nodes: dict[int, str] = {}  # by autograd's sequence number

    def __call__(self) -> str:
        """Return the line of the operation that is being dispatched, "" where there is none."""
        line, compiled = self._innermost()
        if torch.is_grad_enabled() or compiled:  # compiled code makes one node, then records no gradients
            self._of_nodes.setdefault(torch_internals.last_autograd_node(), line)
        if torch.is_grad_enabled():
            return line
        node = torch_internals.running_autograd_node()
        return line if node < 0 else self._of_nodes.get(node, line)

    def _innermost(self) -> tuple[str, bool]:
        """Return the line, and whether torch.compile generated the code that it calls."""
        frame = sys._getframe(2)
        compiled = False
        while frame is not None:
            file = frame.f_code.co_filename
            if file not in self._skipped and not _is_library(file):
                if not _is_generated(frame):
                    return f"{_shown(file)}:{frame.f_lineno}", compiled
                compiled = True
            frame = frame.f_back  # type: ignore[assignment]
        return "", compiled


def _is_generated(frame: FrameType) -> bool:
    """Return whether torch.compile generated the code."""
    return str(frame.f_globals.get("__name__")).startswith("torch._inductor.")


@cache
def _shown(file: str) -> str:
    return f"{Path(file).parent.name}/{Path(file).name}"


@cache
def _is_library(file: str) -> bool:
    if file.startswith("<") or file.startswith(LIBRARIES[:2]):
        return True
    return file.startswith(LIBRARIES[2]) and not file.startswith(INSTALLED)
