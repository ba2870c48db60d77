"""What loaders of other libraries share: refusals, errors in one line, the end of their processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any

from harness.records import HostInfo, Unavailable
from suites.dataloader.batch import INSTALL, LoaderError, LoaderSpec, Source

ENDED_WITHIN_S = 5.0
"""Worker processes that live longer after they were asked to end are terminated."""


def needs(*libraries: str, otherwise: str = "") -> Callable[[HostInfo], str | None]:
    """Return what reports whether a loader is unavailable: which of its libraries is not installed.

    `otherwise`: the report in place of how to install it.
    """

    def unavailable(host: HostInfo) -> str | None:
        for one in libraries:
            try:
                found = find_spec(one)
            except ModuleNotFoundError:  # the package that it would be in
                found = None
            if found is None:
                return otherwise or f"{one} is not installed: {INSTALL}"
        return None

    return unavailable


def constant_mixture(spec: LoaderSpec, library: str) -> list[tuple[Source, float]]:
    """Return the sources that have a weight, with their weights.

    Raises `Unavailable` where weights change over steps, which the library's own mixing cannot do.
    """
    if (phases := len(spec.mixture)) > 1:
        raise Unavailable(
            f"{library} mixes with constant weights; this mixture has {phases} phases, allowed is 1"
        )
    weighted = zip(spec.sources, spec.mixture[0].weights, strict=True)
    return [(source, float(weight)) for source, weight in weighted if weight > 0]


def from_workers(library: str, dataset: Any, spec: LoaderSpec, workers: int, **options: Any) -> Iterator[Any]:
    """Yield what torch's DataLoader makes of a dataset of batches; its workers end with this iterator.

    Raises `LoaderError`, in one line, for what a worker raises.
    """
    from torch.utils.data import DataLoader  # not every loader needs torch

    ahead = spec.prefetch if workers else None
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=ahead, **options)
    iterator: Any = iter(loader)
    try:
        yield from iterator
    except RuntimeError as error:
        raise in_one_line(library, error) from None
    finally:
        if workers:
            iterator._shutdown_workers()


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
