"""Files for readers, plain or as slow as an emulated storage, and the errors of reading them."""

from __future__ import annotations

import importlib
import io
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from harness.records import Unavailable
from suites.dataloader.batch import LoaderSpec

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_B = 64 << 10
"""Buffer of each open file: hundreds are open at once."""


def library(name: str) -> Any:
    """Return an optional library's module; raises `Unavailable` with what to install where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        reason = f"{package} cannot be imported ({error}): pip install throughput-harness[dataloader]"
        raise Unavailable(" ".join(reason.split())) from error


class CorruptSample(ValueError):
    """A document that cannot be decoded; the text names why."""


class UnreadableFile(RuntimeError):
    """A file that cannot be read any further; the text names why."""


def one_line(error: BaseException) -> str:
    """Return an error's text in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


class Throttle:
    """The emulated speed of one file handle: a delay before each read, then its bytes at a rate.

    Reads of one handle follow one another, whichever threads issue them.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._delay_s, self._rate_B_per_s = spec.read_delay_s, spec.read_B_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # when the handle has served all reads so far

    @property
    def slow(self) -> bool:
        """Return whether reads wait at all."""
        return self._delay_s > 0 or self._rate_B_per_s > 0

    def wait(self, size_B: int, begin_s: float) -> None:
        """Sleep until a read of this size, issued at `begin_s` (of `time.perf_counter`), would be done."""
        if not self.slow:
            return
        taken_s = self._delay_s + (size_B / self._rate_B_per_s if self._rate_B_per_s > 0 else 0.0)
        with self._lock:
            self._free_s = max(begin_s, self._free_s) + taken_s
            left_s = self._free_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class SlowFile(io.RawIOBase):
    """A file, open for reading, whose reads take the time of the emulated storage."""

    def __init__(self, path: str, throttle: Throttle) -> None:
        self._file = io.FileIO(path)
        self._throttle = throttle

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into the buffer and return the bytes read, after the time that the storage takes."""
        begin_s = time.perf_counter()
        size_B = self._file.readinto(buffer) or 0
        self._throttle.wait(size_B, begin_s)
        return size_B

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to an offset and return it; this takes no time."""
        return self._file.seek(offset, whence)

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_file(path: str, spec: LoaderSpec) -> BinaryIO:
    """Return the file, open for reading, as fast as the specification's emulated storage.

    Raises `OSError` where it cannot be opened.
    """
    throttle = Throttle(spec)
    if not throttle.slow:
        return open(path, "rb", buffering=BUFFER_B)
    return io.BufferedReader(SlowFile(path, throttle), BUFFER_B)
