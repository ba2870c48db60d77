"""Lets gloo's threads finish with a collective before its caller goes on, so that what it held is counted.

They hold its tensors a moment longer than the call that waits for it. What they are the last to release, the
profiler does not see, for it follows threads that compute: to `harness.instruments.memory.allocator.watch`
it would
live for ever, and every later peak would be so much higher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

THREADS = Path("/proc/self/task")
PAUSE_S = 2e-4
MOST_S = 0.2
"""How long to wait for threads that may have work of their own."""


class Settled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, each collective ends when its tensors are let go; asynchronous ones too. Costs time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; after one of a process group, wait for it, then for the threads."""
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            for one in tree_leaves(result):
                if hasattr(one, "wait"):  # the work beside the tensors
                    one.wait()
            wait_for_threads()
        return result


def wait_for_threads() -> None:
    """Wait until all other threads of this process sleep; as long as it may take, where nobody can tell."""
    end_s = time.monotonic() + MOST_S
    time.sleep(PAUSE_S)
    while time.monotonic() < end_s and not _others_sleep():
        time.sleep(PAUSE_S)


def _others_sleep() -> bool:
    """Whether they do, as the kernel has it (proc(5): state S); a thread that ends meanwhile is as good."""
    own = str(threading.get_native_id())
    for thread in THREADS.iterdir() if THREADS.exists() else ():
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if thread.name != own and state != "S":
            return False
    return THREADS.exists()
