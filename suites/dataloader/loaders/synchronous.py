"""torch's DataLoader with `num_workers=0`: the training process makes each batch when it needs it."""

from __future__ import annotations

from collections.abc import Iterator

from suites.dataloader.batch import LoaderSpec, PackedBatch, RankPlace, loads_with

FORMATS = ("parquet", "jsonl")

apply = loads_with("synchronous")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    from suites.dataloader.loaders.baseline_loader import loaded

    return loaded(spec, place, workers=0)
