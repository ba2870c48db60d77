"""What every loader of the dataloader suite gets and returns: sources, a specification, and packed batches.

Tokens are bytes of UTF-8 text; every document ends with END. Shapes: rows R, context length C, cp_size P.
"""

from __future__ import annotations

import importlib
import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import Unavailable
from suites.dataloader.workload import Workload
from suites.training.balance import DocumentCost, flop_of_document

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

END = 256  # the token after each document
END_BYTE = 0xFF  # stands for END where a document's text goes as bytes: UTF-8 has no such byte
PADDING = 0  # token and segment where a row has no document: segments of documents count from 1

Tokens = NDArray[np.uint16]


class Source(NamedTuple):
    """A file of one kind of document. `samples`: documents in it, `text_B`: their bytes."""

    name: str
    file: str
    format: str  # "jsonl", "parquet", "array_record", "webdataset" or "mds"
    samples: int
    text_B: int


class MixturePhase(NamedTuple):
    """Weights of the sources (summing to 1) from a step on."""

    first_step: int
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """What is loaded and how it is divided; the same for every rank and loader."""

    sources: tuple[Source, ...]
    mixture: tuple[MixturePhase, ...]
    context_length: int  # tokens per row
    documents_per_step: int  # over all data-parallel groups; dp_size divides it
    dp_size: int = 1
    cp_size: int = 1
    workers: int = 2  # worker processes (of Ray: see the loader) per rank
    prefetch: int = 2  # batches ahead, per worker or constructor
    seed: int = 0
    read_delay_s: float = 0.0  # emulated storage: before every read of a file
    read_B_per_s: float = 0.0  # emulated storage: rate of one file; 0: as fast as it is
    options: dict[str, Any] = field(default_factory=dict)  # of one loader alone

    @property
    def is_slow(self) -> bool:
        """Return whether reads of files take the time of an emulated storage."""
        return self.read_delay_s > 0 or self.read_B_per_s > 0

    @property
    def documents_per_group(self) -> int:
        """Return the documents of one data-parallel group per step."""
        return self.documents_per_step // self.dp_size


class RankPlace(NamedTuple):
    """Which data-parallel group a rank belongs to, and its part of each row."""

    dp_rank: int
    cp_rank: int

    @classmethod
    def of(cls, rank: int, cp_size: int) -> RankPlace:
        """Return the place of a global rank: ranks of one group are neighbours."""
        return cls(rank // cp_size, rank % cp_size)


class PackedBatch(NamedTuple):
    """Documents packed into rows, for one rank: `tokens` and `segments` (R, C / P).

    A segment is a token's document within its row, from 1; 0 is padding. `documents` and `real_tokens` count
    the full rows. `pieces` (n, 4), where the loader knows them: source, document, first token and length of
    each part.
    """

    tokens: Tokens
    segments: NDArray[np.uint16]
    documents: int
    real_tokens: int
    pieces: NDArray[np.int64] | None = None


class LoaderError(RuntimeError):
    """A loader cannot go on; the text names the source, the file and the reason, in one line."""


def pack(
    documents: Sequence[Tokens | NDArray[np.uint8]], context_length: int
) -> tuple[Tokens, NDArray[np.uint16]]:
    """Return rows of tokens and segments (R, C): first-fit decreasing; none is split, nor longer than a row.

    Documents may be bytes, in which END is END_BYTE: `with_ends` makes it END again.
    """
    sizes = np.array([len(one) for one in documents], np.int64)
    order = np.argsort(-sizes, kind="stable")
    row_of = first_fit(sizes[order], context_length)
    rows = max(row_of, default=-1) + 1
    tokens = np.full((rows, context_length), PADDING, np.uint16)
    segments = np.zeros_like(tokens)
    at, numbers = [0] * rows, [0] * rows
    for one, row in zip(order.tolist(), row_of, strict=True):
        begin, end = at[row], at[row] + len(documents[one])
        at[row], numbers[row] = end, numbers[row] + 1
        tokens[row, begin:end], segments[row, begin:end] = documents[one], numbers[row]
    return tokens, segments


def with_ends(tokens: Tokens) -> Tokens:
    """Return the tokens, of bytes, with END in place of each END_BYTE; changes them."""
    np.putmask(tokens, tokens == END_BYTE, END)
    return tokens


def first_fit(sizes: NDArray[np.int64], context_length: int) -> list[int]:
    """Return the row of each document, of descending sizes: the first one with room for it.

    Full ones need no search: they are the first rows.
    """
    full = int((sizes == context_length).sum())
    row_of, rows = list(range(full)), full
    free = np.full(len(sizes), context_length, np.int64)  # of rows, also those that are not used yet
    free[:full] = 0
    for size in sizes[full:].tolist():
        row = full + int((free[full : rows + 1] >= size).argmax())
        rows = max(rows, row + 1)
        free[row] -= size
        row_of.append(row)
    return row_of


def split(document: Tokens, context_length: int) -> list[Tokens]:
    """Return the document in parts of at most a row."""
    return [document[first : first + context_length] for first in range(0, len(document), context_length)]


def tokenize(text: str | bytes) -> Tokens:
    """Return the bytes of a document's text as tokens, and END."""
    data = text.encode() if isinstance(text, str) else text
    return np.append(np.frombuffer(data, np.uint8), np.uint16(END))


def packed(
    documents: Sequence[Tokens] | Sequence[str | bytes], spec: LoaderSpec, place: RankPlace
) -> PackedBatch:
    """Return a rank's batch of whole documents, tokens or texts: split, packed, the rank's slice of each row.

    With context parallelism rows are cut into 2 P parts; rank i gets parts i and 2 P - 1 - i, which balances
    causal attention (Llama 3, arXiv 2407.21783).
    """
    tokens_of = (one if isinstance(one, np.ndarray) else tokenize(one) for one in documents)
    parts = [part for one in tokens_of for part in split(one, spec.context_length)]
    tokens, segments = pack(parts, spec.context_length)
    return PackedBatch(
        context_slice(tokens, spec.cp_size, place.cp_rank),
        context_slice(segments, spec.cp_size, place.cp_rank),
        len(documents),
        sum(len(one) for one in parts),
    )


def context_slice(rows: NDArray[np.uint16], cp_size: int, cp_rank: int) -> NDArray[np.uint16]:
    """Return a rank's parts of rows (R, C), joined: (R, C / P)."""
    if cp_size == 1:
        return rows
    parts = rows.reshape(len(rows), 2 * cp_size, -1)
    return np.concatenate([parts[:, cp_rank], parts[:, 2 * cp_size - 1 - cp_rank]], axis=1)


@dataclass(frozen=True, slots=True)
class Subject:
    """One loader: the module `suites/dataloader/loaders/<loader>.py`, with options of its own (plain JSON).

    Its `FORMATS` are the file formats that it reads, the preferred ones first. `batches(spec, place)` returns
    a rank's batches without end; closing that iterator ends what it has started. It raises `Unavailable` for
    what the loader cannot do, and `LoaderError` where a file cannot be read.
    """

    workload: Workload
    seed: int
    loader: str = "baseline_loader"
    options: Mapping[str, Any] = field(default_factory=dict)


def loads_with(loader: str) -> Callable[[Subject], Subject]:
    """Return what applies an optimization that is a loader."""
    return lambda subject: replace(subject, loader=loader)


def flop_of_model(hidden_size: int, layers: int, heads: int) -> DocumentCost:
    """Return the FLOP per token, and per token squared of a document, of `fed_step.DocumentModel`."""
    return flop_of_document(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=END + 1,
        mlp_matrices=2,
    )


def flop_of_queries(flop: DocumentCost, queries: int, keys: int) -> float:
    """Return the FLOP of the last `queries` of a document's first `keys` tokens; parts add up."""
    return flop.linear * queries + flop.quadratic * (keys**2 - (keys - queries) ** 2)


BUFFER_B = 64 << 10  # buffer of each open file: hundreds are open at once

INSTALL = "pip install throughput-harness[dataloader]"


def library(name: str) -> Any:
    """Return an optional library's module; raises `Unavailable` with what to install where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"{name.partition('.')[0]} cannot be imported ({error}): {INSTALL}"
        raise Unavailable(" ".join(reason.split())) from error


class CorruptSample(ValueError):
    """A document that cannot be decoded; the text names why."""


class UnreadableFile(RuntimeError):
    """A file that cannot be read any further; the text names why."""


def one_line(error: BaseException) -> str:
    """Return an error's text in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


class Throttle:
    """The emulated speed of one file handle, for all threads: a delay before each read, then a rate."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._delay_s, self._rate_B_per_s = spec.read_delay_s, spec.read_B_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # when the handle has served all reads so far

    def wait(self, size_B: int, begin_s: float) -> None:
        """Sleep until a read of this size, issued at `begin_s` (of `time.perf_counter`), would be done."""
        taken_s = self._delay_s + (size_B / self._rate_B_per_s if self._rate_B_per_s > 0 else 0.0)
        with self._lock:
            self._free_s = max(begin_s, self._free_s) + taken_s
            left_s = self._free_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class SlowFile(io.FileIO):
    """A file, open for reading, whose reads take the time of the emulated storage."""

    read = io.RawIOBase.read  # type: ignore[assignment] # by way of `readinto`
    readall = io.RawIOBase.readall

    def __init__(self, path: str, spec: LoaderSpec) -> None:
        super().__init__(path)
        self._throttle = Throttle(spec)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into the buffer and return the bytes read, after the time that the storage takes."""
        begin_s = time.perf_counter()
        size_B = super().readinto(buffer) or 0
        self._throttle.wait(size_B, begin_s)
        return size_B


def open_file(path: str, spec: LoaderSpec) -> BinaryIO:
    """Return the file, open for reading, as fast as the emulated storage; raises `OSError`."""
    if not spec.is_slow:
        return open(path, "rb", buffering=BUFFER_B)
    return io.BufferedReader(SlowFile(path, spec), BUFFER_B)
