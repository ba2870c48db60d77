"""mosaicml-streaming: MDS shards, a stream with a proportion per source, and torch's DataLoader.

`replication` gives the ranks of one data-parallel group the same documents. In each epoch a source is sampled
by its proportion and shuffled. Ranks find each other by shared memory and torch.distributed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    library,
    loads_with,
    packed,
)
from suites.dataloader.loaders.peers import constant_mixture, in_one_line, needs

FORMATS = ("mds",)

MISSING = "mosaicml-streaming is not installed: 0.13 requires numpy<2.2, this project is tested with 2.4"

SHARED_MEMORY = Path("/dev/shm")
FILE_LOCKS = ("barrier_filelock", "cache_filelock")

apply = loads_with("mosaicml_streaming")
unavailable = needs("streaming", otherwise=MISSING)


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    dataset = _dataset(spec, place)
    loader = library("torch.utils.data").DataLoader(
        dataset,
        batch_size=spec.documents_per_group,
        num_workers=spec.workers,
        prefetch_factor=spec.prefetch if spec.workers else None,
        collate_fn=partial(_batch, spec, place),
        drop_last=True,
        persistent_workers=spec.workers > 0,
    )
    try:
        while True:
            yield from loader
    except (LoaderError, RuntimeError, OSError, ValueError) as error:
        raise in_one_line("mosaicml-streaming", error) from None
    finally:
        del loader  # ends and joins its workers
        _free(dataset)


def _dataset(spec: LoaderSpec, place: RankPlace) -> Any:
    """Return the dataset of all sources for this rank."""
    streaming = library("streaming")
    streams = [
        streaming.Stream(local=source.file, proportion=weight)
        for source, weight in constant_mixture(spec, "mosaicml-streaming")
    ]
    ranks, rank = spec.dp_size * spec.cp_size, place.dp_rank * spec.cp_size + place.cp_rank
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in own.items()})  # what it takes its rank from
    try:
        return streaming.StreamingDataset(
            streams=streams,
            batch_size=spec.documents_per_group,
            shuffle=True,
            shuffle_seed=spec.seed,
            replication=spec.cp_size if spec.cp_size > 1 else None,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise in_one_line("mosaicml-streaming", error) from None


def _batch(spec: LoaderSpec, place: RankPlace, samples: Sequence[dict[str, str]]) -> PackedBatch:
    return packed([one["text"] for one in samples], spec, place)


def _free(dataset: Any) -> None:
    """Remove the dataset's shared memory and lock files, which it leaves until the process ends."""
    prefix = f"{dataset._shm_prefix_int:06}_"
    constants = library("streaming.base.constant")
    for name in constants.SHM_TO_CLEAN:
        (SHARED_MEMORY / f"{prefix}{name}").unlink(missing_ok=True)
    for name in FILE_LOCKS:
        with suppress(OSError):
            (Path(tempfile.gettempdir()) / f"{prefix}{name}").unlink(missing_ok=True)
