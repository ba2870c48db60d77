"""Let gloo's threads finish a collective before its caller continues, so that its releases are counted.

They keep its tensors slightly longer than the call that waits for it. The profiler does not see releases by
those threads, because it follows threads that compute: for `harness.instruments.memory.allocator.watch` the
tensors would live forever, and every later peak would be too high.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals

THREADS = Path("/proc/self/task")
PAUSE_S = 2e-4
MOST_S = 0.2
"""How long to wait for threads that may have other work."""


BETWEEN_TWO = frozenset({"send", "recv_"})
"""Operations that are not waited for: two ranks that send to one another would both wait for ever.

The thread that calls them releases their tensors.
"""


class DrainGloo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes each collective in the block end when its tensors are released, even asynchronous; costs time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; after one of a process group, wait for it and for the threads.

        Whoever waits for the result of a functional one releases its handle, and with it the tensors, unless
        a thread still has it; so the threads come first.
        """
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and func._opname not in BETWEEN_TWO:
            for one in tree_leaves(result):
                if hasattr(one, "wait"):  # the Work object next to the tensors
                    one.wait()
            wait_for_threads()
        elif func.namespace == "_c10d_functional" and isinstance(args[-1], str):
            wait_for_group(args[-1])
            for one in tree_leaves(result):
                torch_internals.wait_for(one)
        return result


def wait_for_group(name: str) -> None:
    """Wait until the ranks of a functional collective, whose last argument is their group, have all begun it.

    A thread that waits for another rank sleeps, too; then it has work to do.
    """
    dist.barrier(torch_internals.process_group(name))
    wait_for_threads()


def wait_for_threads() -> None:
    """Wait until all other threads of this process sleep, or for the full time where that cannot be read."""
    end_s = time.monotonic() + MOST_S
    time.sleep(PAUSE_S)
    while time.monotonic() < end_s and not _others_sleep():
        time.sleep(PAUSE_S)


def _others_sleep() -> bool:
    """Return whether they sleep, by the kernel (proc(5): state S); a thread that ended counts as sleeping."""
    own = str(threading.get_native_id())
    for thread in THREADS.iterdir() if THREADS.exists() else ():
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if thread.name != own and state != "S":
            return False
    return THREADS.exists()
