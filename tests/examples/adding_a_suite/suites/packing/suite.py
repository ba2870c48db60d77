"""The packing suite: how much of each training sequence is padding, and how long packing takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import torch

from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Json, Origin, Reading, WrongResult
from suites.packing.workload import Workload

Pack = Callable[[Sequence[int], int], list[list[int]]]
"""(lengths of documents, seq_len) to the documents of each sequence, by index."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: the documents and how it packs them."""

    workload: Workload
    lengths: tuple[int, ...]
    pack: Pack


@dataclass(frozen=True, slots=True)
class Session:
    """A subject with its result and the stopwatch that times it."""

    subject: Subject
    sequences: list[list[int]]
    stopwatch: Stopwatch


def one_each(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Give every document a sequence of its own: the baseline."""
    return [[index] for index in range(len(lengths))]


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline over documents of random lengths."""
    given, random = Workload(**workload), Random(seed)
    lengths = tuple(random.randint(1, given.seq_len) for _ in range(given.documents))
    return Subject(given, lengths, one_each)


def prepare(subject: Subject) -> Session:
    """Pack once and create the stopwatch."""
    work = partial(subject.pack, subject.lengths, subject.workload.seq_len)
    return Session(subject, work(), stopwatch(work, torch.device("cpu")))


def check(session: Session) -> None:
    """Check that every document is in one sequence, and that no sequence is too long."""
    lengths, seq_len = session.subject.lengths, session.subject.workload.seq_len
    packed = sorted(index for sequence in session.sequences for index in sequence)
    if packed != list(range(len(lengths))):
        raise WrongResult(f"{len(packed)} documents are packed, expected each of {len(lengths)} once")
    longest = max(sum(lengths[index] for index in sequence) for sequence in session.sequences)
    if longest > seq_len:
        raise WrongResult(f"a sequence has {longest} tokens, allowed {seq_len}")


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about packing may name."""
    return {"device": "cpu", "seq_len": str(session.subject.workload.seq_len)}


def read_once(session: Session) -> Iterator[Reading]:
    """Yield the share of padding."""
    room = len(session.sequences) * session.subject.workload.seq_len
    yield Reading("padding", "1", 1 - sum(session.subject.lengths) / room, Origin.MEASURED)


def sample(session: Session) -> Iterator[Reading]:
    """Time one window of packing all documents."""
    yield from session.stopwatch.window()
