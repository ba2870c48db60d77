"""webdataset: tar shards, a pipeline per source, mixed at random in each worker of torch's DataLoader.

As its author recommends: RandomMix for sources with weights (issue 244); of few shards each worker reads all
and keeps every n-th document (issue 71).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

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
    one_line,
    open_file,
    packed,
    tokenize,
)
from suites.dataloader.loaders.peers import constant_mixture, from_workers, needs

FORMATS = ("webdataset",)

TarSample = TypeVar("TarSample")

apply = loads_with("webdataset")
unavailable = needs("webdataset")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    wds, torch = library("webdataset"), library("torch")
    sources = constant_mixture(spec, "webdataset")
    if not spec.workers:
        raise Unavailable("webdataset mixes by Python's global random generator: it needs workers of its own")
    dataset = wds.DataPipeline(
        wds.RandomMix(
            [_documents(spec, place, source) for source, _ in sources], [weight for _, weight in sources]
        ),
        wds.batched(spec.documents_per_group, collation_fn=None, partial=False),
        wds.map(partial(packed, spec=spec, place=place)),
    )
    seeded = torch.Generator().manual_seed(spec.seed * spec.dp_size + place.dp_rank)  # of the workers' draws
    options = {"collate_fn": _unchanged, "generator": seeded}
    yield from from_workers("webdataset", dataset, spec, spec.workers, **options)


def _documents(spec: LoaderSpec, place: RankPlace, source: Source) -> Any:
    """Return one worker's documents of a source as tokens, epoch after epoch."""
    wds, tar = library("webdataset"), library("webdataset.tariterators")
    refuse = partial(_refuse, source)
    epochs = wds.DataPipeline(
        wds.SimpleShardList([source.file]),
        partial(_opened, spec, source),
        partial(tar.tar_file_expander, handler=refuse),
        partial(tar.group_by_keys, handler=refuse),
    ).repeat()
    return wds.DataPipeline(
        epochs,
        partial(_refuse_end, source),
        partial(_divided, spec, place),
        wds.map(partial(_tokens, source)),
    )


def _divided(spec: LoaderSpec, place: RankPlace, items: Iterable[TarSample]) -> Iterator[TarSample]:
    """Return this worker's part: every n-th item, disjoint over data-parallel groups and workers."""
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return islice(items, place.dp_rank * workers + worker, None, spec.dp_size * workers)


def _opened(spec: LoaderSpec, source: Source, shards: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Open each shard, as fast as the emulated storage; webdataset closes none."""
    for shard in shards:
        try:
            stream = open_file(shard["url"], spec)
        except OSError as error:
            raise LoaderError(f"source {source.name}, file {shard['url']}: {error.strerror}") from error
        with stream:
            yield {"url": shard["url"], "stream": stream}


def _tokens(source: Source, sample: dict[str, Any]) -> Tokens:
    texts = [value for key, value in sample.items() if not key.startswith("__")]
    place = f"source {source.name}, file {sample['__url__']}, member {sample['__key__']}"
    if len(texts) != 1:
        raise LoaderError(f"{place}: it has {len(texts)} files of one name; expected one text")
    try:
        return tokenize(texts[0].decode())
    except UnicodeDecodeError as error:
        raise LoaderError(f"{place}: the text is not UTF-8: {error.reason} at byte {error.start}") from None


def _refuse(source: Source, error: Exception) -> bool:
    """Raise webdataset's error, whose first argument has the reason, as one line."""
    if isinstance(error, LoaderError):
        raise LoaderError(str(error.args[0]))
    if not isinstance(error, tarfile.TarError | OSError | ValueError | EOFError):
        raise error
    reason = one_line(Exception(str(error.args[0]).partition(" @ ")[0]))
    raise LoaderError(f"source {source.name}, file {source.file}: {reason}") from error


def _refuse_end(source: Source, samples: Iterable[TarSample]) -> Iterator[TarSample]:
    """Return samples that repeat without end; where they do end, the shard has none."""
    yield from samples
    raise LoaderError(f"source {source.name}, file {source.file}: the shard has no document")


def _unchanged(batch: TarSample) -> TarSample:
    return batch
