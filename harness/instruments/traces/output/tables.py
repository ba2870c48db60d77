"""The tables of a breakdown as text, for a terminal and for the page."""

from __future__ import annotations

from harness.instruments.traces.breakdown import Breakdown
from harness.instruments.traces.output.page import PageTable
from harness.instruments.traces.segments import STATE_NAMES, State

ROWS = 15
"""Rows of work that are shown."""


def tables(of: Breakdown) -> list[PageTable]:
    """Return the shares, the factors, the ranks where there are several, and the largest parts."""
    found = [share_table(of), factor_table(of)]
    return [*found, *([rank_table(of)] if len(of.ranks) > 1 else []), work_table(of)]


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


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
