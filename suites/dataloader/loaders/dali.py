"""NVIDIA DALI: an `external_source` in whose processes each batch is read, tokenized and packed.

DALI has no reader of text and no mixture, so this follows its documents on data that it cannot read
("Parallel External Source"): a callable returns the sample of any index in any process. That needs random
access, hence ArrayRecord. Which documents a step takes is the formula of the disaggregated loader. The
pipeline has no device: packed text leaves nothing to decode on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.records import Unavailable
from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    RankPlace,
    library,
    loads_with,
    packed,
)
from suites.dataloader.disaggregation.plan import Mixture, of_step
from suites.dataloader.loaders.grain_map_mix import ArrayRecords
from suites.dataloader.loaders.peers import needs

FORMATS = ("array_record",)

NOT_INSTALLED = "NVIDIA DALI is not installed: pip install nvidia-dali-cuda120, of 0.4 GB, which no extra has"

apply = loads_with("dali")
unavailable = needs("nvidia.dali", otherwise=NOT_INSTALLED)


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches; closing the iterator ends the worker processes."""
    if not spec.workers:
        raise Unavailable(
            "DALI runs a source of Python in processes of its own: it needs at least one worker"
        )
    dali, types = library("nvidia.dali"), library("nvidia.dali.types")
    pipeline = dali.Pipeline(
        batch_size=1, num_threads=1, device_id=None, py_num_workers=spec.workers, py_start_method="spawn"
    )
    with pipeline:
        outputs = dali.fn.external_source(
            source=StepsOfRank(spec, place),
            num_outputs=4,
            parallel=True,
            batch=False,
            dtype=[types.UINT16, types.UINT16, types.INT64, types.UINT8],
            prefetch_queue_depth=spec.workers * spec.prefetch,
        )
        pipeline.set_outputs(*outputs)
    pipeline.build()
    try:
        while True:
            tokens, segments, counts, error = (np.array(one[0]) for one in pipeline.run())
            if len(error):
                raise LoaderError(error.tobytes().decode())
            yield PackedBatch(tokens, segments, int(counts[0]), int(counts[1]))
    finally:
        del pipeline  # ends its processes


class StepsOfRank:
    """A rank's batch of any step, as arrays: tokens, segments, documents and real tokens, an error's text."""

    def __init__(self, spec: LoaderSpec, place: RankPlace) -> None:
        self._spec, self._place = spec, place
        self._mixture = Mixture(spec)
        self._records: dict[int, ArrayRecords] = {}

    def __call__(self, info: Any) -> tuple[NDArray[Any], ...]:
        """Return the batch of step `info.iteration`; DALI itself would report an error by its traceback."""
        try:
            batch = self._batch(int(info.iteration))
        except (LoaderError, Unavailable) as error:
            nothing = np.zeros((1, 1), np.uint16)
            return nothing, nothing, np.zeros(2, np.int64), np.frombuffer(str(error).encode(), np.uint8)
        counts = np.array([batch.documents, batch.real_tokens], np.int64)
        return batch.tokens, batch.segments, counts, np.zeros(0, np.uint8)

    def _batch(self, step: int) -> PackedBatch:
        spec, place = self._spec, self._place
        begins, (counts,) = self._mixture.taken(step), self._mixture.counts(step, 1)
        sources, within = of_step(counts)
        order = np.random.default_rng((spec.seed, step)).permutation(len(sources))
        own = order[place.dp_rank :: spec.dp_size]
        numbers = zip(sources[own].tolist(), (begins[sources] + within)[own].tolist(), strict=True)
        return packed([self._document(source, number) for source, number in numbers], spec, place)

    def _document(self, source: int, number: int) -> bytes:
        given = self._spec.sources[source]
        if source not in self._records:
            reader = library("array_record.python.array_record_data_source").ArrayRecordDataSource
            self._records[source] = ArrayRecords(given, self._spec, reader)
        return self._records[source][number % given.samples]
