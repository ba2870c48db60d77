"""What loaders share whose libraries read files themselves: a refusal, and errors in one line."""

from __future__ import annotations

from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, LoaderSpec


def refuse_slow_storage(spec: LoaderSpec, library: str) -> None:
    """Raise `Unavailable` where storage is emulated: the library opens files itself."""
    if spec.read_delay_s > 0 or spec.read_B_per_s > 0:
        raise Unavailable(f"{library} opens files itself: slow storage cannot be emulated")


def in_one_line(library: str, error: BaseException) -> LoaderError:
    """Return an error of a library or of its processes as one line: its cause, without the traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = f"{LoaderError.__module__}.{LoaderError.__name__}: "
    ours = [line.partition(name)[2] for line in lines if name in line]
    if ours:
        return LoaderError(ours[-1])
    if isinstance(error, LoaderError) and len(lines) == 1:
        return error
    return LoaderError(f"{library}: {lines[-1] if lines else type(error).__name__}")
