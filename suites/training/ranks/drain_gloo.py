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

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        """Run the operation; after one of a process group, wait for it, then for the threads."""
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and func._opname not in BETWEEN_TWO:
            for one in tree_leaves(result):
                if hasattr(one, "wait"):  # the Work object next to the tensors
                    one.wait()
            wait_for_threads()
        return result


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
