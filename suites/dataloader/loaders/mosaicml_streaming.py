"""mosaicml-streaming: MDS shards, a stream with a proportion per source, and torch's DataLoader.

`replication` gives the ranks of one data-parallel group the same documents. An epoch has as many documents as
all sources together; in each, a source is sampled by its proportion and shuffled. The ranks find each other
by shared memory and torch.distributed, which the caller has initialized where there are several ranks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.records import HostInfo, Unavailable
from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Subject,
    library,
    packed,
    tokenize,
)
from suites.dataloader.loaders.peers import constant_mixture, in_one_line, refuse_formats, refuse_slow_storage

FORMATS = ("mds",)
"""File formats, those that are preferred first."""

MISSING = "mosaicml-streaming is not installed: 0.13 requires numpy<2.2, this project is tested with 2.4"

SHARED_MEMORY = Path("/dev/shm")
FILE_LOCKS = ("barrier_filelock", "cache_filelock")


def apply(subject: Subject) -> Subject:
    """Return the subject with mosaicml-streaming as its loader."""
    return subject.changed(loader="mosaicml_streaming")


def unavailable(host: HostInfo) -> str | None:
    """Return why mosaicml-streaming cannot run here; None where it can."""
    return MISSING if find_spec("streaming") is None else None


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches without end; closing the iterator ends its workers.

    Raises `Unavailable` where the library is missing or the mixture changes, `LoaderError` where reading
    fails.
    """
    if find_spec("streaming") is None:
        raise Unavailable(MISSING)
    refuse_formats(spec, FORMATS, "mosaicml-streaming")
    refuse_slow_storage(spec, "mosaicml-streaming")
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
        streaming.Stream(local=file, proportion=weight / len(source.files))
        for source, weight in constant_mixture(spec, "mosaicml-streaming")
        for file in source.files
    ]
    ranks = spec.dp_size * spec.cp_size
    distributed = library("torch.distributed")
    if ranks > 1 and not (distributed.is_available() and distributed.is_initialized()):
        raise Unavailable(f"mosaicml-streaming needs torch.distributed initialized for its {ranks} ranks")
    with _rank_variables(place.dp_rank * spec.cp_size + place.cp_rank, ranks):
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


@contextmanager
def _rank_variables(rank: int, ranks: int) -> Iterator[None]:
    """Set the environment variables that the library takes its rank from, for a time."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _batch(spec: LoaderSpec, place: RankPlace, samples: Sequence[dict[str, str]]) -> PackedBatch:
    return packed([tokenize(one["text"]) for one in samples], spec, place)


def _free(dataset: Any) -> None:
    """Remove the dataset's shared memory and lock files, which it leaves until the process ends."""
    prefix = f"{dataset._shm_prefix_int:06}_"
    constants = library("streaming.base.constant")
    for name in constants.SHM_TO_CLEAN:
        (SHARED_MEMORY / f"{prefix}{name}").unlink(missing_ok=True)
    for name in FILE_LOCKS:
        with suppress(OSError):
            (Path(tempfile.gettempdir()) / f"{prefix}{name}").unlink(missing_ok=True)
