"""The memory model of kernels on symmetric memory: litmus tests, and a mutation test of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kernel_mutants import CHANGES, difference, mutants
from overlap_on_rank import pool_of
from symmetric_on_rank import CASES

from suites.overlap.symmetric.memory_order import MemoryOrder
from suites.overlap.symmetric.memory_trace import Access

RANKS = 3
LATE_S = (0.05, -0.05)
DATA, FLAG, OTHER = 0, 64, 128  # places in rank 0's heap


def step(
    rank: int, kind: str, place: int, semantic: str = "plain", value: int = 1,
    launch: int = 0, program: int = 0, scope: str = "sys", size_B: int = 4,
) -> Access:  # fmt: skip
    return Access(
        rank, launch, program, kind, semantic, scope, [(place, place + size_B)], 0, value, f"{kind} {place}"
    )


def order_of(*steps: Access) -> MemoryOrder:
    """Return the order of steps of all ranks, whose atomics were performed in this sequence."""
    named = [
        one._replace(number=0 if one.semantic == "plain" else i + 1, source=f"{i}")
        for i, one in enumerate(steps)
    ]
    return MemoryOrder([[one for one in named if one.rank == rank] for rank in {s.rank for s in steps}])


def racing(order: MemoryOrder) -> set[tuple[int, int]]:
    pairs = [(int(race.first.source), int(race.second.source)) for race in order.races()]
    return {(min(pair), max(pair)) for pair in pairs}


def visible_values(order: MemoryOrder, source: int) -> set[int]:
    """Return what the load at a step may see; all memory is 0 before."""
    (load,) = (i for i, one in enumerate(order.accesses) if one.source == f"{source}")
    place = order.accesses[load].ranges[0][0]
    return {one.value if one else 0 for one in order.visible(load, place)}


def passing(release: str = "release", acquire: str = "acquire") -> list[Access]:
    return [
        step(0, "store", DATA),
        step(0, "exchange", FLAG, release),
        step(1, "poll", FLAG, acquire),
        step(1, "load", DATA),
    ]


def test_a_message_is_passed_by_a_release_and_an_acquire_and_else_may_be_missed():
    order = order_of(*passing())
    assert not order.races()
    assert not order.uncertain_waits()
    assert visible_values(order, 3) == {1}
    for weak in ({"release": "relaxed"}, {"acquire": "relaxed"}):
        order = order_of(*passing(**weak))
        assert racing(order) == {(0, 3)}
        assert visible_values(order, 3) == {0, 1}


def signalled(*stores: tuple[int, str, int], waited_for: int = 1, at: int | None = None) -> list[Access]:
    """Return stores (rank, kind, value) of a signal that rank 1 waits for, behind so many of them, or all."""
    steps = [step(rank, kind, FLAG, "release", value) for rank, kind, value in stores]
    steps.insert(len(stores) if at is None else at, step(1, "poll", FLAG, "acquire", waited_for))
    return steps


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (signalled((0, "exchange", 1)), []),
        (signalled((0, "exchange", 1), (0, "exchange", 2), at=1),
         ["may not see its value before it is replaced by"]),
        (signalled((2, "exchange", 2), (0, "exchange", 1)),
         ["may not see its value because it is followed by"]),
        (signalled((2, "exchange", 1), (0, "exchange", 1)), ["may as well see"]),
        (signalled((2, "update", 1), (0, "update", 2), waited_for=2), []),
        (signalled((0, "update", 1), (0, "update", 0), waited_for=0),
         ["may see the initial value instead of"]),
    ],
)  # fmt: skip
def test_a_wait_must_see_the_same_store_in_every_execution(steps, why):
    assert [one.why for one in order_of(*steps).uncertain_waits()] == why


class Recorded(NamedTuple):
    """An execution by all ranks."""

    order: MemoryOrder
    is_right: bool
    failures: list[str]


def access_of(row: Sequence[Any]) -> Access:
    access = Access(*row)
    return access._replace(ranges=[(begin, end) for begin, end in access.ranges])


Record = Callable[..., Recorded]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Return what runs a kernel recorded on ranks, or a changed copy of its module."""
    with pool_of(RANKS) as pool:

        def run(name: str, late_s: float, source: str | None = None, timeout_s: float = 60.0) -> Recorded:
            given = {"name": name, "source": source, "late_s": late_s, "timeout_s": timeout_s}
            folder = str(tmp_path_factory.mktemp("recorded"))
            results = pool.call("symmetric_on_rank:recorded", folder=folder, **given)
            recorded = [[access_of(row) for row in one["accesses"]] for one in results]
            failures = [one["failure"] for one in results if one["failure"]]
            is_right = all(error < 1e-6 for one in results for error in one["errors"])
            return Recorded(MemoryOrder(recorded), is_right, failures)

        yield run


@pytest.mark.parametrize("late_s", LATE_S)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_has_no_race_and_no_uncertain_wait(name: str, late_s: float, record: Record) -> None:
    order, is_right, failures = record(name, late_s)
    assert not failures
    assert is_right
    assert not [str(race) for race in order.races()]
    assert not [str(wait) for wait in order.uncertain_waits()]


MUTANTS = {(name, change): mutants(name, change) for name in CASES for change in CHANGES}


def noticed(recorded: Recorded) -> set[str]:
    """Return how a changed kernel is noticed; what two atomics do to each other is no race of its data."""
    found = {
        "race": any("plain" in (one.first.semantic, one.second.semantic) for one in recorded.order.races()),
        "endless wait": any(failure.startswith("SignalTimeout") for failure in recorded.failures),
        "wrong result": not recorded.is_right,
    }
    return {how for how, is_so in found.items() if is_so}


@pytest.mark.parametrize(("name", "change"), [changed for changed, texts in MUTANTS.items() if texts])
def test_every_mutant_of_a_kernel_is_noticed(name: str, change: str, record: Record, tmp_path: Path) -> None:
    """An endless wait can hide a race, and some races need a rank that is late; so there are several runs."""
    for number, text in enumerate(MUTANTS[name, change]):
        path = tmp_path / f"{name}_{number}.py"
        path.write_text(text)
        limit_s = CHANGES[change].timeout_s
        runs = (noticed(record(name, late_s, str(path), limit_s)) for late_s in LATE_S)
        assert any(how & set(CHANGES[change].noticed) for how in runs), difference(name, text)
