"""Grain with sources mixed as `MapDataset`, before the one conversion to an iterator: MaxText's cure.

An index decides which source a document comes from, so one pool of reader threads and one buffer serve all
sources (MaxText pull request 5037). It needs random access, hence ArrayRecord. Order and defaults are
MaxText's: repeated, divided over groups, mixed, 16 threads and 500 documents ahead per process, then
tokenized and packed in processes of `mp_prefetch`. A worker takes every W-th document of the mixed sequence;
so with few sources of equal weight, one worker may see only some of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import active_children
from typing import Any, SupportsIndex

from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Source,
    Throttle,
    library,
    loads_with,
    one_line,
    packed,
    tokenize,
)
from suites.dataloader.loaders.peers import children_since, constant_mixture, end, needs

FORMATS = ("array_record",)

OPENING_THREADS = 16  # threads that open sources at the same time, as in MaxText

apply = loads_with("grain_map_mix")
unavailable = needs("grain", "array_record")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    grain = imported()
    weighted = constant_mixture(spec, "Grain")
    datasets = random_access(grain, [source for source, _ in weighted], spec, place)
    mixed = grain.MapDataset.mix(datasets, [weight for _, weight in weighted])
    return batched(grain, mixed.to_iter_dataset(), spec, place)


def read_ahead(spec: LoaderSpec) -> int:
    """Return the documents that a rank's processes have read before these are tokenized and packed."""
    return max(spec.workers, 1) * int(imported().ReadOptions().prefetch_buffer_size)


def imported() -> Any:
    """Return Grain; its flags count as parsed, as in a program that does not start with `absl.app.run`."""
    grain, flags = library("grain"), library("absl.flags").FLAGS
    if not flags.is_parsed():
        flags.mark_as_parsed()
    return grain


def random_access(grain: Any, sources: list[Source], spec: LoaderSpec, place: RankPlace) -> list[Any]:
    """Return a `MapDataset` of each source's records: repeated without end, the group's share of them."""

    def opened(source: Source) -> Any:
        records = ArrayRecords(source, spec, grain.sources.ArrayRecordDataSource)
        return grain.MapDataset.source(records).repeat()[place.dp_rank :: spec.dp_size]

    with ThreadPoolExecutor(OPENING_THREADS) as threads:
        return list(threads.map(opened, sources))


class ArrayRecords:
    """A data source for Grain: an ArrayRecord file, as fast as the emulated storage; raises `LoaderError`."""

    def __init__(self, source: Source, spec: LoaderSpec, reader: Any) -> None:
        self._source, self._spec = source, spec
        self._throttle = Throttle(spec)
        try:
            self._records = reader([source.file])
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise self._unreadable(error) from error
        if not len(self._records):
            raise LoaderError(f"source {source.name} is empty: its file {source.file} has no record")

    def _unreadable(self, error: Exception) -> LoaderError:
        return LoaderError(f"source {self._source.name}, file {self._source.file}: {one_line(error)}")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: SupportsIndex) -> bytes:
        begin_s = time.perf_counter()
        try:
            record = bytes(self._records[number])
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise self._unreadable(error) from error
        self._throttle.wait(len(record), begin_s)
        return record

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_throttle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _throttle=Throttle(state["_spec"]))


def batched(grain: Any, dataset: Any, spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return batches of a dataset of texts, tokenized and packed in worker processes."""
    dataset = dataset.map(tokenize).batch(
        spec.documents_per_group, drop_remainder=True, batch_fn=partial(packed, spec=spec, place=place)
    )
    options = grain.MultiprocessingOptions(num_workers=spec.workers, per_worker_buffer_size=spec.prefetch)
    before = active_children()
    iterator = iter(dataset.mp_prefetch(options))
    try:
        yield from iterator
    finally:
        iterator.close()
        del iterator
        gc.collect()  # closes iterators of workers that it had started and not used yet
        end(children_since(before))
