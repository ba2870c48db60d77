"""What loaders of other libraries share: refusals, errors in one line, the end of their worker processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from multiprocessing import active_children
from multiprocessing.process import BaseProcess

from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, LoaderSpec, Source
from suites.dataloader.disaggregation.plan import refuse_weights

ENDED_WITHIN_S = 5.0
"""Worker processes that live longer after they were asked to end are terminated."""


def missing(library: str) -> str | None:
    """Return that a library is not installed and how to install it; None where it is installed."""
    if find_spec(library) is None:
        return f"{library} is not installed: pip install throughput-harness[dataloader]"
    return None


def refuse_formats(spec: LoaderSpec, formats: Collection[str], loader: str) -> None:
    """Raise `Unavailable` where a source has none of the formats that a loader reads."""
    for source in spec.sources:
        if source.format not in formats:
            raise Unavailable(
                f"{loader} reads {' or '.join(formats)}; source {source.name} has the format {source.format}"
            )


def constant_mixture(spec: LoaderSpec, library: str) -> list[tuple[Source, float]]:
    """Return the sources that have a weight, with their weights.

    Raises `Unavailable` where weights change over steps, which the library's own mixing cannot do, and
    `LoaderError` where they are invalid.
    """
    refuse_weights(spec)
    if len(spec.mixture) > 1:
        phases = len(spec.mixture)
        raise Unavailable(
            f"{library} mixes with constant weights; this mixture has {phases} phases, allowed is 1"
        )
    weighted = zip(spec.sources, spec.mixture[0].weights, strict=True)
    return [(source, float(weight)) for source, weight in weighted if weight > 0]


def from_worker(error: LoaderError) -> LoaderError:
    """Return the error that a worker raised without the traceback that torch puts in front of its text."""
    return LoaderError(str(error).rpartition("LoaderError: ")[2].strip())


def end(processes: Iterable[BaseProcess]) -> None:
    """Wait for these child processes, which were asked to end; terminate those that do not in time."""
    for process in processes:
        process.join(ENDED_WITHIN_S)
        if process.is_alive():
            process.terminate()
            process.join()


def children_since(before: Collection[BaseProcess]) -> list[BaseProcess]:
    """Return the child processes of this process that are not among those from before."""
    return [process for process in active_children() if process not in before]


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
