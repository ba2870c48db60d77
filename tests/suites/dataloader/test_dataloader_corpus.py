"""Corpora, readers and emulated storage of the dataloader suite, compared with the original texts."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records import Unavailable
from suites.dataloader import batch
from suites.dataloader.batch import END, LoaderError, LoaderSpec, MixturePhase, Source
from suites.dataloader.corpus import (
    Corpus,
    CorpusSettings,
    FileDocuments,
    generated,
    load,
    sources_of_text,
    write,
)
from suites.dataloader.formats import BadSample, read
from suites.dataloader.installed_files import LARGEST_DOCUMENT_B, Root, kind_of_text

TEXTS = ["a", "two\nlines\r\n", 'a "quoted" \\ text', "é 漢字 \u2028 \U0001f600", "\0 \x1f", "x" * 70_000]
NEEDS = {"parquet": "pyarrow", "array_record": "array_record.python.array_record_module"}
FORMATS = ["jsonl", "parquet", "array_record", "webdataset"]
ROW_GROUPS = CorpusSettings(row_group_rows=7)
THREE_FILES = CorpusSettings(seed=3, files_per_source=3, row_group_rows=4)


def specification(**more: Any) -> LoaderSpec:
    given: dict[str, Any] = {
        "sources": (),
        "mixture": (MixturePhase(0, ()),),
        "context_length": 64,
        "documents_per_step": 1,
    }
    return LoaderSpec(**{**given, **more})


SPEC = specification()


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


def described(tmp_path: Path, count: int = 3, **more: Any) -> FileDocuments:
    folder = tmp_path / "packages"
    if not folder.exists():
        packages(folder)
    return sources_of_text(count, roots=(Root(str(folder)),), cache=tmp_path / "cache", **more)


def corpus_in(tmp_path: Path, format: str, settings: CorpusSettings | None = None) -> Corpus:
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    return write(tmp_path / "corpora", format, described(tmp_path), settings)


def texts_of(source: Source, first: int = 0, spec: LoaderSpec = SPEC, spool: bool = False) -> list[bytes]:
    documents = list(read(source, spec, first, spool))
    assert not [one for one in documents if isinstance(one, BadSample)]
    return [text(one) for one in documents if not isinstance(one, BadSample)]


def text(tokens: np.ndarray) -> bytes:
    assert tokens.dtype == np.uint16
    assert tokens[-1] == END
    return tokens[:-1].astype(np.uint8).tobytes()


def source_of(path: Path, format: str, samples: int) -> Source:
    return Source("the source", (str(path),), format, samples, 0)


def numbered(path: Path, format: str, samples: int) -> list[bytes | BadSample]:
    """Each document's text, or what was wrong with it."""
    documents = read(source_of(path, format, samples), SPEC)
    return [one if isinstance(one, BadSample) else text(one) for one in documents]


# What is found


def test_sources_are_the_pairs_of_package_and_kind_in_the_order_of_their_sizes(tmp_path):
    documents = described(tmp_path)
    assert documents.names == ("first/py", "second_package/py", "second_package/text")
    assert [len(one) for one in documents.files] == [30, 9, 4]
    assert documents.document(2, 1) == b"packed 1"
    assert documents.left_out == {"of another kind": 1, "too large": 1, "empty": 1, "not UTF-8": 1}


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


def test_a_description_is_used_again_until_a_file_changes(tmp_path, monkeypatch):
    first = described(tmp_path)
    with monkeypatch.context() as without:
        without.setattr("suites.dataloader.corpus.usable", None)  # nothing is read again
        assert described(tmp_path) == first
    (tmp_path / "packages" / "first" / "below" / "0.py").write_text("another, longer text")
    assert described(tmp_path) != first


def test_a_capped_source_ends_after_the_document_that_reaches_the_cap(tmp_path):
    sizes_B = described(tmp_path, count=2, largest_B=1000).sizes_B(1)
    assert sum(sizes_B) >= 1000 > sum(sizes_B[:-1])


def test_too_few_sources_are_unavailable_with_the_number_found(tmp_path):
    with pytest.raises(Unavailable, match=r"^3 of 306 sources of text found in .*packages"):
        described(tmp_path, count=306)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.py", "py"),
        ("LICENSE", "license"),
        ("license.txt", "license"),
        ("licenses.py", "py"),
        ("changelog.Debian.gz", "changelog"),
        ("ls.1.gz", "man"),
        ("index.html.gz", "html"),
        ("notes.md", "markdown"),
        ("README.md", "readme"),
        ("libz.so.1", ""),
        ("a.whl", ""),
        ("x", ""),
    ],
)
def test_the_kind_of_a_file(name, kind):
    assert kind_of_text(name) == kind


def test_generated_text_is_the_same_for_the_same_seed_and_heavy_tailed():
    one, again, other = generated(5, 2000, seed=1), generated(5, 2000, seed=1), generated(5, 2000, seed=2)
    assert one.digest == again.digest != other.digest
    sizes_B = [size for source in range(5) for size in one.sizes_B(source)]
    assert len(sizes_B) == 2000
    assert 1500 < np.median(sizes_B) < 2700
    assert np.percentile(sizes_B, 99) > 15 * np.median(sizes_B)
    for source in range(5):
        assert len(one.document(source, 0)) == one.sizes_B(source)[0]
        assert one.document(source, 0) == again.document(source, 0)
        one.document(source, len(one.sizes_B(source)) - 1).decode()


def test_generated_text_needs_a_document_per_source():
    with pytest.raises(ValueError, match="3 documents cannot be divided among 4 sources"):
        generated(4, 3)


# What is written and read


@pytest.mark.parametrize("settings", [CorpusSettings(), ROW_GROUPS, THREE_FILES])
@pytest.mark.parametrize("format", FORMATS)
def test_each_format_gives_the_original_texts_bit_for_bit(tmp_path, format, settings):
    corpus = corpus_in(tmp_path, format, settings)
    in_lines = corpus_in(tmp_path, "jsonl", settings)
    documents = described(tmp_path)
    assert corpus.digest == in_lines.digest == documents.digest
    for number, source in enumerate(corpus.sources):
        original = [documents.document(number, one) for one in range(source.samples)]
        got = texts_of(source)
        assert sorted(got) == sorted(original)
        assert got == texts_of(in_lines.sources[number])
        assert (source.samples, source.text_B) == (len(original), sum(len(one) for one in original))
        assert len(source.files) == settings.files_per_source


@pytest.mark.parametrize("settings", [CorpusSettings(), THREE_FILES])
@pytest.mark.parametrize("format", FORMATS)
def test_reading_begins_at_any_document(tmp_path, format, settings):
    for source in corpus_in(tmp_path, format, settings).sources:
        everything = texts_of(source)
        for first in (*range(source.samples), source.samples, 0):
            assert texts_of(source, first) == everything[first:]


@pytest.mark.parametrize("settings", [CorpusSettings(), ROW_GROUPS, THREE_FILES])
def test_spooled_row_groups_give_the_same_documents_from_any_one_on(tmp_path, settings):
    for source in corpus_in(tmp_path, "parquet", settings).sources:
        streamed = texts_of(source)
        for first in (*range(source.samples), source.samples):
            assert texts_of(source, first, spool=True) == streamed[first:]


def test_spooled_documents_hold_no_memory_of_arrow_and_leave_no_file(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    source = corpus_in(tmp_path, "parquet").sources[0]
    before_B = arrow.total_allocated_bytes()
    reader = read(source, SPEC, spool=True)
    next(reader)
    assert arrow.total_allocated_bytes() == before_B
    assert list((tmp_path / "spool").iterdir()) == []
    monkeypatch.setattr("suites.dataloader.formats._write_all", full_disk)
    with pytest.raises(
        LoaderError, match=r"^source first/py, file .*: row group 0 cannot be kept in .*spool"
    ):
        next(read(source, SPEC, spool=True))


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_lines_are_found_by_their_offsets_in_any_order(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": f"{one} " + "z" * (one % 50)}) + "\n" for one in range(2000)))
    source = source_of(path, "jsonl", 2000)
    for first in (1999, 0, 256, 255, 1500, 257, 700):
        assert text(next(read(source, SPEC, first))).split()[0] == str(first).encode()


def test_documents_are_shuffled_by_the_seed(tmp_path):
    orders = [corpus_in(tmp_path, "jsonl", CorpusSettings(seed=seed)).sources for seed in (0, 0, 1)]
    texts = [texts_of(sources[0]) for sources in orders]
    assert texts[0] == texts[1] != texts[2]
    assert sorted(texts[0]) == sorted(texts[2])


def test_a_corpus_is_written_once(tmp_path, monkeypatch):
    corpus = corpus_in(tmp_path, "jsonl")
    monkeypatch.setattr("suites.dataloader.corpus._write_sources", None)
    assert corpus_in(tmp_path, "jsonl") == corpus == load(corpus.folder)
    assert len(list((tmp_path / "corpora").iterdir())) == 1


def test_a_writer_that_fails_leaves_no_corpus(tmp_path):
    documents = described(tmp_path)
    Path(documents.files[1][0]).write_text("of another size")
    with pytest.raises(LoaderError, match=r"source second_package/py, file .*: it has changed since"):
        write(tmp_path / "corpora", "jsonl", documents)
    assert list((tmp_path / "corpora").iterdir()) == []


def test_two_writers_at_once_give_one_corpus(tmp_path, monkeypatch):
    documents = described(tmp_path)
    publish: Callable[[Path, Path], None] = __import__("suites.dataloader.corpus", fromlist=["_"])._publish

    def second(part: Path, target: Path) -> None:
        monkeypatch.setattr("suites.dataloader.corpus._publish", publish)
        write(tmp_path / "corpora", "jsonl", documents)
        publish(part, target)

    monkeypatch.setattr("suites.dataloader.corpus._publish", second)
    assert write(tmp_path / "corpora", "jsonl", documents).documents == 43
    assert len(list((tmp_path / "corpora").iterdir())) == 1


def test_a_damaged_corpus_is_named(tmp_path):
    corpus = corpus_in(tmp_path, "jsonl")
    file = Path(corpus.sources[1].files[0])
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(LoaderError, match=r"source second_package/py, file .*: it has \d+ bytes, \d+ were"):
        load(corpus.folder)
    file.unlink()
    with pytest.raises(LoaderError, match=r"does not exist"):
        load(corpus.folder)
    Path(corpus.folder, "index.json").write_text("{")
    with pytest.raises(LoaderError, match=r"its index is damaged"):
        load(corpus.folder)


def test_the_cache_folder_follows_xdg_cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    corpus = write(None, "jsonl", generated(2, 10))
    assert Path(corpus.folder).parent == tmp_path / "xdg" / "throughput-harness"


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"format 'csv' is not one of jsonl, parquet"):
        write(tmp_path, "csv", generated(1, 4))
    with pytest.raises(LoaderError, match=r"the source: format 'mds' is not one of array_record, jsonl"):
        read(source_of(tmp_path, "mds", 1), SPEC)


@pytest.mark.parametrize("format", ["parquet", "array_record", "mds"])
def test_a_missing_library_is_unavailable_and_named(tmp_path, monkeypatch, format):
    for name in ("pyarrow", "pyarrow.parquet", "array_record.python.array_record_module", "streaming"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(Unavailable, match=r"pip install throughput-harness\[dataloader\]$"):
        write(tmp_path, format, generated(1, 4))


def test_parquet_is_written_as_pyarrow_does_by_default(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    default = parquet.ParquetFile(corpus_in(tmp_path, "parquet").sources[0].files[0]).metadata
    assert (default.num_row_groups, default.row_group(0).column(0).compression) == (1, "SNAPPY")
    small = parquet.ParquetFile(corpus_in(tmp_path, "parquet", ROW_GROUPS).sources[0].files[0]).metadata
    assert small.num_row_groups == 5


# Bad input


def test_bad_lines_are_counted_and_the_others_keep_their_numbers(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(
        b'{"text": "good"}\n{"text": 3}\n[1]\n\n{"text": "caf\xe9"}\n{"text": "\\ud800"}\n{"text": "also"}\n{'
    )
    got = numbered(path, "jsonl", 8)
    assert (got[0], got[6]) == (b"good", b"also")
    reasons = {one.sample: one.reason for one in got if isinstance(one, BadSample)}
    for number, reason in {
        1: 'the line is not an object with a string "text"',
        2: 'the line is not an object with a string "text"',
        3: "the line is not JSON",
        4: "the line is not UTF-8",
        5: "the text is not UTF-8",
        7: "ends without a newline: the file is truncated",
    }.items():
        assert reason in reasons.pop(number)
    assert not reasons
    bad = got[7]
    assert isinstance(bad, BadSample)
    assert (bad.source, bad.file) == ("the source", str(path))
    assert "\n" not in bad.reason


def test_deeply_nested_json_is_a_bad_sample(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000 + "\n" + '{"text": "good"}\n')
    bad, good = numbered(path, "jsonl", 2)
    assert isinstance(bad, BadSample)
    assert good == b"good"


@pytest.mark.parametrize("format", FORMATS)
def test_text_that_is_not_utf8_is_a_bad_sample(tmp_path, format):
    if format == "jsonl":
        pytest.skip("see the bad lines")
    path = tmp_path / "file"
    write_raw(format, path, [b"good", b"caf\xe9", b"also"])
    good, bad, also = numbered(path, format, 3)
    assert (good, also) == (b"good", b"also")
    assert bad == BadSample(
        "the source", 1, str(path), "the text is not UTF-8: unexpected end of data at byte 3"
    )


def test_a_null_is_a_bad_sample_and_other_columns_are_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "file.parquet"
    parquet.write_table(arrow.table({"other": [1, 2], "text": ["good", None]}), path)
    good, bad = numbered(path, "parquet", 2)
    assert good == b"good"
    assert isinstance(bad, BadSample)
    assert (bad.sample, bad.reason) == (1, "the text is null")
    parquet.write_table(arrow.table({"text": [1, 2]}), path)
    with pytest.raises(LoaderError, match=r"its column text has type int64, not one of string"):
        numbered(path, "parquet", 2)
    parquet.write_table(arrow.table({"body": ["x"]}), path)
    with pytest.raises(LoaderError, match=r"it has no column text, but body$"):
        numbered(path, "parquet", 1)


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
    again = list(read(source_of(path, "parquet", 30), SPEC, spool=True))
    assert [one if isinstance(one, BadSample) else text(one) for one in again] == got


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


@pytest.mark.parametrize("kept", [0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_shard_is_named_or_counted(tmp_path, format, kept):
    """Every document before the cut is right, and the rest is either counted or ends in a named error."""
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    path = tmp_path / "file"
    texts = [f"{number} ".encode() + os.urandom(2000).hex().encode() for number in range(60)]
    write_raw(format, path, texts)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    got: list[Any] = []
    message = ""
    try:
        for one in read(source_of(path, format, 60), SPEC):
            got.append(one if isinstance(one, BadSample) else text(one))
    except LoaderError as error:
        message = str(error)
    assert len(got) < 60 or isinstance(got[-1], BadSample)
    assert message.startswith(f"source the source, file {path}: ") or len(got) == 60
    assert "\n" not in message
    assert all(one == texts[number] for number, one in enumerate(got) if not isinstance(one, BadSample))


@pytest.mark.parametrize("format", FORMATS)
def test_missing_and_empty_files_and_wrong_counts_are_named(tmp_path, format):
    path = tmp_path / "file"
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    with pytest.raises(LoaderError, match=rf"^source the source, file {path}: it does not exist$"):
        numbered(path, format, 3)
    write_raw(format, path, [b"a", b"b"])
    for samples in (1, 3):
        with pytest.raises(LoaderError, match=rf"ends after 2 documents, not {samples}"):
            numbered(path, format, samples)
    with pytest.raises(LoaderError, match="source the source is empty: 1 files with 0 documents"):
        read(source_of(path, format, 0), SPEC)
    with pytest.raises(LoaderError, match="there is no document 3; it has 2"):
        read(source_of(path, format, 2), SPEC, 3)


def write_raw(format: str, path: Path, documents: list[bytes]) -> None:
    """Write documents that need not be UTF-8."""
    from suites.dataloader.corpus import WRITTEN_AS

    if format == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        binary = arrow.array(documents, arrow.binary())
        text_column = arrow.StringArray.from_buffers(len(documents), binary.buffers()[1], binary.buffers()[2])
        parquet.write_table(arrow.table({"text": text_column}), path)
        return
    if format in NEEDS:
        pytest.importorskip(NEEDS[format])
    WRITTEN_AS[format].write(path, documents, CorpusSettings())


# Storage


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
    with batch.open_file(str(path), specification(read_delay_s=0.5, read_B_per_s=100_000)) as file:
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
    fast = texts_of(source)
    clock = Clock(monkeypatch)
    assert texts_of(source, spec=specification(read_B_per_s=1e6)) == fast
    size_B = source.text_B if format == "array_record" else os.path.getsize(source.files[0])
    assert clock.now_s >= 0.5 * size_B / 1e6
    assert texts_of(source, first=29, spec=specification(read_B_per_s=1e6)) == fast[29:]


def test_plain_files_do_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", None)
    assert texts_of(corpus_in(tmp_path, "jsonl").sources[0])


def test_readers_that_are_closed_close_their_files(tmp_path):
    source = corpus_in(tmp_path, "jsonl").sources[0]
    before = len(os.listdir("/proc/self/fd"))
    readers = [read(source, SPEC) for _ in range(20)]
    for one in readers:
        next(one)
    assert len(os.listdir("/proc/self/fd")) == before + 20
    for one in readers:
        one.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tar_written_by_others_with_folders_is_read(tmp_path):
    path = tmp_path / "file.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number in range(3):
            member = tarfile.TarInfo(f"folder/{number}.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(str(number).encode()))
    assert numbered(path, "webdataset", 3) == [b"0", b"1", b"2"]
