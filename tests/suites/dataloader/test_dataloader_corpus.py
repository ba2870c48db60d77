"""Corpora, readers and emulated storage of the dataloader suite, compared with the original texts."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records import Unavailable
from suites.dataloader import batch
from suites.dataloader import corpus as corpus_module
from suites.dataloader.batch import LoaderError, LoaderSpec, MixturePhase, Source
from suites.dataloader.corpus import Corpus, FileDocuments, sources_of_text, write
from suites.dataloader.formats import BadSample, read_text
from suites.dataloader.installed_files import LARGEST_DOCUMENT_B, Root, generated

TEXTS = ["a", "two\nlines\r\n", 'a "quoted" \\ text', "é 漢字 \u2028 \U0001f600", "\0 \x1f", "x" * 70_000]
NEEDS = {"parquet": "pyarrow", "array_record": "array_record.python.array_record_module"}
FORMATS = ["jsonl", "parquet", "array_record"]

SPEC = LoaderSpec(sources=(), mixture=(MixturePhase(0, ()),), context_length=64, documents_per_step=1)
SLOW = replace(SPEC, read_B_per_s=1e6)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The corpora and the packages of the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus_module, "default_roots", lambda: (Root(str(tmp_path / "packages")),))


def packages(folder: Path) -> Path:
    """Two packages with the texts, many short ones, and files that are no documents."""
    for package, count in (("first", 30), ("second_package", 9)):
        (folder / package / "below").mkdir(parents=True)
        for number in range(count):
            text = TEXTS[number % len(TEXTS)] + f"{package} {number}"
            (folder / package / "below" / f"{number}.py").write_bytes(text.encode())
    for number in range(4):
        with gzip.open(folder / "second_package" / f"{number}.txt.gz", "wb") as packed:
            packed.write(f"packed {number}".encode())
    (folder / "first" / "empty.py").write_text("")
    (folder / "first" / "latin.py").write_bytes(b"caf\xe9")
    (folder / "first" / "large.py").write_bytes(b"y" * (LARGEST_DOCUMENT_B + 1))
    (folder / "first" / "picture.bin").write_bytes(b"\0")
    (folder / "first" / "link.py").symlink_to(folder / "first" / "below" / "0.py")
    return folder


def described(tmp_path: Path, count: int = 3) -> FileDocuments:
    folder = tmp_path / "packages"
    if not folder.exists():
        packages(folder)
    return sources_of_text(count)


def corpus_in(tmp_path: Path, format: str, row_group_rows: int = 0) -> Corpus:
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    return write(tmp_path / "corpora", format, described(tmp_path), row_group_rows)


def texts_of(source: Source, first: int = 0, spec: LoaderSpec = SPEC, spool: bool = False) -> list[Any]:
    documents = list(read_text(source, spec, first, spool))
    assert not [one for one in documents if isinstance(one, BadSample)]
    return documents


def source_of(path: Path, format: str, samples: int) -> Source:
    return Source("the source", str(path), format, samples, 0)


def numbered(path: Path, format: str, samples: int) -> list[bytes | BadSample]:
    """Each document's text, or what was wrong with it."""
    return list(read_text(source_of(path, format, samples), SPEC))


def test_sources_are_the_pairs_of_package_and_kind_in_the_order_of_their_sizes(tmp_path):
    documents = described(tmp_path)
    assert documents.names == ("first/py", "second_package/py", "second_package/text")
    assert [len(one) for one in documents.files] == [30, 9, 4]
    assert documents.document(2, 1) == b"packed 1"
    with pytest.raises(Unavailable, match=r"^3 of 306 sources of text found in .*packages"):
        described(tmp_path, count=306)


def test_the_digest_depends_on_contents_names_and_sizes_and_not_on_times(tmp_path):
    file = packages(tmp_path / "packages") / "first" / "below" / "0.py"
    first = described(tmp_path).digest
    os.utime(file, (1, 1))
    assert described(tmp_path).digest == first
    original = file.read_bytes()
    file.write_bytes(b"b" + original[1:])
    assert described(tmp_path).digest != first
    file.write_bytes(original)
    assert described(tmp_path).digest == first
    (tmp_path / "packages" / "first").rename(tmp_path / "packages" / "firsu")
    assert described(tmp_path).digest != first


def test_generated_text_is_the_same_for_the_same_seed_and_heavy_tailed():
    one, again, other = generated(5, 2000, seed=1), generated(5, 2000, seed=1), generated(5, 2000, seed=2)
    assert one.digest == again.digest != other.digest
    sizes_B = [size for source in range(5) for size in one.sizes_B[source]]
    assert len(sizes_B) == 2000
    assert 1500 < np.median(sizes_B) < 2700
    assert np.percentile(sizes_B, 99) > 15 * np.median(sizes_B)
    for source in range(5):
        assert len(one.document(source, 0)) == one.sizes_B[source][0]
        assert one.document(source, 0) == again.document(source, 0)


@pytest.mark.parametrize(("format", "row_group_rows"), [*((one, 0) for one in FORMATS), ("parquet", 4)])
def test_each_format_gives_the_original_texts_bit_for_bit_from_any_document_on(
    tmp_path, format, row_group_rows
):
    corpus = corpus_in(tmp_path, format, row_group_rows)
    in_lines = corpus_in(tmp_path, "jsonl")
    documents = described(tmp_path)
    assert corpus.digest == in_lines.digest == documents.digest
    for number, source in enumerate(corpus.sources):
        original = [documents.document(number, one) for one in range(source.samples)]
        got = texts_of(source)
        assert got != original  # they are shuffled
        assert sorted(got) == sorted(original)
        assert got == texts_of(in_lines.sources[number])
        assert (source.samples, source.text_B) == (len(original), sum(len(one) for one in original))
        for first in (*range(source.samples), source.samples, 0):
            for spool in sorted({False, format == "parquet"}):
                assert texts_of(source, first, spool=spool) == got[first:]
    if format == "parquet":
        written = pytest.importorskip("pyarrow.parquet").ParquetFile(corpus.sources[0].file).metadata
        assert written.num_row_groups == (8 if row_group_rows else 1)


def test_spooled_documents_hold_no_memory_of_arrow_and_leave_no_file(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    source = corpus_in(tmp_path, "parquet").sources[0]
    before_B = arrow.total_allocated_bytes()
    reader = read_text(source, SPEC, spool=True)
    next(reader)
    assert arrow.total_allocated_bytes() == before_B
    assert list((tmp_path / "spool").iterdir()) == []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(
        LoaderError, match=r"^source first/py, file .*: row group 0 cannot be kept in .*spool"
    ):
        next(read_text(source, SPEC, spool=True))


def test_lines_are_found_by_their_offsets_in_any_order(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": f"{one} " + "z" * (one % 50)}) + "\n" for one in range(2000)))
    source = source_of(path, "jsonl", 2000)
    for first in (1999, 0, 256, 255, 1500, 257, 700):
        assert next(read_text(source, SPEC, first)).split()[0] == str(first).encode()


def test_two_writers_at_once_give_one_corpus_and_one_that_fails_none(tmp_path, monkeypatch):
    documents = described(tmp_path)
    publish: Callable[[Path, Path], None] = corpus_module._publish

    def second(part: Path, target: Path) -> None:
        monkeypatch.setattr(corpus_module, "_publish", publish)
        write(tmp_path / "corpora", "jsonl", documents)
        publish(part, target)

    monkeypatch.setattr(corpus_module, "_publish", second)
    assert sum(one.samples for one in write(tmp_path / "corpora", "jsonl", documents).sources) == 43
    assert len(list((tmp_path / "corpora").iterdir())) == 1
    Path(documents.files[1][0]).write_text("of another size")
    with pytest.raises(LoaderError, match=r"source second_package/py, file .*: it has changed since"):
        write(tmp_path / "failed", "jsonl", documents)
    assert list((tmp_path / "failed").iterdir()) == []


def test_a_damaged_corpus_is_named(tmp_path):
    file = Path(corpus_in(tmp_path, "jsonl").sources[1].file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(LoaderError, match=r"source second_package/py, file .*: it has \d+ bytes, \d+ were"):
        corpus_in(tmp_path, "jsonl")
    (file.parent / "index.json").write_text("{")
    with pytest.raises(LoaderError, match=r"corpus .*: it is damaged"):
        corpus_in(tmp_path, "jsonl")


def test_bad_lines_are_counted_and_the_others_keep_their_numbers(tmp_path):
    path = tmp_path / "bad.jsonl"
    not_an_object = 'the line is not an object with a string "text"'
    lines = [
        (b'{"text": "good"}', ""),
        (b'{"text": 3}', not_an_object),
        (b"[1]", not_an_object),
        (b"", "the line is not JSON"),
        (b"[" * 200_000, "the line is not JSON"),
        (b'{"text": "caf\xe9"}', "the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "the text is not UTF-8"),
        (b'{"text": "also"}', ""),
        (b"{", "ends without a newline: the file is truncated"),
    ]
    path.write_bytes(b"\n".join(line for line, _ in lines))
    got = numbered(path, "jsonl", len(lines))
    assert (got[0], got[7]) == (b"good", b"also")
    for number, (_, reason) in enumerate(lines):
        bad = got[number]
        assert isinstance(bad, BadSample) == bool(reason)
        if isinstance(bad, BadSample):
            assert (bad.source, bad.sample, bad.file) == ("the source", number, str(path))
            assert reason in bad.reason
            assert "\n" not in bad.reason


@pytest.mark.parametrize("format", FORMATS[1:])
def test_text_that_is_not_utf8_is_a_bad_sample(tmp_path, format):
    path = tmp_path / "file"
    write_raw(format, path, [b"good", b"caf\xe9", b"also"])
    reason = "the text is not UTF-8: unexpected end of data at byte 3"
    assert numbered(path, format, 3) == [b"good", BadSample("the source", 1, str(path), reason), b"also"]


def test_a_corrupt_row_group_is_counted_and_the_next_is_read(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "file.parquet"
    texts = [f"{number} " + "abc" * number for number in range(30)]
    parquet.write_table(arrow.table({"text": texts}), path, row_group_size=10)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    got = numbered(path, "parquet", 30)
    assert [one for one in got if not isinstance(one, BadSample)] == [
        one.encode() for one in (*texts[:10], *texts[20:])
    ]
    bad = [one for one in got if isinstance(one, BadSample)]
    assert [one.sample for one in bad] == list(range(10, 20))
    assert bad[0].reason.startswith("row group 1 is corrupt after 0 rows: ")
    assert list(read_text(source_of(path, "parquet", 30), SPEC, spool=True)) == got


def test_a_corrupt_record_is_counted_and_the_next_is_read(tmp_path):
    pytest.importorskip(NEEDS["array_record"])
    path = tmp_path / "file"
    texts = [f"{number} ".encode() + os.urandom(3000).hex().encode() for number in range(100)]
    write_raw("array_record", path, texts)
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    got = numbered(path, "array_record", 100)
    bad = [one.sample for one in got if isinstance(one, BadSample)]
    assert 1 <= len(bad) <= 3
    assert all(one == texts[number] for number, one in enumerate(got) if number not in bad)


@pytest.mark.parametrize("format", FORMATS)
def test_missing_empty_and_truncated_files_and_wrong_counts_are_named(tmp_path, format):
    """Every document before a cut is right, and the rest is either counted or ends in a named error."""
    path = tmp_path / "file"
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    with pytest.raises(LoaderError, match=rf"^source the source, file {path}: it does not exist$"):
        numbered(path, format, 3)
    texts = [f"{number} ".encode() + os.urandom(2000).hex().encode() for number in range(60)]
    write_raw(format, path, texts)
    for samples in (59, 61):
        with pytest.raises(LoaderError, match=rf"ends after 60 documents, not {samples}"):
            numbered(path, format, samples)
    with pytest.raises(LoaderError, match="it is empty, with 0 documents"):
        numbered(path, format, 0)
    whole = path.read_bytes()
    for kept in (0, 0.3, 0.7, 0.95):
        path.write_bytes(whole[: int(len(whole) * kept)])
        got: list[Any] = []
        message = ""
        try:
            got.extend(read_text(source_of(path, format, 60), SPEC))
        except LoaderError as error:
            message = str(error)
        assert len(got) < 60 or isinstance(got[-1], BadSample)
        assert message.startswith(f"source the source, file {path}: ") or len(got) == 60
        assert "\n" not in message
        assert all(one == texts[number] for number, one in enumerate(got) if not isinstance(one, BadSample))


def write_raw(format: str, path: Path, documents: list[bytes]) -> None:
    """Write documents that need not be UTF-8."""
    if format == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        binary = arrow.array(documents, arrow.binary())
        text_column = arrow.StringArray.from_buffers(len(documents), binary.buffers()[1], binary.buffers()[2])
        parquet.write_table(arrow.table({"text": text_column}), path)
        return
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    corpus_module.WRITTEN_BY[format](path, documents, 0)


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_slow_reads_take_the_delay_and_the_time_of_their_bytes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 1000)
    clock = Clock(monkeypatch)
    with batch.open_file(str(path), replace(SPEC, read_delay_s=0.5, read_B_per_s=100_000)) as file:
        assert file.read(10) == bytes(range(10))
        assert clock.now_s == pytest.approx(0.5 + batch.BUFFER_B / 100_000)
        file.read(10)  # of the buffer
        assert clock.now_s == pytest.approx(0.5 + batch.BUFFER_B / 100_000)
        file.seek(0)
        before_s = clock.now_s
        assert file.read() == path.read_bytes()
    assert clock.now_s - before_s >= (250_000 - batch.BUFFER_B) / 100_000


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_as_slow_as_its_storage(tmp_path, monkeypatch, format):
    source = corpus_in(tmp_path, format).sources[0]
    clock = Clock(monkeypatch)
    fast = texts_of(source)
    assert clock.now_s == 0
    assert texts_of(source, spec=SLOW) == fast
    size_B = source.text_B if format == "array_record" else os.path.getsize(source.file)
    assert clock.now_s >= 0.5 * size_B / 1e6
    assert texts_of(source, first=29, spec=SLOW) == fast[29:]
