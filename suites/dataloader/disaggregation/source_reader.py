"""Documents of many sources by number, in one process: readers that go forward, and what they read ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from suites.dataloader.batch import END_BYTE, LoaderSpec, Tokens, with_ends
from suites.dataloader.disaggregation.plan import Pieces, Wanted
from suites.dataloader.formats import BadSample, read_text

END_TEXT = bytes([END_BYTE])


class SourceReader:
    """Reads documents of any source, each once where they are asked for in order, else again.

    A document of epoch e has number e * samples + its place in the files. What was read and not yet released
    is kept as text, which takes half of its tokens' memory.
    """

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        self._open: dict[int, Iterator[bytes | BadSample]] = {}
        self._next: dict[int, int] = {}  # the number of the document that an open reader gives next
        self._kept: dict[int, dict[int, bytes | None]] = {}  # None: a bad sample
        self._bad: dict[tuple[int, int], BadSample] = {}  # of the documents that are kept
        self.read_s: dict[int, tuple[float, int]] = {}  # seconds and documents of each source so far
        self.reading = ""  # the name of the source that is read now

    def lengths(self, wanted: Wanted, low: Mapping[int, int]) -> dict[int, NDArray[np.int64]]:
        """Return the documents' tokens, and keep the documents; release those before `low`."""
        for source, first in low.items():
            kept = self._kept.get(source, {})
            for number in [one for one in kept if one < first]:
                del kept[number]
                self._bad.pop((source, number), None)
        return {
            source: np.array([self._length(source, first + one) for one in range(count)], np.int64)
            for source, (first, count) in wanted.items()
        }

    def _length(self, source: int, number: int) -> int:
        """Return the tokens of a document: its bytes and END; a bad one has none."""
        text = self._document(source, number)
        return 0 if text is None else len(text) + 1

    def tokens(self, pieces: Pieces) -> Tokens:
        """Return the pieces' tokens, one after another."""
        return with_ends(self.text(pieces).astype(np.uint16))

    def text(self, pieces: Pieces) -> NDArray[np.uint8]:
        """Return the pieces' text, one after another, in a read-only array; END is END_BYTE."""
        return _joined(pieces, self._document)

    def kept_text(self, pieces: Pieces) -> NDArray[np.uint8] | None:
        """Return the same where all documents are kept, else None; another thread may read meanwhile."""
        try:
            return _joined(pieces, lambda source, number: self._kept[source][number])
        except KeyError:
            return None

    def keep_only(self, sources: Collection[int]) -> None:
        """Close the readers of all other sources, which are read elsewhere now."""
        for source in self._open.keys() - sources:
            del self._open[source]

    def bad_samples(self) -> list[BadSample]:
        """Return the bad samples among the documents that are kept."""
        return list(self._bad.values())

    def _document(self, source: int, number: int) -> bytes | None:
        kept = self._kept.setdefault(source, {})
        if number not in kept:
            begin_s = time.perf_counter()
            self.reading = self._spec.sources[source].name
            shared_by = self._opened(source, number)
            kept[number] = self._read(source, number)
            self.reading = ""
            taken_s, count = self.read_s.get(source, (0.0, 0))
            self.read_s[source] = (taken_s + (time.perf_counter() - begin_s) / shared_by, count + 1)
        return kept[number]

    def _opened(self, source: int, number: int) -> int:
        """Open the source at a document, unless it is there; return how many documents share the cost."""
        if source in self._open and self._next.get(source) == number:
            return 1
        size = self._spec.sources[source].samples
        self._open[source] = read_text(self._spec.sources[source], self._spec, number % size, spool=True)
        return size - number % size

    def _read(self, source: int, number: int) -> bytes | None:
        got = next(self._open[source])
        self._next[source] = number + 1
        if (number + 1) % self._spec.sources[source].samples == 0:
            del self._open[source]
        if isinstance(got, BadSample):
            self._bad[source, number] = got
            return None
        return got


def _joined(pieces: Pieces, document: Callable[[int, int], bytes | None]) -> NDArray[np.uint8]:
    """Return the pieces' text, one after another; END is END_BYTE."""
    parts: list[bytes | memoryview] = []
    for source, sample, first, length in zip(*(one.tolist() for one in pieces), strict=True):
        text = document(source, sample) or b""
        part = text if length > len(text) else memoryview(text)[first : first + length]
        parts.append(part)
        if len(part) < length:
            parts.append(END_TEXT * (length - len(part)))
    return np.frombuffer(b"".join(parts), np.uint8)
