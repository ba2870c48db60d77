"""Loaders of other libraries: each document once per epoch, bit for bit, and what they refuse and leave."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from harness.records import Unavailable
from suites.dataloader.batch import END, LoaderError, LoaderSpec, MixturePhase, PackedBatch, RankPlace, Source
from suites.dataloader.corpus import write
from suites.dataloader.loaders import peers
from suites.dataloader.loaders.ray_data import BLOCK_DOCUMENTS, SHUFFLED_BLOCKS

LIBRARIES = {
    "torchdata_nodes": ["torchdata"],
    "grain_iter_mix": ["grain"],
    "grain_map_mix": ["grain", "array_record"],
    "webdataset": ["webdataset"],
    "spdl": ["spdl.pipeline"],
    "ray_data": ["ray.data"],
}
EVERY_LOADER = [
    ("grain_iter_mix", "parquet"),
    ("baseline_loader", "jsonl"),
    ("torchdata_nodes", "parquet"),
    ("grain_map_mix", "array_record"),
    ("webdataset", "webdataset"),
    ("spdl", "jsonl"),
    ("ray_data", "parquet"),
]
CONTEXT = 64
FIRST = RankPlace(0, 0)


def cases(loaders: list[tuple[str, str]]) -> Any:
    return pytest.mark.parametrize(("name", "format"), loaders, ids=["-".join(one) for one in loaders])


@dataclass
class Texts:
    """Documents for `corpus.write`: one list of texts per source."""

    texts: list[list[str]]
    digest: str = "texts"

    @property
    def names(self) -> list[str]:
        return [f"source{number}" for number in range(len(self.texts))]

    @property
    def sizes_B(self) -> list[list[int]]:
        return [[len(one.encode()) for one in texts] for texts in self.texts]

    def document(self, source: int, number: int) -> bytes:
        return self.texts[source][number].encode()


def texts_of(counts: list[int]) -> list[list[str]]:
    """Return unlike texts; every fourth is longer than a row."""
    return [
        [
            f"{source}:{number}:ä€\n\\" + ("" if number % 4 else f" {source}.{number}" * 20)
            for number in range(count)
        ]
        for source, count in enumerate(counts)
    ]


def parts_of(texts: list[list[str]]) -> dict[bytes, tuple[int, int, int]]:
    """Return source, document and first token by the tokens of each part of at most a row."""
    parts = {}
    for source, ones in enumerate(texts):
        for number, text in enumerate(ones):
            tokens = np.array([*text.encode(), END], np.uint16)
            for first in range(0, len(tokens), CONTEXT):
                parts[tokens[first : first + CONTEXT].tobytes()] = (source, number, first)
    return parts


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray")
    from harness.instruments.distributed.ray_session import RaySession

    session = RaySession()
    yield session.address
    session.close()


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return a loader's options."""
    name = request.getfixturevalue("name")
    for library in LIBRARIES.get(name, []):
        pytest.importorskip(library)
    if name == "ray_data":
        return {"ray_address": request.getfixturevalue("ray_address")}
    return {}


def spec_of(folder: Path, format: str, texts: list[list[str]], weights: tuple[float, ...], **fields: Any):
    sources = write(folder, format, Texts(texts), row_group_rows=5).sources
    given = {"context_length": CONTEXT, "documents_per_step": 8, "workers": 2}
    return LoaderSpec(sources=sources, mixture=(MixturePhase(0, weights),), **{**given, **fields})


def in_process(name: str) -> int:
    """Return the number of workers where processes are not what is tested: Grain's take seconds to start."""
    return 0 if name.startswith("grain") else 2


def batches(name: str, spec: LoaderSpec, place: RankPlace = FIRST) -> Any:
    return import_module(f"suites.dataloader.loaders.{name}").batches(spec, place)


def taken(name: str, spec: LoaderSpec, count: int) -> list[list[PackedBatch]]:
    """Return the first batches of each rank, copied."""
    ranks = spec.dp_size * spec.cp_size
    at_once = ranks if name == "ray_data" else 1  # Ray Data's ranks share a stream
    everyone = threading.Barrier(at_once)

    def of_rank(rank: int) -> list[PackedBatch]:
        with closing(batches(name, spec, RankPlace.of(rank, spec.cp_size))) as running:
            found = [
                one._replace(tokens=np.array(one.tokens), segments=np.array(one.segments))
                for one in islice(running, count)
            ]
            everyone.wait(60)
            return found

    if at_once == 1:
        return [of_rank(rank) for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def found_in(batches: list[PackedBatch], parts: dict[bytes, tuple[int, int, int]]) -> Counter[Any]:
    """Return how often each part is in the batches; a part that no document has is a KeyError."""
    found = Counter[Any]()
    for batch in batches:
        for row, segments in zip(batch.tokens, batch.segments, strict=True):
            for segment in range(1, int(segments.max()) + 1):
                found[parts[row[segments == segment].astype(np.uint16).tobytes()]] += 1
    return found


def running(name: str) -> set[str]:
    """Return this process' children, threads and shared memory; Ray keeps processes of its own."""
    if name == "ray_data":
        return set()
    found = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may end meanwhile
            if one.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(one.cmdline()):
                found.add(f"process {one.pid}")
    threads = set() if name.startswith("grain") else {f"thread {one.name}" for one in threading.enumerate()}
    return found | threads | {str(one) for one in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


@pytest.fixture
def leaves_nothing(name: str, options: dict[str, object]) -> Iterator[None]:
    gc.collect()
    before = running(name)
    yield
    gc.collect()  # what an error's traceback kept
    deadline = time.monotonic() + 20
    while (after := running(name)) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert after - before == set()
    if name == "ray_data":
        import ray

        with pytest.raises(ValueError):
            ray.get_actor("ray_data-0")


@pytest.mark.usefixtures("leaves_nothing")
@cases([*EVERY_LOADER, ("ray_data", "jsonl")])
def test_an_epoch_has_each_document_once(name, format, options, tmp_path):
    texts = texts_of([64])
    few = 1 if name == "grain_map_mix" else 2  # its processes take seconds to start, and Grain divides all
    spec = spec_of(tmp_path, format, texts, (1.0,), dp_size=few, workers=few, options=options)
    ranks = taken(name, spec, 64 // spec.documents_per_step)
    assert all(batch.documents == spec.documents_per_group for batches in ranks for batch in batches)
    parts = parts_of(texts)
    assert found_in([one for batches in ranks for one in batches], parts) == Counter(parts.values())


@cases(EVERY_LOADER)
def test_epochs_repeat_and_the_mixture_is_kept(name, format, options, tmp_path):
    texts = texts_of([40, 5, 30])
    workers = in_process(name)
    spec = spec_of(tmp_path, format, texts, (0.7, 0.3, 0.0), options=options, workers=workers)
    count = 15 if name == "ray_data" else 50  # a round of Ray Data has 57 documents
    (batches,) = taken(name, spec, count)
    found = found_in(batches, parts_of(texts))
    drawn = Counter(source for source, _, first in found.elements() if not first)
    assert drawn.total() == 8 * count
    assert drawn[2] == 0
    blocks = SHUFFLED_BLOCKS * BLOCK_DOCUMENTS if name == "ray_data" else 0  # in its shuffle buffer
    assert abs(drawn[0] - 5.6 * count) < 5 * (8 * count * 0.7 * 0.3) ** 0.5 + blocks
    assert all((1, number, 0) in found for number in range(5))
    if name == "torchdata_nodes":  # each document of an epoch before any twice
        for source, size in ((0, 40), (1, 5)):
            times = [found[source, number, 0] for number in range(size)]
            assert max(times) - min(times) <= 1


@pytest.mark.usefixtures("leaves_nothing")
@cases(EVERY_LOADER)
def test_a_file_that_is_missing_or_damaged_is_named_in_one_line(name, format, options, tmp_path):
    workers = in_process(name)
    spec = spec_of(tmp_path, format, texts_of([16, 16]), (0.5, 0.5), options=options, workers=workers)
    file = Path(spec.sources[1].file)
    file.unlink()
    if name in ("webdataset", "spdl", "ray_data"):
        file.write_bytes(b"neither tar nor Parquet" * 100)
    with pytest.raises(LoaderError) as raised:
        taken(name, spec, 12)
    assert str(raised.value).startswith("source source1") or name == "ray_data"
    assert str(file) in str(raised.value) or (name, format) == ("grain_iter_mix", "parquet")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["baseline_loader", "synchronous", "spdl"])
def test_weights_may_change_over_steps(name: str, options: dict[str, object], tmp_path: Path) -> None:
    texts = texts_of([30, 30])
    spec = spec_of(tmp_path, "jsonl", texts, (1.0, 0.0), options=options)
    spec = replace(spec, mixture=(MixturePhase(0, (1.0, 0.0)), MixturePhase(3, (0.0, 1.0))))
    (batches,) = taken(name, spec, 6)
    drawn = [{part[0] for part in found_in([batch], parts_of(texts))} for batch in batches]
    assert drawn == [{0}, {0}, {0}, {1}, {1}, {1}]


def test_the_spooling_loader_has_the_same_batches_as_the_baseline_and_names_a_corrupt_row_group(tmp_path):
    """They differ in their reader alone; the texts have bytes of several widths."""
    parquet = pytest.importorskip("pyarrow.parquet")
    spec = spec_of(tmp_path, "parquet", texts_of([16, 16]), (0.5, 0.5), dp_size=2)
    expected, ours = (taken(name, spec, 12) for name in ("baseline_loader", "torch_spooled_parquet"))
    for group in range(2):
        for one, other in zip(expected[group], ours[group], strict=True):
            assert (one.tokens == other.tokens).all()
            assert (one.segments == other.segments).all()
    file = spec.sources[0].file
    column = parquet.ParquetFile(file).metadata.row_group(0).column(0)
    with open(file, "r+b") as opened:
        opened.seek(column.data_page_offset)
        opened.write(b"\xff" * 20)
    with pytest.raises(LoaderError, match=f"^source source0, file {file}: row group 0 is corrupt"):
        taken("torch_spooled_parquet", spec, 20)


BARE = LoaderSpec(
    sources=(Source("one", "file", "jsonl", 9, 900),),
    mixture=(MixturePhase(0, (1.0,)),),
    context_length=CONTEXT,
    documents_per_step=2,
)
CHANGING = {"mixture": (MixturePhase(0, (1.0,)), MixturePhase(5, (1.0,)))}
CONSTANT = "constant weights; this mixture has 2 phases"


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        *((one, CHANGING, CONSTANT) for one in sorted({*LIBRARIES} - {"spdl"})),
        ("webdataset", {"workers": 0}, "it needs workers of its own"),
        ("spdl", {"workers": 0}, "it needs at least one worker"),
    ],
)
def test_what_a_library_cannot_do_is_unavailable(name, fields, said, options, monkeypatch):
    module = import_module(f"suites.dataloader.loaders.{name}")
    with pytest.raises(Unavailable, match=said):
        next(batches(name, replace(BARE, **fields)))
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert "is not installed: " in module.unavailable(None)


def test_dalis_source_has_each_document_once_in_any_order_of_steps_or_an_errors_text(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    from suites.dataloader.loaders.dali import StepsOfRank

    texts = texts_of([40, 24])
    spec = spec_of(tmp_path, "array_record", texts, (40 / 64, 24 / 64), dp_size=2)
    steps = random.Random(0).sample(range(8), 8)
    groups = [StepsOfRank(spec, RankPlace(group, 0)) for group in range(2)]
    given = [group(SimpleNamespace(iteration=step)) for step in steps for group in groups]
    batches = [PackedBatch(tokens, segments, *counts.tolist()) for tokens, segments, counts, _ in given]
    assert not any(len(error) for *_, error in given)
    assert {batch.documents for batch in batches} == {4}
    assert found_in(batches, parts_of(texts)) == Counter(parts_of(texts).values())
    for source in spec.sources:
        Path(source.file).unlink()
    *_, error = StepsOfRank(spec, FIRST)(SimpleNamespace(iteration=0))
    assert error.tobytes().decode().startswith("source source0, file ")
