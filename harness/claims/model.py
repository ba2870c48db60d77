"""Claims and verdicts, as plain data: what the paper says, which records speak of it, how they compare.

`harness.claims.load` reads claims from conf/claims, `harness.claims.judge` makes verdicts, `harness.report`
prints both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Interpretation(NamedTuple):
    """One way to interpret a claim: which of our values it speaks of. Each gets a verdict of its own."""

    name: str
    metric: str
    workload: str
    variant: str  # "" where `order` names the variants
    method: str
    text: str = ""  # in words; the value follows it
    divide_by: str = ""  # a metric of the same cell: bytes per parameter
    relative_to: str = ""  # a variant: the value is its metric over `variant`'s, in pairs
    stat: str = "median"  # of all samples: median | mean | min | max | bounds
    order: tuple[str, ...] = ()  # variants, the metric increasing from each to the next
    requires: Mapping[str, Any] = {}  # fields of the workload, with the values that the claim speaks of
    defaults: Mapping[str, Any] = {}  # the same; a record from before the field existed meets them too
    group: str = ""  # what its value has in common with others of the claim: answers show a range per group

    @property
    def variants(self) -> tuple[str, ...]:
        """Return the variants whose value it is, in increasing order where the claim gives one."""
        return self.order or (self.variant,)


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of the paper: what is quoted, by whom, and what the primary source says."""

    id: str
    suite: str
    quoted: str  # the words or the row
    quoted_by: str  # table or sentence
    value: float
    unit: str
    relation: str  # about | at_least | at_most | up_to | range | increasing
    tolerance: float  # relative: how far off still counts as the same value
    interpretations: tuple[Interpretation, ...]
    conditions: Mapping[str, str]  # those that the claim or its source states
    source_says: str
    source: str  # what is cited; "" where none is given
    provenance: str  # stated | secondary | chart | derived; "" where none is given
    caveats: tuple[str, ...] = ()
    upper: float | None = None  # of a range, which begins at `value`
    verbatim: bool = True  # `quoted` is in the source's words, not in ours
    per: str = ""  # what a value is of, where it is no total: "parameter"
    misquoted: str = ""  # how the quotation departs from its source
    not_judged: str = ""  # why no value of ours is evidence: the set-up fixes it beforehand
    formula: str = ""  # the source's own formula, by which calculated values are; "" where it has none

    @property
    def accepted(self) -> tuple[float, float]:
        """Return the band of values that count as the claim's; an end is infinite where it is open."""
        low, high = self.value * (1 - self.tolerance), (self.upper or self.value) * (1 + self.tolerance)
        if self.relation == "at_most":
            low = -math.inf
        elif self.relation == "up_to":
            low = 1.0
        elif self.relation in ("at_least", "increasing"):
            high = math.inf
        return low, high


class Difference(NamedTuple):
    """A condition of the claim under which our value was not taken."""

    condition: str  # one that the claim states; or "origin", "status"
    found: str  # "" where it was not recorded
    wanted: str  # "a | b" where the claim allows several
    variants: tuple[str, ...] = ()  # those that it concerns; () for all


class AdjacentRatio(NamedTuple):
    """The later variant's metric over the earlier one's, with the ends of the ratio's interval."""

    before: str
    after: str
    ratio: float
    low: float
    high: float
    basis: str  # see `harness.claims.values.compare`
    processes: int
    samples: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, in one interpretation, compared with the records."""

    claim: str
    interpretation: str
    outcome: str  # holds | exceeds | falls short | undecided | unavailable
    where: str  # as stated | elsewhere | "" where there is no value
    unit: str
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None  # ours over the quoted value; None for a range and for bounds
    origin: str = ""
    cell: str = ""  # id of the cell whose record decided
    differs: tuple[Difference, ...] = ()
    reason: str = ""  # why there is no value
    basis: str = ""  # samples | mean | min | max | bounds, or a ratio's: `values.compare`
    processes: int = 0
    samples: int = 0
    noise: tuple[float, float] | None = None  # of one side against itself, where our value lies in it
    steps: tuple[AdjacentRatio, ...] = ()  # of an order; ours is the smallest

    @property
    def shown(self) -> str:
        """Return the outcome; "context" for a value that was not taken under the claim's conditions."""
        return "context" if self.where == "elsewhere" else self.outcome
