"""The memory model of kernels on symmetric memory: litmus tests, and a mutation test of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_mutants import CHANGES, called, difference, in_kernels, mutants, source_of
from overlap_on_rank import pool_of
from symmetric_on_rank import CASES
from triton.runtime.interpreter import InterpreterBuilder

from harness.records import Unavailable
from suites.overlap.symmetric.heap import Heaps, SymmetricHeap
from suites.overlap.symmetric.memory_order import MemoryOrder
from suites.overlap.symmetric.memory_trace import HOST, SPACE_B, Access, traced

RANKS = 3
LATE_S = (0.05, -0.05)
DATA, FLAG = 0, 64  # places in rank 0's heap


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


@pytest.mark.parametrize("weak", [{}, {"release": "relaxed"}, {"acquire": "relaxed"}])
def test_a_message_is_passed_by_a_release_and_an_acquire_and_may_be_missed_without_one(weak):
    order = order_of(*passing(**weak))
    assert not order.uncertain_waits()
    assert racing(order) == ({(0, 3)} if weak else set())
    assert visible_values(order, 3) == ({0, 1} if weak else {1})


@pytest.mark.parametrize("kind", ["store", "exchange"])
@pytest.mark.parametrize("semantic", ["plain", "relaxed", "acq_rel"])
def test_each_of_two_ranks_may_miss_what_the_other_stores_before_it_loads(semantic, kind):
    """Store buffering: even releases and acquires leave it open, and atomics do not race."""
    released = {"acq_rel": "release"}.get(semantic, semantic)
    acquired = {"acq_rel": "acquire"}.get(semantic, semantic)
    kind = "store" if semantic == "plain" else kind
    order = order_of(
        step(0, kind, DATA, released),
        step(0, "load", FLAG, acquired),
        step(1, kind, FLAG, released),
        step(1, "load", DATA, acquired),
    )
    assert visible_values(order, 1) == visible_values(order, 3) == {0, 1}
    assert racing(order) == ({(1, 2), (0, 3)} if semantic == "plain" else set())


BETWEEN: dict[str, tuple[list[Access], bool]] = {
    "an update": ([step(1, "update", FLAG, "relaxed", 2)], True),
    "an update after an unordered exchange": (
        [step(1, "exchange", FLAG, "relaxed", 5), step(1, "update", FLAG, "relaxed", 2)], False,
    ),
    "an exchange that comes after it in this execution": ([step(1, "exchange", FLAG, "relaxed", 2)], False),
    "an exchange that always comes after it": (
        [step(1, "poll", FLAG, "acquire"), step(1, "exchange", FLAG, "relaxed", 2)], True,
    ),
    "a store": ([step(1, "poll", FLAG, "acquire"), step(1, "store", FLAG, "relaxed", 2)], False),
    "a store that releases": ([step(1, "poll", FLAG, "acquire"), step(1, "store", FLAG, "release", 2)], True),
    "a release by who has not acquired": (
        [step(1, "poll", FLAG, "relaxed"), step(1, "store", FLAG, "release", 2)], False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
def test_a_release_sequence_goes_on_through_updates(between):
    steps, published = BETWEEN[between]
    order = order_of(
        step(0, "store", DATA),
        step(0, "exchange", FLAG, "release"),
        *steps,
        step(2, "poll", FLAG, "acquire", 2),
        step(2, "load", DATA),
    )
    assert racing(order) == (set() if published else {(0, len(steps) + 3)})


def test_programs_of_one_launch_are_not_ordered_and_launches_are():
    order = order_of(
        step(0, "store", DATA, program=0),
        step(0, "load", DATA, program=1),
        step(0, "load", DATA, launch=1, program=1),
        step(0, "store", DATA, launch=2, program=2),
    )
    assert racing(order) == {(0, 1)}


def test_what_the_host_does_belongs_to_the_stream_of_its_rank_alone():
    order = order_of(
        step(0, "store", DATA),
        step(0, "load", DATA, launch=1, program=HOST),
        step(0, "store", DATA, launch=1),
        step(1, "load", DATA, program=HOST),
    )
    assert racing(order) == {(0, 3), (2, 3)}


@pytest.mark.parametrize(
    ("other", "races"),
    [
        (step(1, "poll", FLAG, "acquire"), False),
        (step(1, "poll", FLAG, "acquire", scope="gpu"), True),
        (step(1, "load", FLAG), True),
        (step(1, "load", FLAG, "relaxed", size_B=8), True),
        (step(1, "load", FLAG + 4, "relaxed"), False),
        (step(0, "poll", FLAG, "acquire", scope="gpu", program=1), False),
    ],
)
def test_atomics_race_if_they_share_some_bytes_or_if_a_scope_leaves_a_rank_out(other, races):
    assert racing(order_of(step(0, "exchange", FLAG, "release"), other)) == ({(0, 1)} if races else set())


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


KINDS = {
    "plain": ("load", "store"),
    "relaxed": ("load", "store", "update"),
    "acquire": ("load",),
    "release": ("store", "update"),
    "acq_rel": ("update",),
}
STEPS = st.lists(
    st.sampled_from([(kind, semantic) for semantic, kinds in KINDS.items() for kind in kinds]).flatmap(
        lambda what: st.builds(
            step,
            st.integers(0, 2),
            st.just(what[0]),
            st.sampled_from([DATA, FLAG]),
            st.just(what[1]),
            program=st.integers(0, 1),
        )
    ),
    min_size=2,
    max_size=14,
)


@given(STEPS)
@settings(max_examples=75, deadline=None)
def test_vector_clocks_find_what_reachability_finds(steps: list[Access]):
    count = len(steps)
    reach = numpy.zeros((count, count), dtype=bool)
    for j, second in enumerate(steps):
        for i, first in enumerate(steps[:j]):
            reach[i, j] = first[:3] == second[:3]
        if second.semantic in ("acquire", "acq_rel"):
            behind = [i for i in range(j) if steps[i].ranges == second.ranges and steps[i].kind != "load"]
            for i in reversed([i for i in behind if steps[i].semantic != "plain"]):
                reach[i, j] |= steps[i].semantic in ("release", "acq_rel")
                if steps[i].kind != "update":
                    break
    for through in range(count):
        reach |= reach[:, through, None] & reach[None, through]
    unordered = {
        (i, j)
        for j, second in enumerate(steps)
        for i, first in enumerate(steps[:j])
        if first.ranges == second.ranges
        and {first.kind, second.kind} != {"load"}
        and "plain" in (first.semantic, second.semantic)
        and not reach[i, j]
    }
    assert racing(order_of(*steps)) == unordered


@triton.jit
def two_programs(target, source, heaps, faults, rank, RANKS: tl.constexpr, TIMEOUT_NS: tl.constexpr):
    """Program 0 stores four elements; program 1 loads two of these, and one more."""
    here = tl.arange(0, 4)
    if tl.program_id(0) == 0:
        tl.store(target + here, tl.load(source + here))
    else:
        tl.store(source + 8 + here, tl.load(target + 2 + here, mask=here < 2))


def alone(folder: Path, act: Callable[[SymmetricHeap], None]) -> list[Access]:
    memory = torch.zeros(4096, dtype=torch.uint8)
    heap = SymmetricHeap(Heaps(memory, torch.tensor([memory.data_ptr()])), 0)
    with traced(heap, folder / "number") as accesses:
        act(heap)
    return accesses


def test_a_race_of_two_programs_is_reported_with_its_lines_and_bytes(tmp_path):
    ordinary = torch.zeros(16, dtype=torch.int32)

    def act(heap: SymmetricHeap) -> None:
        heap.launch(two_programs, (2,), heap.signals(16)[2:], ordinary)

    recorded = alone(tmp_path, act)
    assert [(one.program, one.kind) for one in recorded] == [
        (0, "load"), (0, "store"), (1, "load"), (1, "store"),
    ]  # fmt: skip
    assert [one.ranges[0][0] // SPACE_B for one in recorded] == [1, 0, 0, 1]
    (race,) = MemoryOrder([recorded]).races()
    assert race.ranges == [(16, 24)]
    lines = Path(__file__).read_text().splitlines()
    for access, text in ((race.first, "target + here, tl"), (race.second, "target + 2")):
        file, _, line = access.source.partition(":")
        assert file == Path(__file__).name
        assert text in lines[int(line) - 1]


def test_what_pytorch_does_between_launches_is_recorded_as_the_host_does_it(tmp_path):
    ordinary = torch.zeros(16, dtype=torch.int32)

    def act(heap: SymmetricHeap) -> None:
        signals = heap.signals(16)
        signals.view(4, 4)[:, 1].fill_(3)
        heap.launch(two_programs, (1,), signals, ordinary)
        ordinary.add_(signals[4])

    stored, *_, loaded = alone(tmp_path, act)
    assert (stored.launch, stored.program, stored.kind) == (0, HOST, "store")
    assert stored.ranges == [(at, at + 4) for at in (4, 20, 36, 52)]
    assert (loaded.launch, loaded.program, loaded.kind, loaded.ranges) == (1, HOST, "load", [(16, 20)])
    assert stored.source.startswith(Path(__file__).name)


@triton.jit
def atomics(words, heaps, faults, rank, RANKS: tl.constexpr, TIMEOUT_NS: tl.constexpr):
    """Perform every kind of atomic, some on several elements, of which one is masked."""
    here = tl.arange(0, 4)
    tl.atomic_store(words + here, here + 1, mask=here < 3, sem="release", scope="sys")
    tl.atomic_load(words + 1, sem="relaxed", scope="sys")
    tl.atomic_add(words + here, here, mask=here > 2)
    tl.atomic_xchg(words, 5, sem="release", scope="sys")
    tl.atomic_cas(words, 5, 6, sem="acquire", scope="gpu")
    tl.atomic_cas(words, 5, 7, sem="acq_rel", scope="sys")
    tl.atomic_poll(words + here, tl.where(here == 0, 6, here + 1 - here // 3), scope="sys", timeout_ns=0)


def test_every_atomic_is_recorded_per_element_with_what_it_leaves(tmp_path):
    recorded = alone(tmp_path, lambda heap: heap.launch(atomics, (1,), heap.signals(4)))
    what = [(*one[3:6], one.ranges[0][0] // 4, one.number, one.value) for one in recorded]
    assert what == [
        ("store", "release", "sys", 0, 1, 1), ("store", "release", "sys", 1, 1, 2),
        ("store", "release", "sys", 2, 1, 3), ("load", "relaxed", "sys", 1, 2, 2),
        ("update", "acq_rel", "gpu", 3, 3, 3), ("exchange", "release", "sys", 0, 4, 5),
        ("update", "acquire", "gpu", 0, 5, 6), ("load", "acq_rel", "sys", 0, 6, 6),
        *(("poll", "acquire", "sys", i, 7, value) for i, value in enumerate((6, 2, 3, 3))),
    ]  # fmt: skip


def test_an_interpreter_without_an_operation_to_record_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.delattr(InterpreterBuilder, "create_atomic_poll")
    with pytest.raises(Unavailable, match=r"needs create_atomic_poll .* of Triton 3\.9; this is"):
        alone(tmp_path, lambda heap: None)
    assert not list(tmp_path.iterdir())


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


def test_every_kernel_is_changed_at_every_wait_and_signal():
    for name in CASES:
        calls = [called(node) for node in in_kernels(source_of(name))]
        assert len(MUTANTS[name, "dropped wait"]) == len(MUTANTS[name, "relaxed wait"]) == calls.count("wait")
        assert len(MUTANTS[name, "dropped notify"]) == calls.count("notify")
        assert len(MUTANTS[name, "relaxed notify"]) == calls.count("notify")
        words = [len(MUTANTS[name, change]) for change in CHANGES if "words" in change]
        assert calls.count("wait") or all(words), name


def test_a_race_is_found_whichever_rank_is_late(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text(MUTANTS["ag_gemm", "relaxed wait"][-1])
    found = [record("ag_gemm", late_s, str(path)).order.races() for late_s in LATE_S]
    first, second = ({(one.first.source, one.second.source) for one in races} for races in found)
    assert {frozenset(one) for one in first} == {frozenset(one) for one in second} != set()
