"""Seeded synthetic text whose document sizes are heavy-tailed, for corpora larger than what is installed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from suites.dataloader.corpora.installed_files import LARGEST_DOCUMENT_B


@dataclass(frozen=True)
class GeneratedDocuments:
    """Synthetic text by seed: words of a Zipf distribution, document sizes of a log-normal one.

    The same arguments give the same documents, each on its own: nothing is stored but their sizes.
    """

    names: tuple[str, ...]
    sizes: tuple[NDArray[np.int32], ...]
    pool: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Return the digest of all names, sizes and the text that documents are cut from."""
        total = hashlib.sha256(b"generated 1")
        for name, sizes in zip(self.names, self.sizes, strict=True):
            total.update(name.encode() + sizes.astype("<i4").tobytes())
        total.update(self.pool)
        return total.hexdigest()

    def sizes_B(self, source: int) -> Sequence[int]:
        """Return the bytes of each document of a source."""
        return [int(one) for one in self.sizes[source]]

    def document(self, source: int, number: int) -> bytes:
        """Return one document: a part of the pool after its own name."""
        size_B = int(self.sizes[source][number])
        name = f"{self.names[source]} {number}\n".encode()
        first = (number * 2654435761 + source * 40503) % (len(self.pool) - LARGEST_DOCUMENT_B)
        return (name + self.pool[first : first + size_B])[:size_B]


def generated(
    count: int,
    documents: int,
    seed: int = 0,
    median_B: int = 2048,
    sigma: float = 1.5,
    source_sigma: float = 1.0,
) -> GeneratedDocuments:
    """Return `count` synthetic sources with `documents` documents in total.

    Sizes are log-normal around `median_B` bytes, at most 1 MiB; documents per source are log-normal too, with
    at least one each.
    """
    if not 0 < count <= documents:
        raise ValueError(f"{documents} documents cannot be divided among {count} sources: one each is needed")
    random = np.random.default_rng(seed)
    shares = random.lognormal(0.0, source_sigma, count)
    counts = 1 + np.floor((documents - count) * shares / shares.sum()).astype(np.int64)
    counts[np.argmax(counts)] += documents - counts.sum()
    sizes = tuple(
        np.clip(random.lognormal(np.log(median_B), sigma, number), 1, LARGEST_DOCUMENT_B).astype(np.int32)
        for number in counts
    )
    names = tuple(f"generated-{number:04d}" for number in range(count))
    return GeneratedDocuments(names, sizes, _pool(random, 5 * LARGEST_DOCUMENT_B))


def _pool(random: np.random.Generator, size_B: int) -> bytes:
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    vocabulary = [
        bytes(random.choice(letters, length)) for length in np.clip(random.geometric(0.2, 5000), 1, 14)
    ]
    ranks = np.clip(random.zipf(1.3, size_B // 3), 1, len(vocabulary)) - 1
    text = b" ".join(vocabulary[rank] for rank in ranks)
    return (text * (1 + size_B // len(text)))[:size_B]
