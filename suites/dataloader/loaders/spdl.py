"""spdl: a pipeline of threads in one subprocess per rank, which its documents call MTP.

Stages: the draw of each step's sources, the reading of its documents by several threads, and packing. The
readers are this suite's. Each data-parallel group has its own range of each source's documents; of a source
with fewer documents than groups, every dp_size-th one over all epochs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from harness.records import Unavailable
from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Source,
    Tokens,
    library,
    loads_with,
    packed,
    tokenize,
)
from suites.dataloader.formats import BadSample, read_text
from suites.dataloader.loaders.baseline_loader import weights_at
from suites.dataloader.loaders.peers import in_one_line, needs

FORMATS = ("jsonl", "parquet", "array_record")


class SourceShare(NamedTuple):
    """What one step takes from a source: `documents` of them, from number `first` of the group's on."""

    source: Source
    first: int
    documents: int


apply = loads_with("spdl")
unavailable = needs("spdl")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    pipeline = library("spdl.pipeline")
    if not spec.workers:
        raise Unavailable("spdl reads by threads of a subprocess: it needs at least one worker")
    stages = _Stages(spec, place)
    config = (
        pipeline.PipelineBuilder()
        .add_source(stages)
        .pipe(stages.read, concurrency=spec.workers, output_order="input")
        .pipe(stages.pack, output_order="input")
        .add_sink(spec.prefetch)
        .get_config()
    )
    running = pipeline.run_pipeline_in_subprocess(
        config, num_threads=spec.workers + 1, max_failures=0, buffer_size=spec.prefetch
    )
    try:
        for got in running:
            if isinstance(got, Exception):
                raise got
            yield got
    except RuntimeError as error:
        raise in_one_line("spdl", error) from None
    finally:
        del running  # its finalizer ends and joins the subprocess


class _Stages:
    """The pipeline's stages. Errors pass as results: spdl itself reports their number, not the reason."""

    def __init__(self, spec: LoaderSpec, place: RankPlace) -> None:
        self._spec, self._place = spec, place
        self._cursors = {source.name: _Cursor(source, spec, place) for source in spec.sources}

    def __iter__(self) -> Iterator[list[SourceShare]]:
        """Return the shares of each step, drawn by the mixture's weights at that step."""
        draw = np.random.default_rng([self._spec.seed, self._place.dp_rank])
        taken = dict.fromkeys(self._cursors, 0)
        step = 0
        while True:
            counts = draw.multinomial(self._spec.documents_per_group, weights_at(self._spec, step))
            shares = []
            for source, count in zip(self._spec.sources, counts.tolist(), strict=True):
                if count:
                    shares.append(SourceShare(source, taken[source.name], count))
                    taken[source.name] += count
            yield shares
            step += 1

    def read(self, shares: list[SourceShare]) -> list[Tokens] | Exception:
        """Return the documents of one step; several threads do so for several steps."""
        documents: list[Tokens] = []
        failed: Exception | None = None
        for one in shares:  # all of them, even after an error: later steps wait for their turn
            try:
                documents += self._cursors[one.source.name].take(one.first, one.documents)
            except (LoaderError, Unavailable) as error:
                failed = failed or error
        return failed or documents

    def pack(self, documents: list[Tokens] | Exception) -> PackedBatch | Exception:
        """Return the rank's batch."""
        if isinstance(documents, Exception):
            return documents
        return packed(documents, self._spec, self._place)


class _Cursor:
    """The documents of one source, taken in order whichever thread comes first."""

    def __init__(self, source: Source, spec: LoaderSpec, place: RankPlace) -> None:
        self._documents = _documents(source, spec, place)
        self._turn = threading.Condition()
        self._next = 0

    def take(self, first: int, count: int) -> list[Tokens]:
        """Wait until all documents before `first` are taken; return the next ones. Raises `LoaderError`."""
        with self._turn:
            self._turn.wait_for(lambda: self._next == first)
            try:
                return list(islice(self._documents, count))
            finally:
                self._next += count
                self._turn.notify_all()


def _documents(source: Source, spec: LoaderSpec, place: RankPlace) -> Iterator[Tokens]:
    """Return the group's documents of the source, epoch after epoch."""
    for begin, end in _ranges(source, spec.dp_size, place.dp_rank):
        for document in islice(read_text(source, spec, begin), end - begin):
            if isinstance(document, BadSample):
                at = f"source {source.name}, file {document.file}, document {document.sample}"
                raise LoaderError(f"{at}: {document.reason}")
            yield tokenize(document)


def _ranges(source: Source, groups: int, group: int) -> Iterator[tuple[int, int]]:
    """Return begin and end of the group's documents, range after range, without end."""
    size = source.samples
    if size >= groups:
        yield from repeat((size * group // groups, size * (group + 1) // groups))
    for number in itertools.count(group, groups):
        yield number % size, number % size + 1
