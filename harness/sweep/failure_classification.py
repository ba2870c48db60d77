"""Classify a cell's end: an exception (from the worker), or an exit or a signal (from the executor).

Pure; returns a status and a readable reason, without any path of the machine.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence

from harness.records import Status, Unavailable, WrongResult
from harness.units import counted

DISTRIBUTION = "throughput-harness"
TAIL_LINES = 20
LINE_LENGTH = 300
TEXT_LENGTH = 2000

NO_MEMORY = re.compile(r"can(no|')t allocate memory|not enough memory|out of memory|bad_alloc", re.I)
"""Messages of torch's CPU (c10/core/impl/alloc_cpu.cpp) and CUDA allocators, of errno 12 and of libstdc++."""

STACK = re.compile(r"^(?!.*C stack).*\(most recent call first\):$")
"""Line before the frames of a stack that faulthandler prints, innermost first."""

TERMINATED = re.compile(r"terminate called after throwing(.*)", re.S)
"""Printed by libstdc++ before it aborts on an exception that nothing caught."""


HARMLESS = (Status.OK, Status.UNAVAILABLE, Status.WRONG_RESULT)
"""Ends after which the process may run the next cell."""


def of_exception(error: BaseException, package: str) -> tuple[Status, str]:
    """Return status and reason of a cell that raised; `package` contains the suites."""
    if isinstance(error, Unavailable):
        return Status.UNAVAILABLE, clean(str(error))
    if isinstance(error, WrongResult):
        return Status.WRONG_RESULT, clean(str(error))
    if (missing := missing_library(error)) is not None:
        return Status.UNAVAILABLE, missing
    status = Status.TIMED_OUT if isinstance(error, TimeoutError) else Status.CRASHED
    if _lacks_memory(error):
        status = Status.OUT_OF_MEMORY
    message = ": ".join(filter(None, (type(error).__name__, _text(error))))
    notes = "".join(f"; {clean(note)}" for note in getattr(error, "__notes__", ()))
    return status, f"{message}{_place(error, package)}{notes}"


def of_exit(returncode: int, printed: bytes, oom_kills: int) -> tuple[Status, str]:
    """Return status and reason of a cell whose process ended before it did.

    `returncode` is negative for a signal; `oom_kills` is the increase of the kernel's count of processes
    killed for memory.
    """
    text = printed.decode("utf-8", "replace")
    if returncode >= 0:
        return Status.CRASHED, f"exit code {returncode} before the cell ended{last_lines(text)}"
    status, while_ended = Status.CRASHED, ""
    name = {int(one): one.name for one in signal.Signals}.get(-returncode, f"signal {-returncode}")
    terminated = TERMINATED.search(text)
    if returncode == -signal.SIGABRT and terminated and NO_MEMORY.search(terminated[1]):
        status = Status.OUT_OF_MEMORY
    elif returncode == -signal.SIGKILL and oom_kills > 0:
        ended = counted(oom_kills, "process", "processes")
        status, while_ended = Status.OUT_OF_MEMORY, f" while the kernel's out-of-memory killer ended {ended}"
    return status, f"killed by {name}{while_ended}{last_lines(text)}"


def begin_mark(cell_id: str) -> bytes:
    """Return what a worker prints before a cell, so that later output can be attributed to the cell."""
    return b"\x1e" + cell_id.encode() + b"\n"


def last_lines(text: str) -> str:
    """Return the last printed lines, each shortened, as the end of a reason; "" where there are none.

    Where faulthandler has printed a stack, the lines around its innermost frames.
    """
    lines = [clean(line, LINE_LENGTH) for line in text.splitlines() if line.strip()]
    stacks = [number for number, line in enumerate(lines) if STACK.search(line)]
    end = stacks[-1] + TAIL_LINES // 2 if stacks else len(lines)
    shown = lines[:end][-TAIL_LINES:]
    return "; last printed:\n" + "\n".join(shown) if shown else ""


def clean(text: str, length: int = TEXT_LENGTH) -> str:
    """Return `text` without this machine's folders, control characters, lone surrogates, cut to `length`."""
    text = below_roots(text.encode("utf-8", "replace").decode())
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text[: 2 * length]).strip()
    return text if len(text) <= length else text[: length - 2] + " …"


def below_roots(text: str) -> str:
    """Return `text` with each path relative to the folder that Python imports it from."""
    roots = {os.path.abspath(root) + os.sep for root in sys.path} - {os.sep}
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(root, "")
    return text


def missing_library(error: BaseException) -> str | None:
    """Return what to install where `error` means that a library is not installed at all; else None."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    library = error.name.partition(".")[0]
    try:
        installed = importlib.util.find_spec(library) is not None
    except ValueError:
        installed = True
    if installed:
        return None
    try:
        extra = extra_of(library, importlib.metadata.requires(DISTRIBUTION) or ())
    except importlib.metadata.PackageNotFoundError:
        extra = None
    brings = f"; the extra '{extra}' brings it: pip install '.[{extra}]'" if extra else ""
    return f"the library '{library}' is not installed{brings}"


def extra_of(library: str, requirements: Sequence[str]) -> str | None:
    """Return the extra whose requirement, as in `Requires-Dist`, names `library`."""
    normalized = library.replace("_", "-").lower()
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", requirement)
        if name and extra and name[0].replace("_", "-").lower() == normalized:
            return extra[1]
    return None


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and NO_MEMORY.search(_text(error)):
        return True
    return error.__cause__ is not None and _lacks_memory(error.__cause__)


def _text(error: BaseException) -> str:
    try:
        return clean(str(error))
    except Exception:
        return "(its text is not available)"


def _place(error: BaseException, package: str) -> str:
    frames = traceback.walk_tb(error.__traceback__)
    places = [f"{below_roots(frame.f_code.co_filename)}:{line}" for frame, line in frames]
    places = [place for place in places if not place.startswith("<frozen ")]
    if not places:
        return ""
    ours = [place for place in places if place.startswith(package.replace(".", "/") + "/")]
    calling = f", from {ours[-1]}" if ours and ours[-1] != places[-1] else ""
    return f" ({places[-1]}{calling})"
