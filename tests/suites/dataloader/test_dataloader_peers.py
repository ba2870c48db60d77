"""The baseline, torchdata.nodes and Grain: each document once per epoch, bit for bit, and no process left."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
    context_slice,
)
from suites.dataloader.loaders.peers import constant_mixture, from_worker

SAMPLES = 16
SOURCES = 2
CONTEXT = 64
NEEDS = {"torchdata_nodes": ["torchdata"], "grain_iter_mix": ["grain"], "grain_map_mix": ["grain"]}
PYARROW, ARRAY_RECORD = "pyarrow.parquet", "array_record.python.array_record_module"
CASES = [
    ("baseline_loader", "parquet"),
    ("baseline_loader", "jsonl"),
    ("torch_spooled_parquet", "parquet"),
    ("synchronous", "parquet"),
    ("synchronous", "jsonl"),
    ("torchdata_nodes", "parquet"),
    ("torchdata_nodes", "jsonl"),
    ("grain_iter_mix", "array_record"),
    ("grain_iter_mix", "parquet"),
    ("grain_map_mix", "array_record"),
]
OWN_MIXING = ("torchdata_nodes", "grain_iter_mix", "grain_map_mix")


class Memory(NamedTuple):
    """What psutil reports."""

    available: int


def text_of(source: int, number: int) -> str:
    """Return a text of at most a row, with characters of several bytes, that begins with where it is from."""
    return f"{source}/{number}:" + "aé\n字"[: 1 + number % 4] * (1 + number % 3)


def write_jsonl(file: Path, texts: Iterable[str]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_parquet(file: Path, texts: Iterable[str]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip(PYARROW)
    parquet.write_table(arrow.table({"text": list(texts)}), file, row_group_size=5)


def write_array_record(file: Path, texts: Iterable[str]) -> None:
    writer = pytest.importorskip(ARRAY_RECORD).ArrayRecordWriter(str(file), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()


WRITE: dict[str, Callable[[Path, Iterable[str]], None]] = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "array_record": write_array_record,
}


def corpus(folder: Path, format: str, samples: int = SAMPLES, sources: int = SOURCES) -> tuple[Source, ...]:
    """Write sources of two files each."""
    made = []
    for source in range(sources):
        texts = [text_of(source, number) for number in range(samples)]
        files = [folder / f"{source}-{part}.{format}" for part in range(2)]
        for file, part in zip(files, (texts[: samples // 3], texts[samples // 3 :]), strict=True):
            WRITE[format](file, part)
        size_B = sum(len(text.encode()) for text in texts)
        made.append(Source(f"source {source}", tuple(map(str, files)), format, samples, size_B))
    return tuple(made)


def specification(sources: tuple[Source, ...], weights: tuple[float, ...] = (), **more: Any) -> LoaderSpec:
    given: dict[str, Any] = {
        "sources": sources,
        "mixture": (MixturePhase(0, weights or (1 / len(sources),) * len(sources)),),
        "context_length": CONTEXT,
        "documents_per_step": 4,
        "workers": 2,
        "options": {"read_threads": 1, "read_buffer": 2},
    }
    return LoaderSpec(**(given | more))


def in_process(loader: str) -> int:
    """Return the number of workers where processes are not what is tested: Grain's take seconds to start."""
    return 0 if loader.startswith("grain") else 2


def batches(loader: str, spec: LoaderSpec, place: RankPlace) -> Any:
    for needed in NEEDS.get(loader, []):
        pytest.importorskip(needed)
    return import_module(f"suites.dataloader.loaders.{loader}").batches(spec, place)


def taken(loader: str, spec: LoaderSpec, place: RankPlace, count: int) -> list[PackedBatch]:
    """Return the first batches, copied, of a loader that is closed afterwards."""
    with closing(batches(loader, spec, place)) as running:
        return [
            one._replace(tokens=np.array(one.tokens), segments=np.array(one.segments))
            for one in islice(running, count)
        ]


def documents_of(batch: PackedBatch) -> Iterator[str]:
    """Return the texts of a batch's full rows, none of which is split."""
    for tokens, segments in zip(batch.tokens, batch.segments, strict=True):
        for segment in range(1, int(segments.max()) + 1):
            document = tokens[segments == segment]
            assert document[-1] == END
            yield document[:-1].astype(np.uint8).tobytes().decode()


def identified(text: str) -> tuple[int, int]:
    """Return source and number of a text, once it is bit for bit what was written."""
    source, _, number = text.partition(":")[0].partition("/")
    assert text == text_of(int(source), int(number))
    return int(source), int(number)


def children() -> set[psutil.Process]:
    """Return child processes that run, but the one that multiprocessing keeps for its shared memory."""
    found = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may end meanwhile
            if one.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(one.cmdline()):
                found.add(one)
    return found


@pytest.mark.parametrize(("loader", "format"), CASES)
def test_each_document_is_loaded_once_per_epoch_bit_for_bit_and_no_process_is_left(loader, format, tmp_path):
    """Compare each group's documents of a source with its share, counted by hand."""
    spec = specification(corpus(tmp_path, format), dp_size=2)
    before, seen = children(), defaultdict(list)
    for group in range(spec.dp_size):
        for batch in taken(loader, spec, RankPlace(group, 0), 8):
            texts = list(documents_of(batch))
            assert len(texts) == batch.documents == spec.documents_per_group == 2
            assert batch.real_tokens == sum(len(text.encode()) + 1 for text in texts)
            for source, number in map(identified, texts):
                seen[group, source].append(number)
    for source in range(SOURCES):
        assert not set(seen[0, source]) & set(seen[1, source])
    if loader.startswith("grain"):  # its mixing is exact: the epoch ends here
        assert Counter(number for numbers in seen.values() for number in numbers) == Counter(
            dict.fromkeys(range(SAMPLES), SOURCES)
        )
    assert children() == before


@pytest.mark.parametrize(
    ("loader", "workers", "format"),
    [
        ("baseline_loader", 2, "parquet"),
        ("baseline_loader", 2, "jsonl"),
        ("torch_spooled_parquet", 2, "parquet"),
        ("synchronous", 1, "parquet"),
        ("synchronous", 1, "jsonl"),
    ],
)
def test_every_worker_reads_its_own_share_in_order(loader, workers, format, tmp_path):
    """Over more than an epoch: a worker's documents of a source are every fourth, epoch after epoch."""
    spec = specification(corpus(tmp_path, format), dp_size=2)
    shares, whole = spec.dp_size * workers, Counter()
    for group in range(spec.dp_size):
        of_worker = defaultdict(Counter)
        for step, batch in enumerate(taken(loader, spec, RankPlace(group, 0), 40)):
            for source, number in map(identified, documents_of(batch)):
                of_worker[step % workers, source][number] += 1
        for (worker, source), numbers in of_worker.items():
            share = group * workers + worker
            expected = Counter((share + shares * one) % SAMPLES for one in range(numbers.total()))
            assert numbers == expected
            assert numbers.total() >= SAMPLES // shares
            whole.update((source, number) for number in numbers)
    assert whole == Counter({(source, number): 1 for source in range(SOURCES) for number in range(SAMPLES)})


def test_torchdata_returns_each_document_of_an_epoch_before_any_twice(tmp_path):
    spec = specification(corpus(tmp_path, "jsonl"))
    taken_of = taken("torchdata_nodes", spec, RankPlace(0, 0), 30)
    seen = [identified(text) for batch in taken_of for text in documents_of(batch)]
    for source in range(SOURCES):
        numbers = Counter(number for of, number in seen if of == source)
        assert max(numbers.values()) - min(numbers[number] for number in range(SAMPLES)) <= 1


@pytest.mark.parametrize(("loader", "format"), [case for case in CASES if case[1] != "parquet"])
def test_documents_follow_the_weights(loader, format, tmp_path):
    """Within four standard deviations of the binomial distribution."""
    weight, steps = 0.25, 20
    more = {"documents_per_step": 20, "workers": in_process(loader)}
    spec = specification(corpus(tmp_path, format), (weight, 1 - weight), **more)
    taken_of = taken(loader, spec, RankPlace(0, 0), steps)
    seen = [identified(text)[0] for batch in taken_of for text in documents_of(batch)]
    count = steps * spec.documents_per_step
    assert len(seen) == count
    assert abs(seen.count(0) - weight * count) <= 4 * (count * weight * (1 - weight)) ** 0.5


@pytest.mark.parametrize("loader", ["baseline_loader", "synchronous"])
def test_weights_may_change_over_steps(loader, tmp_path):
    phases = (MixturePhase(0, (1.0, 0.0)), MixturePhase(3, (0.0, 1.0)))
    spec = specification(corpus(tmp_path, "jsonl"), mixture=phases)
    taken_of = taken(loader, spec, RankPlace(0, 0), 6)
    drawn = [{identified(text)[0] for text in documents_of(batch)} for batch in taken_of]
    assert drawn == [{0}, {0}, {0}, {1}, {1}, {1}]


@pytest.mark.parametrize("loader", ["baseline_loader", "torchdata_nodes", "grain_map_mix"])
def test_two_context_parallel_ranks_have_the_full_rows(loader, tmp_path):
    sources = corpus(tmp_path, "array_record" if loader.startswith("grain") else "jsonl")
    (full,) = taken(loader, specification(sources, workers=in_process(loader)), RankPlace(0, 0), 1)
    spec = specification(sources, cp_size=2, workers=in_process(loader))
    parts = [taken(loader, spec, RankPlace(0, rank), 1)[0] for rank in range(2)]
    for name in ("tokens", "segments"):
        left, right = (getattr(part, name) for part in parts)
        quarter = CONTEXT // 4
        rows = np.concatenate([left[:, :quarter], right, left[:, quarter:]], axis=1)
        assert np.array_equal(rows, getattr(full, name))
        assert np.array_equal(context_slice(rows, 2, 1), right)
    assert parts[0].real_tokens == parts[1].real_tokens == full.real_tokens


def test_a_document_longer_than_a_row_is_divided(tmp_path):
    file, text = tmp_path / "long.jsonl", "0123456789" * 20
    write_jsonl(file, [text])
    spec = specification((Source("long", (str(file),), "jsonl", 1, len(text)),), documents_per_step=1)
    (batch,) = taken("synchronous", spec, RankPlace(0, 0), 1)
    real = batch.tokens[batch.segments > 0]
    assert real[real != END].astype(np.uint8).tobytes().decode() == text
    assert (batch.documents, batch.real_tokens) == (1, len(text) + 1)


@pytest.mark.parametrize(("loader", "format"), CASES)
def test_a_missing_file_is_named_in_one_line_and_no_process_is_left(loader, format, tmp_path):
    sources, before = corpus(tmp_path, format), children()
    os.remove(sources[1].files[0])
    with pytest.raises(LoaderError, match=r"^source source 1[,:]") as raised:
        taken(loader, specification(sources, workers=in_process(loader)), RankPlace(0, 0), 12)
    assert "\n" not in str(raised.value)
    assert children() == before


@pytest.mark.parametrize("line", ["{", '{"text": null}', '{"other": ""}', "[1]"])
def test_a_bad_line_is_named(line, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(line + "\n")
    spec = specification((Source("bad", (str(file),), "jsonl", 1, 1),))
    with pytest.raises(LoaderError, match=rf"^source bad, file {file}: "):
        taken("synchronous", spec, RankPlace(0, 0), 1)


def test_an_empty_source_is_refused(tmp_path):
    file = tmp_path / "empty.jsonl"
    file.touch()
    spec = specification((Source("empty", (str(file),), "jsonl", 1, 1),))
    with pytest.raises(LoaderError, match="source empty is empty: its 1 files have no document"):
        taken("synchronous", spec, RankPlace(0, 0), 1)


@pytest.mark.parametrize("loader", OWN_MIXING)
def test_a_library_that_mixes_by_constant_weights_refuses_others(loader, tmp_path):
    sources = corpus(tmp_path, "array_record" if loader.startswith("grain") else "jsonl")
    phases = (MixturePhase(0, (1.0, 0.0)), MixturePhase(3, (0.0, 1.0)))
    with pytest.raises(Unavailable, match="2 phases, allowed is 1"):
        taken(loader, specification(sources, mixture=phases), RankPlace(0, 0), 1)


@pytest.mark.parametrize(
    ("loader", "format", "allowed"),
    [
        ("baseline_loader", "webdataset", "parquet or jsonl"),
        ("torch_spooled_parquet", "jsonl", "parquet"),
        ("torchdata_nodes", "webdataset", "parquet or jsonl"),
        ("grain_iter_mix", "jsonl", "array_record or parquet"),
        ("grain_map_mix", "parquet", "array_record"),
    ],
)
def test_other_formats_are_refused_with_those_that_are_read(loader, format, allowed):
    source = Source("one", ("file",), format, 1, 1)
    with pytest.raises(Unavailable, match=f"reads {allowed}; source one has the format {format}"):
        taken(loader, specification((source,)), RankPlace(0, 0), 1)


def test_the_spooling_loader_has_the_same_batches_as_the_baseline(tmp_path):
    """They differ in their reader alone; the texts have bytes of several widths."""
    spec = specification(corpus(tmp_path, "parquet"), dp_size=2)
    for group in range(2):
        pairs = zip(
            taken("baseline_loader", spec, RankPlace(group, 0), 12),
            taken("torch_spooled_parquet", spec, RankPlace(group, 0), 12),
            strict=True,
        )
        for one, other in pairs:
            assert (one.tokens == other.tokens).all()
            assert (one.segments == other.segments).all()


def test_a_corrupt_row_group_is_named_by_the_spooling_loader(tmp_path):
    sources = corpus(tmp_path, "parquet")
    parquet = pytest.importorskip(PYARROW)
    file = sources[0].files[1]
    column = parquet.ParquetFile(file).metadata.row_group(0).column(0)
    with open(file, "r+b") as opened:
        opened.seek(column.data_page_offset)
        opened.write(b"\xff" * 20)
    with pytest.raises(LoaderError, match=f"^source source 0, file {file}: row group 0 is corrupt"):
        taken("torch_spooled_parquet", specification(sources), RankPlace(0, 0), 20)


def test_grain_refuses_what_does_not_fit_with_threads_and_memory(tmp_path, monkeypatch):
    """Per worker, from ArrayRecord: the process, and each source's 16 threads and 500 documents."""
    pytest.importorskip("grain")
    from suites.dataloader.loaders import grain_iter_mix as module

    sources = tuple(Source(str(one), ("file",), "array_record", 10, 100_000) for one in range(40))
    spec = specification(sources, dp_size=2, workers=8, options={})
    needed_B = 16 * (module.PROCESS_B + 40 * (16 * module.THREAD_B + 500 * 10_000))
    for left_B, refused in ((needed_B, False), (needed_B - 1, True)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda left_B=left_B: Memory(left_B))
        if not refused:
            module.refuse_unfit(spec)
            continue
        expected = "^40 sources in each of 16 workers, with 10,240 threads, take about 7 GB at 11.3 MB per"
        with pytest.raises(Unavailable, match=expected):
            module.refuse_unfit(spec)


def test_grain_counts_one_decoded_row_group_per_parquet_file(tmp_path):
    pytest.importorskip("grain")
    pytest.importorskip(PYARROW)
    from suites.dataloader.loaders.grain_iter_mix import row_group_B

    whole, small = tmp_path / "whole.parquet", tmp_path / "small.parquet"
    texts = [f"{number} " + "x" * 100_000 for number in range(10)]  # no two alike
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip(PYARROW)
    for file, rows in ((whole, 10), (small, 2)):
        parquet.write_table(arrow.table({"text": texts}), file, row_group_size=rows)
    assert row_group_B(str(whole)) == pytest.approx(1_000_000, rel=0.02)
    assert row_group_B(str(small)) == pytest.approx(200_000, rel=0.02)
    assert row_group_B(str(tmp_path / "missing")) == 0


def test_a_source_without_weight_is_left_out():
    sources = tuple(Source(name, ("file",), "jsonl", 1, 1) for name in "ab")
    assert constant_mixture(specification(sources, (0.0, 1.0)), "it") == [(sources[1], 1.0)]


def test_an_error_of_a_worker_is_its_last_line():
    text = "Caught LoaderError in worker.\nTraceback\nsuites.dataloader.batch.LoaderError: source a: b\n"
    for given in (text, "source a: b"):
        assert str(from_worker(LoaderError(given))) == "source a: b"
