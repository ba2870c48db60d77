"""Say in one sentence where the time of a step goes, and which technique addresses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.causes import LEAST_SHARE, Cause
from harness.instruments.traces.segments import State

ORDINALS = ("first", "second", "third", "fourth", "fifth")

TECHNIQUES: Sequence[tuple[State, str, str, str]] = (
    (State.COMMUNICATION, "all-gather", "hybrid_shard", "hybrid sharding"),
    (State.COMMUNICATION, "reduce-scatter", "hybrid_shard", "hybrid sharding"),
    (State.COMMUNICATION, "all-reduce", "gradient_accumulation", "gradient accumulation"),
    (State.PREPARING, "", "torch_compile", "torch.compile"),
    (State.WAITING_FOR_DATA, "", "disaggregated", "a loader in other processes"),
)
"""State, what its part mentions, the technique that addresses it in this project, and how people call it."""


MOST = 0.5
"""A technique hides most of a part if in each comparison it hid at least this share of the network's time."""


class TechniqueGain(NamedTuple):
    """What a technique gained elsewhere, in words, and the least share that it hid of the network's time.

    `hidden` is None where a comparison does not show it.
    """

    words: str
    hidden: float | None = None


class SentencePart(NamedTuple):
    """One part of the sentence: a share of the step from 0 to 1, its state, and words for it."""

    share: float
    state: State
    words: str


def sentence(
    of: Breakdown,
    named: Sequence[Cause] = (),
    gains: Mapping[str, TechniqueGain] | None = None,
    least_share: float = LEAST_SHARE,
) -> str:
    """Return where the time goes, largest first, from a share of `least_share` on.

    A rank is named as waited for only where `named` has it. `gains` has what a technique gained elsewhere, by
    the technique's name.
    """
    every = parts(of, named)
    shown = [part for part in every if part.share >= least_share]
    rest = 1 - sum(part.share for part in shown)
    texts = [f"{100 * part.share:.0f} % {part.words}" for part in shown]
    if rest >= 0.005:
        texts.append(f"{100 * rest:.0f} % other")
    advice = _advice(shown, gains or {}, _hosts(of))
    slow = [cause for cause in named if cause.rank >= 0 and cause.state != State.WAITING_FOR_RANK]
    why = [f"{cause.name} by {100 * cause.share:.0f} % of the step" for cause in slow]
    return "; ".join(filter(None, [", ".join(texts), ", ".join(why), advice])) + "."


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


def _advice(shown: Sequence[SentencePart], gains: Mapping[str, TechniqueGain], hosts: set[str]) -> str:
    """Return which technique addresses the largest part that one addresses.

    Hybrid sharding does not where all ranks are on one host.
    """
    for i, part in enumerate(shown):
        for state, mentioned, technique, called in TECHNIQUES:
            if technique == "hybrid_shard" and len(hosts) == 1:
                continue
            if part.state == state and mentioned in part.words:
                which = f"the {ORDINALS[i]} part" if i < len(ORDINALS) else f"the {part.words}"
                gain = gains.get(technique)
                most = gain is not None and gain.hidden is not None and gain.hidden >= MOST
                measured = f" ({gain.words})" if gain else ""
                return f"{called} {'would hide most of' if most else 'addresses'} {which}{measured}"
    return ""
