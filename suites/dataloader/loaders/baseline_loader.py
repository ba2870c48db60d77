"""The baseline: torch's DataLoader in each rank, every worker with every source, as users write it.

An `IterableDataset` has a reader of each source, opened at its first document and kept open. From Parquet it
is `ParquetFile(path).iter_batches()` with its defaults, batches of 65,536 rows: a file with one row group is
decoded as a whole, and stays in memory while the worker draws from it, in every worker of every rank.

Done as a careful user does: only the column with the text is read; a document of another worker is neither
parsed nor copied; workers pack and send rows through shared memory; pyarrow is imported before the fork. Not
done, because users do not: smaller batches of rows, memory maps, or one reader for several workers.

Each source's documents are divided by their number, counted over all epochs, modulo groups times workers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Source,
    UnreadableFile,
    library,
    one_line,
    open_file,
    packed,
)
from suites.dataloader.loaders.peers import from_workers

FORMATS = ("parquet", "jsonl")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    return loaded(spec, place, spec.workers)


class RowReader(NamedTuple):
    """How a file format is read: the rows of a file, and the text of a row."""

    rows: Callable[[str, LoaderSpec], Iterator[Any]]
    text: Callable[[Any], str | bytes]


def loaded(
    spec: LoaderSpec, place: RankPlace, workers: int, readers: Mapping[str, RowReader] | None = None
) -> Iterator[PackedBatch]:
    """Return batches loaded by this many worker processes, 0: by this one; `readers` by file format."""
    readers = READERS if readers is None else readers
    if any(source.format == "parquet" for source in spec.sources):
        library("pyarrow.parquet")
    for batch in from_workers("torch", MixedDocuments(spec, place, readers), spec, workers):
        yield PackedBatch(batch.tokens.numpy(), batch.segments.numpy(), batch.documents, batch.real_tokens)


class MixedDocuments(IterableDataset[PackedBatch]):
    """Batches of documents drawn from all sources; a worker makes every W-th, from its own documents."""

    def __init__(self, spec: LoaderSpec, place: RankPlace, readers: Mapping[str, RowReader]) -> None:
        super().__init__()
        self._spec, self._place, self._readers = spec, place, readers

    def __iter__(self) -> Iterator[PackedBatch]:
        """Draw each document's source by the weights of its step; yield one packed batch per step."""
        spec, place = self._spec, self._place
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = place.dp_rank * workers + worker
        readers = [
            documents(source, spec, share, spec.dp_size * workers, self._readers[source.format])
            for source in spec.sources
        ]
        random = np.random.default_rng((spec.seed, place.dp_rank, worker))
        for step in itertools.count(worker, workers):
            drawn = random.choice(len(readers), spec.documents_per_group, p=weights_at(spec, step))
            yield packed([next(readers[source]) for source in drawn], spec, place)


def weights_at(spec: LoaderSpec, step: int) -> NDArray[np.float64]:
    """Return the weights of the sources at a step."""
    phase = [phase for phase in spec.mixture if phase.first_step <= step][-1]
    weights = np.array(phase.weights)
    normalized: NDArray[np.float64] = weights / weights.sum()
    return normalized


def documents(
    source: Source, spec: LoaderSpec, share: int, shares: int, reader: RowReader
) -> Iterator[str | bytes]:
    """Return every `shares`-th document of a source from number `share` on, epoch after epoch."""
    number = 0
    while True:
        first = number
        try:
            for row in reader.rows(source.file, spec):
                if number % shares == share:
                    yield reader.text(row)
                number += 1
        except (OSError, ValueError, LookupError, TypeError, UnreadableFile) as error:
            raise LoaderError(f"source {source.name}, file {source.file}: {one_line(error)}") from error
        if number == first:
            raise LoaderError(f"source {source.name} is empty: its file {source.file} has no document")


def _parquet_rows(path: str, spec: LoaderSpec) -> Iterator[Any]:
    parquet = library("pyarrow.parquet")
    file = parquet.ParquetFile(open_file(path, spec) if spec.is_slow else path)
    for batch in file.iter_batches(columns=["text"]):
        yield from batch.column("text")


def _json_lines(path: str, spec: LoaderSpec) -> Iterator[bytes]:
    with open_file(path, spec) as file:
        yield from file


def _parquet_text(row: Any) -> str:
    return _text(row.as_py())


def _json_text(line: bytes) -> str:
    return _text(json.loads(line)["text"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the text of a document is {type(value).__name__}, not a string")
    return value


READERS: Mapping[str, RowReader] = {
    "parquet": RowReader(_parquet_rows, _parquet_text),
    "jsonl": RowReader(_json_lines, _json_text),
}
"""Readers by format."""
