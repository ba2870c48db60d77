"""Samples the memory of a cell's processes while they load, at little cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST_APART_S = 0.5
"""Seconds between two samples at least."""

SHARE = 0.02
"""Share of one core that sampling may take: the kernel walks all pages of a process, for seconds if large."""


class MemorySampler(Generic[T]):
    """Calls `sample` again and again in a thread until `close`; `samples` are what it has returned."""

    def __init__(self, sample: Callable[[], T]) -> None:
        self.samples: list[T] = []
        self._sample, self._lock, self._stopped = sample, threading.Lock(), threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Add a sample now; raises what a sample before has raised."""
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self.samples.append(self._sample())

    def close(self) -> None:
        """Sample no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = LEAST_APART_S
        while not self._stopped.wait(pause_s):
            begin_s = time.thread_time()
            with self._lock:
                try:
                    self.samples.append(self._sample())
                except Exception as error:
                    self._failed = error
                    return
            pause_s = max(LEAST_APART_S, (time.thread_time() - begin_s) / SHARE)
