"""torch's DataLoader with `num_workers=0`: the training process reads and packs each batch when it needs it.

One reader per source and rank, and no process that loads ahead: the least memory that a DataLoader takes, and
every second of loading is a second of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from suites.dataloader.batch import LoaderSpec, PackedBatch, RankPlace, loads_with

FORMATS = ("parquet", "jsonl")

apply = loads_with("synchronous")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    from suites.dataloader.loaders.baseline_loader import loaded

    return loaded(spec, place, workers=0)
