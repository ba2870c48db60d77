"""Sample several things in interleaved rounds: each once per round, in random order.

Interleaving keeps drift out of the ratios: what slows one slows its neighbours of the same round. The clock
is injected, so that a test needs none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeVar

from harness.config.protocols import close
from harness.instruments.timing.core_account import OthersShare
from harness.records import IN_OTHER_PROCESS, Cell, Note, Origin, Reading, Sampling, Status
from harness.statistics import is_narrow, is_steady
from harness.sweep.executors import CellEvent, CellFinished, CellStarted, CellTurn, now
from harness.sweep.failure_classification import HARMLESS

WARM_UP_SHARE = 1.0
"""Warm-up budget relative to the sampling budget; after it sampling begins, settled or not."""


class Sample(NamedTuple):
    """One turn of one taker."""

    taker: int
    value: float
    warm_up: bool


@dataclass(slots=True)
class Rounds:
    """Takes the samples on iteration and yields each at once; the first taker is the baseline.

    A taker does its work once and returns a positive value, in any unit.
    """

    takers: Sequence[Callable[[], float]]
    sampling: Sampling
    clock: Callable[[], float]
    random: Random
    settled: bool = False  # whether every taker's values had settled before the first counted round
    narrow: bool = False  # whether every ratio to the baseline is known within the requested half-width
    warm_ups: int = 0  # rounds
    taken: int = 0  # rounds that count

    def __iter__(self) -> Iterator[Sample]:
        budget_s = self.sampling.budget_s * len(self.takers)
        begin_s, seen = self.clock(), [list[float]() for _ in self.takers]
        while not self.settled and self.clock() - begin_s < WARM_UP_SHARE * budget_s:
            yield from self._round(seen, warm_up=True)
            self.warm_ups += 1
            self.settled = all(is_steady(values) for values in seen)
        begin_s, seen = self.clock(), [list[float]() for _ in self.takers]
        while self.taken < self.sampling.rounds or not (self.narrow or self.clock() - begin_s >= budget_s):
            yield from self._round(seen, warm_up=False)
            self.taken += 1
            base, *others = seen
            self.narrow = all(is_narrow(ours, base, self.sampling.target_ci_half_width) for ours in others)

    def _round(self, seen: list[list[float]], warm_up: bool) -> Iterator[Sample]:
        for taker in self.random.sample(range(len(self.takers)), len(self.takers)):
            value = self.takers[taker]()
            seen[taker].append(value)
            yield Sample(taker, value, warm_up)


WARM_UP = "warm_up"

OTHERS = "others_cpu_share"
"""The metric with the share of the processors' time that others took, see `OthersShare`."""

Output = Reading | Note
Result = TypeVar("Result")


class WorkerHooks(NamedTuple):
    """The worker's functions that a group uses: setting a cell up, classifying failures, sending events."""

    suite: Any
    set_up: Callable[[Cell], Any]  # the session: built, applied, prepared, checked
    fault: Callable[[BaseException], tuple[Status, str]]
    emit_output: Callable[[Cell, Any], None]
    emit: Callable[[CellEvent], None]


@dataclass(slots=True)
class CellState:
    """One cell of the group: its session, the seconds of its turns, and the events of the last turn."""

    cell: Cell
    taken_s: float = 0.0
    session: Any = None
    outputs: Sequence[Output] = field(default=())


class ProcessPoisoned(Exception):
    """A cell ended in a way that makes this process unsafe for the other cells."""


def run_together(cells: Sequence[Cell], sampling: Sampling, tools: WorkerHooks) -> None:
    """Run the group; after an unsafe end of one cell, the unfinished ones are left to a fresh process."""
    try:
        timed = [member for cell in cells if _begin(member := CellState(cell), tools)]
        _take_rounds(timed, sampling, tools)
        closed = [member for member in timed if _guarded(member, tools, partial(_close, member, tools))]
        for member in closed:  # only after all are closed: those left to a fresh process go there together
            tools.emit(CellFinished(member.cell.id, Status.OK, "", member.taken_s))
    except ProcessPoisoned:
        return


def _begin(member: CellState, tools: WorkerHooks) -> bool:
    """Set the cell up and read it; return whether it is to be timed. One that is not ends here."""
    tools.emit(CellStarted(member.cell.id, now()))
    if not _guarded(member, tools, partial(_prepare, member, tools)):
        return False
    if not hasattr(tools.suite, "timed") or tools.suite.timed(member.session):
        return True
    if _guarded(member, tools, partial(_close, member, tools)):
        tools.emit(CellFinished(member.cell.id, Status.OK, "", member.taken_s))
    return False


def _prepare(member: CellState, tools: WorkerHooks) -> bool:
    member.session = tools.set_up(member.cell)
    if hasattr(tools.suite, "read_once"):
        for output in tools.suite.read_once(member.session):
            tools.emit_output(member.cell, output)
    return True


def _close(member: CellState, tools: WorkerHooks) -> bool:
    tools.emit(CellTurn(member.cell.id))
    close(tools.suite, member.session)
    member.session = None
    return True


def _take_rounds(timed: Sequence[CellState], sampling: Sampling, tools: WorkerHooks) -> None:
    if not timed:
        return
    takers = [partial(_turn, member, sampling.metric, tools) for member in timed]
    rounds = Rounds(takers, sampling, time.monotonic, Random(timed[0].cell.seed))
    others = OthersShare()
    for sample in rounds:
        member = timed[sample.taker]
        for output in member.outputs:
            tools.emit_output(member.cell, _as_warm_up(output) if sample.warm_up else output)
    share = others.share()
    for member in timed:
        if share is not None:
            tools.emit_output(member.cell, Reading(OTHERS, "1", share, Origin.MEASURED))
        for text in _remarks(rounds) if sampling.budget_s else []:
            tools.emit_output(member.cell, Note(f"{sampling.metric}: {text}"))


def _turn(member: CellState, metric: str, tools: WorkerHooks) -> float:
    """Let `member` take one sample and return the value that is compared."""
    tools.emit(CellTurn(member.cell.id))
    value = _guarded(member, tools, partial(_sample, member, metric, tools.suite))
    if value is None:
        raise ProcessPoisoned
    return value


def _sample(member: CellState, metric: str, suite: Any) -> float:
    member.outputs = tuple(suite.sample(member.session))
    values = [one.value for one in member.outputs if isinstance(one, Reading) and one.metric == metric]
    if not values or not values[0] > 0:
        raise TypeError(f"sample() yielded no positive {metric!r}, the compared metric: {member.outputs}")
    return values[0]


def _remarks(rounds: Rounds) -> Iterator[str]:
    if not rounds.settled:
        yield f"times had not settled after {rounds.warm_ups} rounds of warming up"
    if not rounds.narrow:
        yield f"after {rounds.taken} rounds the budget was spent, and not every ratio known closely"


def _as_warm_up(output: Output) -> Output:
    return output._replace(metric=f"{output.metric}/{WARM_UP}") if isinstance(output, Reading) else output


def _guarded(member: CellState, tools: WorkerHooks, work: Callable[[], Result]) -> Result | None:
    """Return what `work` returns; None where it failed and the cell was ended. Raises `ProcessPoisoned`."""
    begin_s = time.monotonic()
    try:
        return work()
    except BaseException as error:
        status, reason = tools.fault(error)
        tools.emit(CellFinished(member.cell.id, status, reason, member.taken_s + time.monotonic() - begin_s))
        if status not in HARMLESS and not getattr(error, IN_OTHER_PROCESS, False):
            raise ProcessPoisoned from error
        return None
    finally:
        member.taken_s += time.monotonic() - begin_s
