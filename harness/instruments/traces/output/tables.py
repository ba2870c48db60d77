"""The tables of a breakdown as text, for a terminal and for the page."""

from __future__ import annotations

import numpy as np

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.communication.evidence import BY_NAME, HOW
from harness.instruments.traces.communication.names import recognized
from harness.instruments.traces.output.page import PageTable
from harness.instruments.traces.segments import STATE_NAMES, State

ROWS = 15
"""Rows of work that are shown."""


def tables(of: Breakdown) -> list[PageTable]:
    """Return the shares, the factors, the ranks where there are several, and the largest parts.

    Names are whole. Communication on a device has a table of its kernels.
    """
    found = [share_table(of), factor_table(of)]
    if len(of.ranks) > 1:
        found.append(rank_table(of))
    found.append(work_table(of))
    return [*found, *([communication_table(of)] if _communicates(of) else [])]


def share_table(of: Breakdown) -> PageTable:
    """Return the shares of the step; they sum to it."""
    rows = [(share.name, _ms(share.mean_s), _percent(share.mean_s / of.step_s)) for share in of.shares]
    return PageTable("Shares of the step", ("Share", "ms", "%"), [*rows, ("sum", _ms(of.step_s), "100.0")])


def factor_table(of: Breakdown) -> PageTable:
    """Return the factors; each row has the time up to and with its factor."""
    rows = [(of.factors.base_name, "", _ms(of.factors.base_s))]
    rows += [(one.name, f"× {one.value:.3f}", _ms(one.time_s)) for one in of.factors.factors]
    return PageTable("Factors to the observed time", ("Factor", "", "ms"), rows)


def rank_table(of: Breakdown) -> PageTable:
    """Return the states of each rank in percent of its step."""
    states = [state for state in State if of.share_of(state) > 0]
    rows = [
        (f"rank {one.rank}", _ms(one.step_s), *(_percent(one.share_of(state)) for state in states))
        for one in of.ranks
    ]
    return PageTable("Ranks", ("Rank", "ms", *(f"{STATE_NAMES[state]}, %" for state in states)), rows)


def work_table(of: Breakdown) -> PageTable:
    """Return the largest parts by phase, layer and operation; idle time precedes its operation."""
    rows = [
        (
            " ".join(filter(None, (one.phase, one.layer, one.operation))) or "after the last kernel",
            STATE_NAMES[one.state],
            _percent(one.mean_s / of.step_s),
        )
        for one in of.work[:ROWS]
    ]
    return PageTable("Largest parts", ("Work", "State", "%"), rows)


def communication_table(of: Breakdown) -> PageTable:
    """Return the kernels of the first rank that communicate, and how each was recognized.

    Their times are sums of durations: kernels that run at the same time count each.
    """
    rank = of.ranks[0]
    trace, how = rank.activity.trace, rank.activity.on_device.recognized_by
    edges = np.array([rank.activity.steps[i][1:3] for i in rank.chosen], np.int64)
    events = np.flatnonzero(how > 0)
    step = np.searchsorted(edges[:, 0], trace.start_ns[events], side="right") - 1
    events = events[(step >= 0) & (trace.start_ns[events] < edges[np.maximum(step, 0), 1])]
    times: dict[tuple[str, str], list[int]] = {}
    for event in events.tolist():
        key = trace.name(event), _known_by(rank.activity, event)
        times.setdefault(key, []).append(int(trace.end_ns[event] - trace.start_ns[event]))
    rows = [
        (name, known, f"{len(one) / len(rank.chosen):.4g}", _ms(sum(one) / 1e9 / len(rank.chosen)))
        for (name, known), one in sorted(times.items(), key=lambda item: -sum(item[1]))[:ROWS]
    ]
    of_rank = f", rank {rank.rank}" if len(of.ranks) > 1 else ""
    return PageTable(f"Communication on the device{of_rank}", ("Kernel", "Known by", "per step", "ms"), rows)


def _known_by(activity: Activity, event: int) -> str:
    """Return by what a kernel was recognized, and whether it computes, too."""
    how = int(activity.on_device.recognized_by[event])
    family = recognized(activity.trace.name(event)).family if how == BY_NAME else None
    known = f"name, {family.library}" if family else HOW[how]
    return f"{known} (both)" if activity.fused[event] else known


def _communicates(of: Breakdown) -> bool:
    return bool(of.ranks[0].activity.on_device.under_way.any())


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
