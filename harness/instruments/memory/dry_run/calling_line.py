"""Find the line of a model's or a trainer's code that called an operation; trace in a second process."""

from __future__ import annotations

import multiprocessing
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FrameType

import torch

from harness.instruments import torch_internals
from harness.instruments.memory.memory_timeline import Timeline, from_bytes, to_bytes
from harness.instruments.process import die_with_starter

LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[3]),
    sysconfig.get_path("stdlib") + "/",
)
"""Folders of code that calls operations for others. What is installed lies below the last one, too."""

INSTALLED = tuple({sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")})


class CallingLine:
    """Returns "folder/file.py:12" outside of libraries; in a backward pass that of the forward one."""

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
        frame: FrameType | None = sys._getframe(2)
        compiled = False
        while frame is not None:
            file = frame.f_code.co_filename
            if file not in self._skipped and not _is_library(file):
                if not str(frame.f_globals.get("__name__")).startswith("torch._inductor."):
                    return f"{_shown(file)}:{frame.f_lineno}", compiled
                compiled = True
            frame = frame.f_back
        return "", compiled


@cache
def _shown(file: str) -> str:
    return f"{Path(file).parent.name}/{Path(file).name}"


@cache
def _is_library(file: str) -> bool:
    if file.startswith("<") or file.startswith(LIBRARIES[:2]):
        return True
    return file.startswith(LIBRARIES[2]) and not file.startswith(INSTALLED)


FORK = multiprocessing.get_context("fork")


def is_possible() -> bool:
    """Return whether this process may be forked, and has a core for the second one."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return cores > 1 and threading.active_count() == 1


class TwoProcesses:
    """Traces depths by `trace`, those of `ahead` in a second process, which halves the time to wait."""

    def __init__(self, trace: Callable[[int], Timeline]) -> None:
        self._trace = trace
        self._ahead: dict[int, tuple[ForkProcess, Connection]] = {}  # by depth: the process and its answer

    def ahead(self, depth: int) -> None:
        """Begin to trace a depth in the second process."""
        answer, writing = FORK.Pipe(duplex=False)
        process = FORK.Process(target=self._answer, args=(depth, writing))
        process.start()
        writing.close()
        self._ahead[depth] = process, answer

    def _answer(self, depth: int, writing: Connection) -> None:
        die_with_starter()
        with suppress(Exception):  # then the other process traces this depth
            writing.send_bytes(to_bytes(self._trace(depth), compressed=False))

    def __call__(self, depth: int) -> Timeline:
        """Return the timeline of a depth; where the second process failed, this one traces it."""
        if depth in self._ahead:
            process, answer = self._ahead.pop(depth)
            with answer, suppress(EOFError):
                content = answer.recv_bytes()
                process.join()
                return from_bytes(content)
        return self._trace(depth)

    def close(self) -> None:
        """End what is still traced."""
        for process, answer in self._ahead.values():
            process.kill()
            process.join()
            answer.close()
        self._ahead.clear()
