"""Checks what loaders return against the documents themselves, which are read here in another way.

A piece is a document, or a part of at most a row of a longer one.
"""

from __future__ import annotations

import base64
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import Json, WrongResult
from suites.dataloader.batch import END, PADDING, LoaderSpec, PackedBatch, Tokens, split, tokenize
from suites.dataloader.corpus import Documents, cache_folder

VERSION = 1


class PieceIndex(NamedTuple):
    """Hashes of a corpus's different pieces, ascending; the source of one of each; how many are equal."""

    hashes: NDArray[np.uint64]
    sources: NDArray[np.int32]
    equal: NDArray[np.int64]

    def find(self, piece: Tokens) -> int | None:
        """Return the number of a piece, None where the corpus has none like it."""
        wanted = np.uint64(piece_hash(piece))
        at = int(np.searchsorted(self.hashes, wanted))
        return at if at < len(self.hashes) and self.hashes[at] == wanted else None


def piece_hash(piece: Tokens) -> int:
    """Return 64 bits that identify a piece."""
    return int.from_bytes(blake2b(piece.astype("<u2").tobytes(), digest_size=8).digest(), "little")


def piece_index(documents: Documents, context_length: int) -> PieceIndex:
    """Return the index of a corpus's pieces; it is kept in the folder of the corpora."""
    root = cache_folder()
    kept = root / f"pieces-{VERSION}-{documents.digest[:24]}-{context_length}.npz"
    if kept.is_file():
        with np.load(kept, allow_pickle=False) as stored:
            return PieceIndex(*(stored[name] for name in PieceIndex._fields))
    index = _indexed(documents, context_length)
    root.mkdir(parents=True, exist_ok=True)
    part = root / f".{kept.name}.{os.getpid()}.npz"
    np.savez(part, **index._asdict())
    part.replace(kept)
    return index


def _indexed(documents: Documents, context_length: int) -> PieceIndex:
    hashes, sources = [], []
    for source in range(len(documents.names)):
        for number in range(len(documents.sizes_B[source])):
            for piece in split(tokenize(documents.document(source, number)), context_length):
                hashes.append(piece_hash(piece))
                sources.append(source)
    every, first, equal = np.unique(np.array(hashes, np.uint64), return_index=True, return_counts=True)
    return PieceIndex(every, np.array(sources, np.int32)[first], equal)


def check_steps(spec: LoaderSpec, index: PieceIndex, ranks: Sequence[Sequence[Json]]) -> None:
    """Compare batches of all ranks, as `on_rank.rows` returns them, with the corpus; raises `WrongResult`."""
    seen: dict[int, set[int]] = defaultdict(set)  # the groups that have each piece
    drawn: Counter[int] = Counter()  # documents of each source
    for step in range(len(ranks[0])):
        groups = [_full(spec, group, step, ranks) for group in range(spec.dp_size)]
        ends = sum(int((one.tokens == END).sum()) for one in groups)
        reported = sum(one.documents for one in groups)
        if not ends == reported == spec.documents_per_step:
            raise WrongResult(
                f"batch {step} has {ends} ends of documents and reports {reported} documents over "
                f"all groups; expected {spec.documents_per_step}"
            )
        for group, rows in enumerate(groups):
            for piece in pieces_of(rows, f"group {group}, batch {step}"):
                number = index.find(piece)
                if number is None:
                    raise WrongResult(
                        f"group {group}, batch {step}: {len(piece)} tokens in a row are in no document"
                    )
                seen[number].add(group)
                drawn[int(index.sources[number])] += int(piece[-1] == END)
    _refuse_shared(spec, index, seen, drawn)


def _full(spec: LoaderSpec, group: int, step: int, ranks: Sequence[Sequence[Json]]) -> PackedBatch:
    """Return the rows of a group, put together from its ranks' slices."""
    given = [ranks[group * spec.cp_size + one][step] for one in range(spec.cp_size)]
    where = f"group {group}, batch {step}"
    first = given[0]
    for one in given:
        for name in ("shape", "documents", "real_tokens"):
            if one[name] != first[name]:
                raise WrongResult(
                    f"{where}: ranks of one group differ in {name}: {first[name]} and {one[name]}"
                )
    width = first["shape"][1]
    if width * spec.cp_size != spec.context_length:
        raise WrongResult(f"{where}: rows of {width} tokens on each of {spec.cp_size} ranks")
    tokens, segments = (
        _joined([np.frombuffer(base64.b64decode(one[name]), "<u2").reshape(one["shape"]) for one in given])
        for name in ("tokens", "segments")
    )
    rows = PackedBatch(tokens, segments, first["documents"], first["real_tokens"])
    if int((segments > 0).sum()) != rows.real_tokens:
        raise WrongResult(
            f"{where}: {int((segments > 0).sum())} tokens of documents, reported are {rows.real_tokens}"
        )
    if (tokens[segments == 0] != PADDING).any():
        raise WrongResult(f"{where}: padding has tokens")
    return rows


def _joined(slices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return full rows: rank i has parts i and 2 P - 1 - i of them."""
    if len(slices) == 1:
        return slices[0]
    half = slices[0].shape[1] // 2
    return np.concatenate(
        [*(one[:, :half] for one in slices), *(one[:, half:] for one in slices[::-1])], axis=1
    )


def pieces_of(rows: PackedBatch, where: str = "") -> Iterator[Tokens]:
    """Return the pieces in full rows; raises `WrongResult` where segments or END tokens do not fit."""
    for tokens, segments in zip(rows.tokens, rows.segments, strict=True):
        count = int(segments.max(initial=0))
        numbers = segments[segments > 0]
        falls = np.diff(segments.astype(np.int64))[segments[1:] > 0] < 0
        if falls.any() or len(np.unique(numbers)) != count:
            raise WrongResult(f"{where}: segments of a row are not 1 to {count} in order")
        for number in range(1, count + 1):
            piece = tokens[segments == number]
            if (piece[:-1] == END).any():
                raise WrongResult(f"{where}: a segment has more than one document")
            yield piece


def _refuse_shared(
    spec: LoaderSpec, index: PieceIndex, seen: dict[int, set[int]], drawn: Counter[int]
) -> None:
    """Raise where two groups have the same document, of a source of which no process can have begun anew."""
    shares = spec.dp_size * max(spec.workers, 1)
    for number, groups in seen.items():
        source = int(index.sources[number])
        fresh = drawn[source] <= spec.sources[source].samples // shares
        if len(groups) > 1 and fresh and index.equal[number] == 1:
            first, second, *_ = sorted(groups)
            raise WrongResult(
                f"groups {first} and {second} both have a document of source {spec.sources[source].name}"
            )
