"""How the documents of a source are written into one file of each format, as users write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from suites.dataloader.reading.storage import library


class CorpusSettings(NamedTuple):
    """How a corpus is written.

    `seed`: shuffles each source's documents, once. `files_per_source`: files that share its documents in
    equal numbers; fewer where there are fewer documents. `row_group_rows`: of Parquet; 0 leaves pyarrow's
    default, 2^20 rows, which is one row group per file here. `compression`: of Parquet, pyarrow's default.
    """

    seed: int = 0
    files_per_source: int = 1
    row_group_rows: int = 0
    compression: str = "snappy"


class WrittenAs(NamedTuple):
    """The suffix of a file's name, and the function that writes one."""

    suffix: str
    write: Callable[[Path, Iterable[bytes], CorpusSettings], None]


def _jsonl(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for one in documents:
            file.write(json.dumps({"text": one.decode()}, ensure_ascii=False) + "\n")


def _parquet(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    table = arrow.table({"text": arrow.array(list(documents), arrow.string())})
    parquet.write_table(
        table, path, row_group_size=settings.row_group_rows or None, compression=settings.compression
    )


def _array_record(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    module = library("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")  # as Grain's documents advise
    for one in documents:
        writer.write(one)
    writer.close()


def _webdataset(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, one in enumerate(documents):
            member = tarfile.TarInfo(f"{number:08d}.txt")
            member.size = len(one)
            archive.addfile(member, io.BytesIO(one))
            archive.members.clear()  # type: ignore[attr-defined] # it would keep all


def _mds(path: Path, documents: Iterable[bytes], settings: CorpusSettings) -> None:
    streaming = library("streaming")
    with streaming.MDSWriter(out=str(path), columns={"text": "str"}) as writer:
        for one in documents:
            writer.write({"text": one.decode()})


WRITTEN_AS = {
    "jsonl": WrittenAs("jsonl", _jsonl),
    "parquet": WrittenAs("parquet", _parquet),
    "array_record": WrittenAs("array_record", _array_record),
    "webdataset": WrittenAs("tar", _webdataset),
    "mds": WrittenAs("mds", _mds),
}
"""How each format is written. An "mds" file is a folder with an index and shards of its own."""
