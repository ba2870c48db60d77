"""Grain with sources mixed as iterators: the wall that MaxText published (pull request 5037).

Each source is an `IterDataset`, and `grain.IterDataset.mix` draws from them. From ArrayRecord each has 16
reader threads and a buffer of 500 documents ahead, in every worker of every rank; `grain_map_mix` is the
cure. From Parquet each is a `grain.experimental.ParquetIterDataset`, which keeps one row group decoded;
a source has one file, so each worker reads all rows and keeps its own, as MaxText does between hosts. The
mixture is Grain's own: deterministic, and constant over time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from harness.records import Unavailable
from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Source,
    library,
    loads_with,
    one_line,
)
from suites.dataloader.loaders.grain_map_mix import batched, imported, random_access
from suites.dataloader.loaders.peers import constant_mixture, needs

FORMATS = ("array_record", "parquet")

PROCESS_B = 190_000_000
"""Memory of a worker process without sources; measured, as the next two, on Linux with Grain 0.2.18."""

THREAD_B = 100_000
"""Memory of a reader thread, with its part of what a source needs besides its buffer of documents."""

TEXT_FACTOR = 3.6
"""Memory of a decoded row group over the bytes of its text; 3.0 with 32 sources, 3.6 with 5."""

apply = loads_with("grain_iter_mix")


def refuse_unfit(spec: LoaderSpec) -> None:
    """Raise `Unavailable` where all workers of all ranks take more memory than this host has left."""
    workers = max(spec.workers, 1) * spec.dp_size * spec.cp_size
    options = imported().ReadOptions()
    threads, each_B = 0, PROCESS_B
    for source in spec.sources:
        if source.format == "array_record":
            threads += options.num_threads
            each_B += options.num_threads * THREAD_B
            each_B += options.prefetch_buffer_size * source.text_B // max(source.samples, 1)
        else:
            each_B += int(TEXT_FACTOR * row_group_B(source.file))
    needed_B, left_B = workers * each_B, psutil.virtual_memory().available
    if needed_B > left_B:
        count = len(spec.sources)
        raise Unavailable(
            f"{count} sources in each of {workers} workers, with {threads * workers:,} threads, take about "
            f"{needed_B / 1e9:.0f} GB at {each_B / count / 1e6:.1f} MB per source and worker; "
            f"{left_B / 1e9:.0f} GB are available"
        )


def row_group_B(path: str) -> int:
    """Return the bytes of the largest row group of a Parquet file, decoded; 0 where it cannot be read."""
    parquet, arrow = library("pyarrow.parquet"), library("pyarrow")
    try:
        described = parquet.read_metadata(path)
    except (OSError, arrow.ArrowException):
        return 0  # reading it is what reports why
    groups = range(described.num_row_groups)
    return max((int(described.row_group(one).total_byte_size) for one in groups), default=0)


unavailable = needs("grain")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    grain = imported()
    weighted = constant_mixture(spec, "Grain")
    datasets = iterators(grain, [source for source, _ in weighted], spec, place)
    mixed = grain.IterDataset.mix(datasets, [weight for _, weight in weighted])
    return batched(grain, mixed, spec, place)


def iterators(grain: Any, sources: list[Source], spec: LoaderSpec, place: RankPlace) -> list[Any]:
    """Return an endless `IterDataset` of each source's texts, with the group's share of them."""
    if all(source.format == "array_record" for source in sources):
        return [one.to_iter_dataset() for one in random_access(grain, sources, spec, place)]
    library("pyarrow.parquet")
    if spec.is_slow:
        raise Unavailable("Grain opens Parquet files itself: emulated storage needs array_record")
    share_of, experimental, shares = share_type(grain), grain.experimental, []
    for source in sources:
        texts = experimental.ParquetIterDataset([source.file]).map(text_of_row)
        repeated = experimental.RepeatIterDataset(texts)
        shares.append(share_of(repeated, source.name, place.dp_rank, spec.dp_size))
    return shares


def text_of_row(row: dict[str, Any]) -> str:
    """Return the text of a row; raises `TypeError` where it is not a string."""
    if not isinstance(row["text"], str):
        raise TypeError(f"the text of a document is {type(row['text']).__name__}, not a string")
    return row["text"]


@contextmanager
def named(source: str) -> Iterator[None]:
    """Raise `LoaderError` with the source's name where a file cannot be read."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise LoaderError(f"source {source}: {one_line(error)}") from error


def share_type(grain: Any) -> Any:
    """Return a type of `IterDataset`: every n-th element of another one, divided further over workers."""

    class ShareIterator(grain.DatasetIterator):  # type: ignore[misc]
        def __init__(self, parent: Any, source: str, first: int, every: int) -> None:
            super().__init__(parent)
            self._source, self._first, self._every, self._number = source, first, every, 0

        def __next__(self) -> Any:
            while True:
                number, self._number = self._number, self._number + 1
                with named(self._source):
                    element = next(self._parent)
                if number % self._every == self._first:
                    return element

        def get_state(self) -> dict[str, Any]:
            return {"number": self._number, "parent": self._parent.get_state()}

        def set_state(self, state: dict[str, Any]) -> None:
            self._number = state["number"]
            self._parent.set_state(state["parent"])

    class ShareIterDataset(grain.IterDataset):  # type: ignore[misc]
        def __init__(self, parent: Any, source: str, first: int, every: int) -> None:
            super().__init__(parent)
            self._source, self._first, self._every = source, first, every

        def set_slice(self, part: slice, sequential_slice: bool = False) -> None:
            self._first += self._every * part.start
            self._every *= part.step

        def __iter__(self) -> Any:
            with named(self._source):
                parent = self._parent.__iter__()  # opens the first file
            return ShareIterator(parent, self._source, self._first, self._every)

    return ShareIterDataset
