"""Loaders of webdataset, mosaicml-streaming, Ray Data and spdl: their documents, and what they leave."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from harness.records import Unavailable
from suites.dataloader.batch import (
    END,
    LoaderError,
    LoaderSpec,
    MixturePhase,
    PackedBatch,
    RankPlace,
    Source,
)
from suites.dataloader.corpus import CorpusSettings, write
from suites.dataloader.formats import BadSample, read
from suites.dataloader.loaders.peers import in_one_line, refuse_slow_storage
from suites.dataloader.loaders.ray_data import (
    BLOCK_DOCUMENTS,
    ROUND_DOCUMENTS,
    SHUFFLED_BLOCKS,
    round_documents,
)

LIBRARY = {
    "webdataset": "webdataset",
    "mosaicml_streaming": "streaming",
    "ray_data": "ray.data",
    "spdl": "spdl.pipeline",
    "dali": "nvidia.dali",
}
FORMATS = [
    pytest.param(("webdataset", "webdataset"), id="webdataset"),
    pytest.param(("mosaicml_streaming", "mds"), id="mosaicml_streaming"),
    pytest.param(("ray_data", "parquet"), id="ray_data-parquet", marks=pytest.mark.slow),
    pytest.param(("spdl", "jsonl"), id="spdl-jsonl"),
    pytest.param(("spdl", "parquet"), id="spdl-parquet"),
    pytest.param(("dali", "array_record"), id="dali"),
]
OTHER_FORMATS = [pytest.param(("ray_data", "jsonl"), id="ray_data-jsonl", marks=pytest.mark.slow)]
"""Which a loader reads by other code; all else is the same."""
TORCHRUN_ONLY = "mosaicml_streaming"  # its ranks are processes with torch.distributed
CONTEXT = 64


@dataclass
class Texts:
    """Documents for `corpus.write`: one list of texts per source."""

    texts: list[list[str]]
    digest: str = "texts"

    @property
    def names(self) -> list[str]:
        return [f"source{number}" for number in range(len(self.texts))]

    def sizes_B(self, source: int) -> list[int]:
        return [len(one.encode()) for one in self.texts[source]]

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
    """Return source, document and part by the tokens of each part of at most a row."""
    found = {}
    for source, ones in enumerate(texts):
        for number, text in enumerate(ones):
            tokens = np.array([*text.encode(), END], np.uint16)
            for first in range(0, len(tokens), CONTEXT):
                found[tokens[first : first + CONTEXT].tobytes()] = (source, number, first)
    assert len(found) == sum(-(-(len(text.encode()) + 1) // CONTEXT) for ones in texts for text in ones), (
        "the parts of the texts must differ"
    )
    return found


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray")
    from harness.instruments.distributed.ray_session import RaySession

    session = RaySession()
    yield session.address
    session.close()


@pytest.fixture(params=FORMATS)
def case(request: pytest.FixtureRequest) -> tuple[str, str, dict[str, object]]:
    """Return a loader, a format, and the loader's options."""
    name, format = request.param
    pytest.importorskip(LIBRARY[name])
    options: dict[str, object] = {}
    if name == "ray_data":
        options["ray_address"] = request.getfixturevalue("ray_address")
    return name, format, options


def spec_of(
    folder: Path, format: str, texts: list[list[str]], weights: tuple[float, ...], **fields: object
) -> LoaderSpec:
    sources = write(folder, format, Texts(texts), CorpusSettings(files_per_source=2)).sources
    given = {"context_length": CONTEXT, "documents_per_step": 8, "workers": 2}
    return LoaderSpec(sources=sources, mixture=(MixturePhase(0, weights),), **{**given, **fields})


def taken(name: str, spec: LoaderSpec, count: int) -> list[list[PackedBatch]]:
    """Return the first batches of each rank; all ranks take theirs at once."""
    loader = import_module(f"suites.dataloader.loaders.{name}")

    def of_rank(rank: int) -> list[PackedBatch]:
        with closing(loader.batches(spec, RankPlace.of(rank, spec.cp_size))) as running:
            found = [next(running) for _ in range(count)]
            everyone.wait(60)  # Ray Data's ranks share a stream
            return found

    ranks = spec.dp_size * spec.cp_size
    everyone = threading.Barrier(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def found_in(
    batches: list[PackedBatch], parts: dict[bytes, tuple[int, int, int]]
) -> Counter[tuple[int, int, int]]:
    """Return how often each part is in the batches; a part that no document has is a KeyError."""
    found: Counter[tuple[int, int, int]] = Counter()
    for batch in batches:
        for row, segments in zip(batch.tokens, batch.segments, strict=True):
            for segment in range(1, int(segments.max()) + 1):
                found[parts[row[segments == segment].astype(np.uint16).tobytes()]] += 1
    return found


@pytest.mark.parametrize("case", [*FORMATS, *OTHER_FORMATS], indirect=True)
def test_an_epoch_has_each_document_once(case: tuple[str, str, dict[str, object]], tmp_path: Path) -> None:
    name, format, options = case
    texts = texts_of([64])
    spec = spec_of(tmp_path, format, texts, (1.0,), dp_size=2, options=options)
    if name == TORCHRUN_ONLY:
        spec = replace(spec, dp_size=1)
    ranks = taken(name, spec, 64 // spec.documents_per_step)
    assert all(batch.documents == spec.documents_per_group for batches in ranks for batch in batches)
    parts = parts_of(texts)
    found = found_in([one for batches in ranks for one in batches], parts)
    assert found == Counter(parts.values())


def test_epochs_repeat_and_the_mixture_is_kept(
    case: tuple[str, str, dict[str, object]], tmp_path: Path
) -> None:
    name, format, options = case
    texts = texts_of([40, 5, 30])
    spec = spec_of(tmp_path, format, texts, (0.7, 0.3, 0.0), options=options)
    count = 15 if name == "ray_data" else 50  # a round of Ray Data has 57 documents
    (batches,) = taken(name, spec, count)
    found = found_in(batches, parts_of(texts))
    documents = Counter(source for source, _, first in found.elements() if not first)
    assert documents.total() == 8 * count
    assert documents[2] == 0
    blocks = SHUFFLED_BLOCKS * BLOCK_DOCUMENTS if name == "ray_data" else 0  # in its shuffle buffer
    assert abs(documents[0] - 5.6 * count) < 5 * (8 * count * 0.7 * 0.3) ** 0.5 + blocks
    assert all((1, number, 0) in found for number in range(5))


def test_ranks_of_a_group_have_slices_of_the_same_rows(
    case: tuple[str, str, dict[str, object]], tmp_path: Path
) -> None:
    name, format, options = case
    if name == TORCHRUN_ONLY:
        pytest.skip("its ranks are processes with torch.distributed")
    texts = texts_of([23, 5])  # 46 documents in a round of Ray Data: there are two
    spec = spec_of(tmp_path, format, texts, (0.5, 0.5), cp_size=2, options=options)
    first, second = taken(name, spec, 8)
    parts = parts_of(texts)
    for one, other in zip(first, second, strict=True):
        assert (one.documents, one.real_tokens) == (other.documents, other.real_tokens)
        rows = []
        for a, b in ((one.tokens, other.tokens), (one.segments, other.segments)):
            quarter = CONTEXT // 4
            rows.append(np.hstack([a[:, :quarter], b[:, :quarter], b[:, quarter:], a[:, quarter:]]))
        whole = PackedBatch(rows[0], rows[1], one.documents, one.real_tokens)
        assert sum(not part[2] for part in found_in([whole], parts).elements()) == one.documents
        assert int((whole.segments > 0).sum()) == one.real_tokens


def test_closing_leaves_nothing(case: tuple[str, str, dict[str, object]], tmp_path: Path) -> None:
    name, format, options = case
    spec = spec_of(tmp_path, format, texts_of([40, 40]), (0.5, 0.5), options=options)
    gc.collect()
    before = left_behind(name)
    loader = import_module(f"suites.dataloader.loaders.{name}")
    running = loader.batches(spec, RankPlace(0, 0))
    next(running)
    running.close()
    del running
    deadline = time.monotonic() + 20
    while (after := left_behind(name)) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert after - before == set()
    if name == "ray_data":
        import ray

        with pytest.raises(ValueError):
            ray.get_actor("ray_data-0")


def left_behind(name: str) -> set[str]:
    """Return this process' children, threads and shared memory; Ray keeps processes of its own."""
    if name == "ray_data":
        return set()
    children = {f"process {one.pid}" for one in psutil.Process().children(recursive=True)}
    threads = {f"thread {one.name}" for one in threading.enumerate()}
    own = re.compile(rf"\d{{6}}_|torch_{os.getpid()}_")  # of mosaicml-streaming, and of torch's workers
    return children | threads | {one.name for one in Path("/dev/shm").iterdir() if own.match(one.name)}


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("webdataset", "webdataset"),
        pytest.param("ray_data", "parquet", marks=pytest.mark.slow),
        ("spdl", "parquet"),
        ("dali", "array_record"),
    ],
)
def test_an_unreadable_file_is_named(
    name: str, format: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip(LIBRARY[name])
    options = {"ray_address": request.getfixturevalue("ray_address")} if name == "ray_data" else {}
    file = tmp_path / "damaged.file"
    file.write_bytes(b"neither tar nor Parquet" * 100)
    spec = LoaderSpec(
        sources=(Source("broken", (str(file),), format, 9, 900),),
        mixture=(MixturePhase(0, (1.0,)),),
        context_length=CONTEXT,
        documents_per_step=2,
        options=dict(options),
    )
    loader = import_module(f"suites.dataloader.loaders.{name}")
    with pytest.raises(LoaderError) as raised:
        next(loader.batches(spec, RankPlace(0, 0)))
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_truncated_shard_and_a_text_of_another_encoding_are_named(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    from suites.dataloader.loaders import webdataset

    spec = spec_of(tmp_path, "webdataset", [["a" * 2000, "b" * 3000], ["c"]], (1.0, 0.0), workers=1)
    for file in spec.sources[0].files:
        Path(file).write_bytes(Path(file).read_bytes()[:1500])
    with pytest.raises(LoaderError, match=r"source source0, file .*tar: .*unexpected end"):
        next(webdataset.batches(spec, RankPlace(0, 0)))
    latin = spec_of(tmp_path / "latin", "webdataset", [["x" * 99, "x" * 98]], (1.0,), workers=1)
    for file in latin.sources[0].files:
        Path(file).write_bytes(Path(file).read_bytes().replace(b"xxxx", b"\xe4xxx"))
    with pytest.raises(LoaderError, match=r"member 00000000: the text is not UTF-8"):
        next(webdataset.batches(latin, RankPlace(0, 0)))


def test_spdl_changes_weights_over_time_and_names_bad_documents(tmp_path: Path) -> None:
    pytest.importorskip("spdl.pipeline")
    from suites.dataloader.loaders import spdl

    texts = texts_of([30, 30])
    spec = spec_of(tmp_path, "jsonl", texts, (1.0, 0.0))
    spec = replace(spec, mixture=(MixturePhase(0, (1.0, 0.0)), MixturePhase(3, (0.0, 1.0))))
    with closing(spdl.batches(spec, RankPlace(0, 0))) as running:
        sources = [{part[0] for part in found_in([next(running)], parts_of(texts))} for _ in range(6)]
    assert sources == [{0}, {0}, {0}, {1}, {1}, {1}]
    file = Path(spec.sources[0].files[0])
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], json.dumps({"words": ""}) + "\n", *lines[2:]]))
    with pytest.raises(LoaderError, match=r"source source0, file .*, document 1: .*\"text\""):
        next(spdl.batches(spec, RankPlace(0, 0)))


@pytest.mark.parametrize(("name", "refused"), [("webdataset", "mds"), ("ray_data", "mds"), ("spdl", "mds")])
def test_what_a_library_cannot_do_is_unavailable(name: str, refused: str) -> None:
    pytest.importorskip(LIBRARY[name])
    loader = import_module(f"suites.dataloader.loaders.{name}")
    spec = LoaderSpec(
        sources=(Source("one", ("file",), refused, 9, 900),),
        mixture=(MixturePhase(0, (1.0,)),),
        context_length=CONTEXT,
        documents_per_step=2,
    )
    with pytest.raises(
        Unavailable, match=rf"reads {loader.FORMATS[0]}.*; source one has the format {refused}"
    ):
        next(loader.batches(spec, RankPlace(0, 0)))
    if name == "spdl":
        return
    readable = replace(
        spec,
        sources=(Source("one", ("file",), loader.FORMATS[0], 9, 900),),
        mixture=(MixturePhase(0, (1.0,)), MixturePhase(5, (1.0,))),
    )
    with pytest.raises(Unavailable, match="constant weights; this mixture has 2 phases"):
        next(loader.batches(readable, RankPlace(0, 0)))


def test_a_round_of_ray_data_has_each_source_by_its_weight() -> None:
    def source(samples: int) -> Source:
        return Source("s", ("f",), "parquet", samples, samples)

    small = [(source(100), 0.5), (source(4), 0.25), (source(7), 0.25)]
    assert round_documents(small) == [100, 50, 50]
    assert round_documents([(source(10**6), 0.5), (source(1000), 0.5)]) == [ROUND_DOCUMENTS // 2] * 2


def test_errors_are_one_line_and_slow_storage_is_refused() -> None:
    text = "Caught it\nTraceback\n  x\nsuites.dataloader.batch.LoaderError: source a, file b: c\n"
    assert str(in_one_line("library", RuntimeError(text))) == "source a, file b: c"
    assert str(in_one_line("library", ValueError("first\nlast\n"))) == "library: last"
    spec = LoaderSpec(sources=(), mixture=(), context_length=CONTEXT, documents_per_step=2, read_delay_s=0.1)
    with pytest.raises(Unavailable, match="library opens files itself"):
        refuse_slow_storage(spec, "library")


def test_dalis_source_has_each_document_once_in_any_order_of_steps(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    from suites.dataloader.loaders.dali import StepsOfRank

    texts = texts_of([40, 24])
    spec = spec_of(tmp_path, "array_record", texts, (40 / 64, 24 / 64), dp_size=2)
    steps = random.Random(0).sample(range(8), 8)
    groups = [StepsOfRank(spec, RankPlace(group, 0)) for group in range(2)]
    taken = [group(SimpleNamespace(iteration=step)) for step in steps for group in groups]
    batches = [PackedBatch(tokens, segments, *counts.tolist()) for tokens, segments, counts, _ in taken]
    assert not any(len(error) for *_, error in taken)
    assert {batch.documents for batch in batches} == {4}
    assert found_in(batches, parts_of(texts)) == Counter(parts_of(texts).values())


def test_a_file_that_dalis_source_cannot_read_is_an_errors_text(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    from suites.dataloader.loaders.dali import StepsOfRank

    spec = spec_of(tmp_path, "array_record", texts_of([8]), (1.0,))
    for file in spec.sources[0].files:
        Path(file).unlink()
    *_, error = StepsOfRank(spec, RankPlace(0, 0))(SimpleNamespace(iteration=0))
    assert error.tobytes().decode().startswith("source source0, file ")


def test_a_missing_dali_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from suites.dataloader.loaders import dali

    def none(_: str) -> None:
        raise ModuleNotFoundError("nvidia")

    monkeypatch.setattr(dali, "find_spec", none)
    spec = LoaderSpec(
        sources=(Source("one", ("file",), "array_record", 9, 900),),
        mixture=(MixturePhase(0, (1.0,)),),
        context_length=CONTEXT,
        documents_per_step=2,
    )
    with pytest.raises(Unavailable, match=r"^NVIDIA DALI is not installed: pip install nvidia-dali-cuda120"):
        next(dali.batches(spec, RankPlace(0, 0)))


def test_spdl_serves_all_groups_from_a_source_with_fewer_documents(tmp_path: Path) -> None:
    pytest.importorskip("spdl.pipeline")
    from suites.dataloader.loaders.spdl import _documents

    spec = spec_of(tmp_path, "jsonl", texts_of([2, 7]), (0.5, 0.5), dp_size=3)

    def numbers(source: int, group: int, count: int) -> list[int]:
        in_order = [
            one.tolist() for one in read(spec.sources[source], spec) if not isinstance(one, BadSample)
        ]
        got = islice(_documents(spec.sources[source], spec, RankPlace(group, 0)), count)
        return [in_order.index(one.tolist()) for one in got]

    assert [numbers(0, group, 4) for group in range(3)] == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert [numbers(1, group, 4) for group in range(3)] == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 6, 4]]
