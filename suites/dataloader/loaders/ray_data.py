"""Ray Data: a dataset per source, mixed by weights and split over data-parallel groups, in Ray's processes.

As its documents advise ("Weighted dataset mixing"): `mix` interleaves blocks of some batches,
`streaming_split` divides them over groups, and a buffer in each rank shuffles their documents. Ranks of one
group each read the stream anew: Ray Data gives a block to one consumer. `workers` is not used.

Ray Data does not repeat a source. A round lists a source's file as often as its weight demands until the
source that lasts longest has ended, or for ROUND_DOCUMENTS documents; each is limited to its share of a
round, and all of it is taken, since a mix that stops on the shortest source differs between the ranks of a
group. What lies beyond its share of ROUND_DOCUMENTS never comes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
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
from suites.dataloader.loaders.peers import constant_mixture, in_one_line, needs

FORMATS = ("parquet", "jsonl")

NEEDS_RAY = True

LEAST_OBJECT_STORE_B = 2 << 30
"""Object store of the Ray session: it has blocks of hundreds of sources. Pages count as they are written."""

ROUND_DOCUMENTS = 100_000  # documents of a round at most, over all groups
BLOCK_DOCUMENTS = 32  # documents of a block at least: smaller blocks cost more than they carry

SHUFFLED_BLOCKS = 8
"""Blocks in a rank's shuffle buffer, so that a batch has documents of several sources."""

SEEDS = 1_000_003  # between the seeds of rounds

COLUMN = "text"

apply = loads_with("ray_data")
unavailable = needs("ray")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches, the first once each group has asked for one; closing it ends the mixture."""
    ray = library("ray")
    library("ray.data")
    constant_mixture(spec, "Ray Data")
    from harness.instruments.distributed.ray_session import join

    join(str(spec.options["ray_address"]))
    owner = ray.remote(num_cpus=0)(MixedStreams)
    name = f"ray_data-{place.cp_rank}"
    streams = owner.options(name=name, get_if_exists=True, max_concurrency=spec.dp_size).remote(spec)
    try:
        stream = ray.get(streams.of.remote(place.dp_rank))
        for number in itertools.count():
            yield from _round(spec, place, stream, number)
    except ray.exceptions.RayError as error:
        raise in_one_line("Ray Data", error) from None
    finally:
        ray.kill(streams)


class MixedStreams:
    """An actor that owns the mixture of all sources and its division over data-parallel groups."""

    def __init__(self, spec: LoaderSpec) -> None:
        data = library("ray.data")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.use_datasource_v2 = False  # it lists files in any order, and fails without aiohttp (2.60)
        context.execution_options.preserve_order = True  # ranks of one group get the same documents
        sources = constant_mixture(spec, "Ray Data")
        # Documents of a round: until the source that lasts longest has ended, but no more than allowed.
        documents = min(ROUND_DOCUMENTS, max(source.samples / weight for source, weight in sources))
        counts = [max(1, round(documents * weight)) for _, weight in sources]
        datasets = [_texts(spec, source, count) for (source, _), count in zip(sources, counts, strict=True)]
        mixed = datasets[0].mix(
            *datasets[1:],
            weights=[weight for _, weight in sources],
            stopping_condition=data.MixStoppingCondition.STOP_ON_LONGEST_DROP,
        )
        self._streams = mixed.streaming_split(spec.dp_size, equal=True)

    def of(self, dp_rank: int) -> Any:
        """Return the group's `DataIterator`."""
        return self._streams[dp_rank]


def block_documents(spec: LoaderSpec) -> int:
    """Return the documents of a block: a multiple of those of a batch."""
    return spec.documents_per_group * math.ceil(BLOCK_DOCUMENTS / spec.documents_per_group)


def _texts(spec: LoaderSpec, source: Source, documents: int) -> Any:
    """Return a dataset of so many documents, one task per epoch: Ray Data would cut a file's rows again."""
    data = library("ray.data")
    files = [source.file] * math.ceil(documents / source.samples)
    read = data.read_parquet if source.format == "parquet" else partial(data.read_json, lines=True)
    dataset = read(files, file_extensions=None, override_num_blocks=len(files)).select_columns([COLUMN])
    return dataset.limit(documents).repartition(target_num_rows_per_block=block_documents(spec))


def _round(spec: LoaderSpec, place: RankPlace, stream: Any, number: int) -> Iterator[PackedBatch]:
    """Return the batches of one round; raises `LoaderError` where there is none."""
    size = spec.documents_per_group
    seed = (number * SEEDS + spec.seed) * spec.dp_size + place.dp_rank
    found = False
    for table in stream.iter_batches(
        batch_size=size,
        batch_format="pyarrow",
        prefetch_batches=spec.prefetch,
        drop_last=True,
        local_shuffle_buffer_size=SHUFFLED_BLOCKS * block_documents(spec),
        local_shuffle_seed=seed,
    ):
        found = True
        yield packed([text.as_py() for text in table[COLUMN]], spec, place)
    if not found:
        raise LoaderError(
            f"Ray Data: the sources have fewer than {size} documents per group, in a round of all of them"
        )
