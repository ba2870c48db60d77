"""Say in one sentence where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.causes import LEAST_SHARE, Cause
from harness.instruments.traces.segments import State


class SentencePart(NamedTuple):
    """One part of the sentence: a share of the step from 0 to 1, its state, and words for it."""

    share: float
    state: State
    words: str


def sentence(
    of: Breakdown,
    named: Sequence[Cause] = (),
    least_share: float = LEAST_SHARE,
) -> str:
    """Return where the time goes, largest first, from a share of `least_share` on.

    A rank is named as waited for only where `named` has it.
    """
    every = parts(of, named)
    shown = [part for part in every if part.share >= least_share]
    rest = 1 - sum(part.share for part in shown)
    texts = [f"{100 * part.share:.0f} % {part.words}" for part in shown]
    if rest >= 0.005:
        texts.append(f"{100 * rest:.0f} % other")
    slow = [cause for cause in named if cause.rank >= 0 and cause.state != State.WAITING_FOR_RANK]
    why = [f"{cause.name} by {100 * cause.share:.0f} % of the step" for cause in slow]
    return "; ".join(filter(None, [", ".join(texts), ", ".join(why)])) + "."


def parts(of: Breakdown, named: Sequence[Cause] = ()) -> list[SentencePart]:
    """Return the parts of a step, largest first; they sum to 1."""
    waited = {f"rank {cause.rank}" for cause in named if cause.state == State.WAITING_FOR_RANK}
    table: dict[tuple[State, str], float] = {}
    for share in of.shares:
        key = share.state, _words(of, share.state, share.detail, waited)
        if share.state == State.CALLING:
            key = State.PREPARING, "launch gaps"
        table[key] = table.get(key, 0.0) + share.mean_s / of.step_s
    found = [SentencePart(share, state, words) for (state, words), share in table.items()]
    return sorted(found, key=lambda part: -part.share)


def _words(of: Breakdown, state: State, detail: str, waited: set[str]) -> str:
    if state == State.COMMUNICATION:
        return f"exposed {_collective(of, detail)}"
    if state == State.WAITING_FOR_RANK:
        return f"waiting for {detail}" if detail in waited else "waiting of the ranks for one another"
    return {
        State.COMPUTING: "computing",
        State.COPYING: "copies",
        State.PREPARING: "launch gaps",
        State.CALLING: "launch gaps",
        State.WAITING_FOR_DATA: "waiting for data",
        State.IDLE: "idle for an unknown reason",
    }[state]


def _collective(of: Breakdown, detail: str) -> str:
    """Return a collective in words: what calls it, and whether it crosses nodes, where the trace shows it."""
    operation, _, _ = detail.partition(" of ")
    trace = of.ranks[0].activity.trace
    caller = ""
    if (
        operation in ("all_gather", "reduce_scatter")
        and trace.named(r"^FSDP::|FullyShardedDataParallel").any()
    ):
        caller = " of FSDP"
    elif operation == "all_reduce" and trace.named("^DistributedDataParallel").any():
        caller = " of DDP"
    between = " between nodes" if len(_hosts(of)) > 1 else ""
    return operation.replace("_", "-") + caller + between


def _hosts(of: Breakdown) -> set[str]:
    """Return the hosts that the traces name."""
    return {one.activity.trace.host for one in of.ranks} - {""}
