"""torch's DataLoader as in the baseline, every worker with every source, with the suite's own Parquet reader.

So what it saves over the baseline is the reader's part (`formats.spooled`), and what the disaggregated loader
saves over it is the part of sharing.
"""

from __future__ import annotations

from collections.abc import Iterator

from suites.dataloader.batch import CorruptSample, LoaderSpec, PackedBatch, RankPlace, loads_with

FORMATS = ("parquet",)

apply = loads_with("torch_spooled_parquet")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    from suites.dataloader.loaders.baseline_loader import RowReader, loaded

    return loaded(spec, place, spec.workers, {"parquet": RowReader(_rows, _text)})


def _rows(path: str, spec: LoaderSpec) -> Iterator[bytes | CorruptSample]:
    from suites.dataloader.formats import spooled

    return spooled(path, spec, 0)


def _text(row: bytes | CorruptSample) -> bytes:
    """Return the text of a row; raises `CorruptSample` where it cannot be decoded."""
    if isinstance(row, CorruptSample):
        raise row
    return row
