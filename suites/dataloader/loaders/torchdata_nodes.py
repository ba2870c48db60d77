"""torchdata.nodes: sources mixed by `MultiNodeWeightedSampler`, packed by processes of a `ParallelMapper`.

As its documents advise ("Migrating to torchdata.nodes from torch.utils.data"): sources and their order stay
in the main process, one node per source, and `ParallelMapper` has the heavy transform alone, in processes,
because threads contend for the GIL; a `Prefetcher` follows. So a rank has one reader per source.

The last node is iterated without `Loader`, which is part of a reference cycle that keeps worker processes. To
close, the sources end and the batches under way are taken: the nodes then end by themselves.

The mixture is the library's own: constant, seeded by group. Each source's documents are divided over groups
by their number, counted over all epochs. Files are read as by the baseline.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from threading import Event
from typing import Any

from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    Source,
    library,
    loads_with,
    packed,
)
from suites.dataloader.loaders.peers import children_since, constant_mixture, end, in_one_line, needs

FORMATS = ("parquet", "jsonl")

apply = loads_with("torchdata_nodes")
unavailable = needs("torchdata")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    closing = Event()
    node = _last_node(library("torchdata.nodes"), spec, place, closing)
    if any(source.format == "parquet" for source in spec.sources):
        library("pyarrow.parquet")
    before = active_children()
    node.reset()
    workers, failed = children_since(before), LoaderError("torchdata.nodes has ended")
    try:
        for batch in node:
            yield PackedBatch(
                batch.tokens.numpy(), batch.segments.numpy(), batch.documents, batch.real_tokens
            )
    except LoaderError as error:
        failed = in_one_line("torchdata.nodes", error)
    finally:
        closing.set()
        deque(node, maxlen=0)
        del node
        gc.collect()  # after an error: nodes end their processes when freed, and its traceback has a cycle
        end(workers)
    raise failed


def _last_node(nodes: Any, spec: LoaderSpec, place: RankPlace, closing: Event) -> Any:
    weighted = constant_mixture(spec, "torchdata.nodes")
    node = nodes.MultiNodeWeightedSampler(
        {
            str(number): nodes.IterableWrapper(SourceDocuments(source, spec, place, closing))
            for number, (source, _) in enumerate(weighted)
        },
        {str(number): weight for number, (_, weight) in enumerate(weighted)},
        stop_criteria=nodes.StopCriteria.CYCLE_FOREVER,
        rank=place.dp_rank,
        world_size=spec.dp_size,
        seed=spec.seed,
    )
    node = nodes.Batcher(node, batch_size=spec.documents_per_group)
    node = nodes.ParallelMapper(
        node, map_fn=PackedTensors(spec, place), num_workers=spec.workers, method="process"
    )
    return nodes.Prefetcher(node, prefetch_factor=max(spec.workers, 1) * spec.prefetch)


@dataclass(frozen=True, slots=True)
class SourceDocuments:
    """The texts of a source for one data-parallel group, without end, or until `closing` is set."""

    source: Source
    spec: LoaderSpec
    place: RankPlace
    closing: Event

    def __iter__(self) -> Iterator[str | bytes]:
        """Return a new reader from the source's first document on."""
        from suites.dataloader.loaders.baseline_loader import READERS, documents

        reader = READERS[self.source.format]
        for text in documents(self.source, self.spec, self.place.dp_rank, self.spec.dp_size, reader):
            if self.closing.is_set():
                return
            yield text


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """The transform that workers apply: texts to a batch of tensors, which arrive through shared memory."""

    spec: LoaderSpec
    place: RankPlace

    def __call__(self, texts: list[str]) -> Any:
        """Return the batch of these documents with tensors instead of arrays."""
        convert: Any = library("torch.utils.data").default_convert
        return convert(packed(texts, self.spec, self.place))
