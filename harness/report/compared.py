"""One variant held against the baseline of its run, pair by pair: what every table of speed-ups is made
of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.paired_ratio import NoPairsError, compare, inverse
from harness.report.frame import Frame
from harness.units import marked, times

if TYPE_CHECKING:
    from harness.statistics import Ratio

LOOKS = {"pays": "good", "costs": "bad", "no difference": "muted", "undecided": "warn"}
SIGNS = {"pays": "▲", "costs": "▼", "no difference": "=", "undecided": "?"}
SIGNS_LEGEND = "▲ pays, ▼ costs, = no difference, ? undecided; in brackets the 95 % interval."

THROTTLED = "throttled"
"""The metric that is above 0 for a window in which the clock was held down; such a speed-up is marked."""


class Compared(NamedTuple):
    """A variant's speed-up on one workload, above 1 where it is faster, and what the variant does."""

    speed_up: Ratio
    word: str  # pays | costs | no difference | undecided
    origin: str
    cell: str
    throttled: bool = False

    @property
    def text(self) -> str:
        """`1.41× (1.38 … 1.44) ᵐ`."""
        low, high = (times(end).removesuffix("×") for end in (self.speed_up.low, self.speed_up.high))
        note = ", throttled" if self.throttled else ""
        return marked(f"{times(self.speed_up.value)} ({low} … {high}{note})", self.origin)


def compared(frame: Frame, workload: str, variant: str, fields: Mapping[str, Any]) -> Compared | None:
    """`fields`: metric, method, baseline, noise and draws of a block; None where nothing compares."""
    from harness.statistics import effect

    figure = frame.get(workload, variant, fields["metric"], fields["method"])
    if figure is None:
        return None
    try:
        ratio = ratio_of(frame, workload, variant, fields)
    except NoPairsError:
        return None
    word = effect(ratio, noise_of(frame, workload, fields))
    held_down = any(was_throttled(frame, workload, name) for name in (variant, fields["baseline"]))
    return Compared(inverse(ratio), word, figure.origin, figure.cell, held_down)


def was_throttled(frame: Frame, workload: str, variant: str) -> bool:
    """Whether the clock was held down, for heat or power, in any window of the variant."""
    records = frame.cells.get((workload, variant), [])
    samples = [one.samples for record in records for one in record.measurements if one.metric == THROTTLED]
    return any(value > 0 for some in samples for value in some)


def noise_of(frame: Frame, workload: str, fields: Mapping[str, Any]) -> Ratio | None:
    """The baseline over itself; None where it was not timed twice."""
    try:
        return ratio_of(frame, workload, fields["noise"], fields)
    except NoPairsError:
        return None


def ratio_of(frame: Frame, workload: str, variant: str, fields: Mapping[str, Any]) -> Ratio:
    """The variant's figure over the baseline's, pair by pair; raises `NoPairsError`."""
    own, base = (frame.cells.get((workload, name), []) for name in (variant, fields["baseline"]))
    return compare(own, base, fields["metric"], fields["method"], fields["draws"])


def why_none(frame: Frame, workload: str, variant: str, fields: Mapping[str, Any]) -> tuple[str, str]:
    """In a word and in a sentence, why there is no speed-up."""
    for name in (variant, fields["baseline"]):
        if frame.get(workload, name, fields["metric"], fields["method"]) is None:
            word, sentence = frame.reason(workload, name, fields["metric"], fields["method"])
            if word == "unavailable":  # on every workload for the same reason: one footnote
                sentence = sentence.replace(f"{name} on {workload}: unavailable: ", f"{name}: ", 1)
            return word, sentence
    try:
        ratio_of(frame, workload, variant, fields)
    except NoPairsError as reason:
        return "–", f"{variant} on {workload}: {reason}"
    return "–", f"{variant} on {workload}: nothing to compare"
