"""Compare each variant with the baseline of its run: every ratio of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from harness.claims.values import NoPairsError, compare, inverse
from harness.records import Origin
from harness.report.results import ResultIndex, Value
from harness.report.spec import Pairing
from harness.report.tables import TableCell, percent, reasoned
from harness.units import counted, human, marked, number, times

if TYPE_CHECKING:
    from harness.statistics import BreakEven, Ratio

LOOKS = {"pays": "good", "costs": "bad", "no difference": "muted", "undecided": "warn"}
SIGNS = {"pays": "▲", "costs": "▼", "no difference": "=", "undecided": "?"}
SIGNS_LEGEND = "▲ pays, ▼ costs, = no difference, ? undecided; in brackets the 95 % interval."

THROTTLED = "throttled"
"""The metric that is above 0 for a window in which the clock was lowered; such a speed-up is marked."""

COMPILE_TIME = "compile_time"
CACHED = "cached"

OTHERS = "others_cpu_share"
"""The metric with the share of the processors' time that other processes and the hypervisor took."""

BUSY = 0.05
"""Share of the processors' time above which an undecided effect says that the machine was busy."""

FEWEST_REPEATS = 5
"""Repeats that are suggested where there was one."""

NO_INTERVAL = {
    "single": "one sample on each side, so there is no interval",
    "exact": "every sample of each side is the same, so there is no interval",
    "ranges": "samples do not pair; in brackets the ends of all samples, not an interval",
}


class Comparison(NamedTuple):
    """A variant compared with the baseline on one workload: the ratio, and what the variant does."""

    ratio: Ratio  # ours over the baseline's
    effect: str  # pays | costs | no difference | undecided
    unit: str
    origin: str
    cell: str
    throttled: bool = False
    noise: Ratio | None = None  # the baseline over itself
    others: float = 0.0  # share of the processors' time that others took meanwhile
    equal_within: float | None = None  # a difference that counts as none, where no noise is measured

    @property
    def speed_up(self) -> Ratio:
        """Return the baseline's value over ours: above 1 where less is better and ours is less."""
        return inverse(self.ratio)

    @property
    def text(self) -> str:
        """Return `1.41× (1.38 … 1.44) ᵐ` for times, `−43.1 % ᵐ` for anything else."""
        note = ["throttled"] if self.throttled else []
        if self.unit == "s":
            low, high = (times(end).removesuffix("×") for end in (self.speed_up.low, self.speed_up.high))
            ends = [f"{low} … {high}"] if self.has_ends else []
            shown = times(self.speed_up.value)
        else:
            low, high = (percent(end - 1, True) for end in (self.ratio.low, self.ratio.high))
            ends = [f"{low} … {high}"] if self.has_ends else []
            shown = percent(self.ratio.value - 1, True)
        brackets = ", ".join([*ends, *note])
        return marked(f"{shown} ({brackets})" if brackets else shown, self.origin)

    @property
    def footnote(self) -> str:
        """What a reader must know of the samples that the ratio rests on; "" for nothing."""
        if self.origin == Origin.CALCULATED and not self.left_out:
            return ""
        return NO_INTERVAL.get(self.ratio.basis, self.left_out)

    @property
    def more_repeats(self) -> int | None:
        """Return how many more repeats would decide an undecided effect; None where that is not known."""
        from harness.statistics import more_repeats

        if self.effect != "undecided":
            return None
        return more_repeats(self.ratio, self.noise, self.equal_within)

    @property
    def what_decides(self) -> str:
        """Return how many more repeats would decide an undecided effect; "" where that is not known."""
        more = self.more_repeats
        if more is not None:
            return f"about {counted(more, 'more repeat')} would decide: repeats={self.ratio.processes + more}"
        comparable = self.noise is not None or self.equal_within is not None
        processes = min(one.processes for one in (self.ratio, self.noise) if one)
        if self.effect == "undecided" and comparable and processes < 2:
            return f"one repeat shows no spread between processes; try repeats={FEWEST_REPEATS}"
        return ""

    @property
    def undecided(self) -> str:
        """Return what would decide an undecided effect, and what disturbed it; "" where it is decided."""
        if self.effect != "undecided":
            return ""
        busy = f"the machine was busy: other processes took {100 * self.others:.0f} % of its time"
        return "; ".join(filter(None, [self.what_decides, busy if self.others > BUSY else ""]))

    @property
    def left_out(self) -> str:
        """Which samples are in no pair; "" for none."""
        count = self.ratio.left_out
        samples = counted(count, "sample")
        return f"left out: {samples} without a counterpart in the other variant" if count else ""

    @property
    def has_ends(self) -> bool:
        """Return whether low and high add anything to the ratio."""
        return self.ratio.basis in ("pairs", "ranges")


def compared(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> Comparison | None:
    """Return the comparison, None without one; `pairing`: of what with what."""
    value = index.get(workload, variant, pairing.metric, pairing.method)
    if value is None:
        return None
    try:
        ratio = ratio_of(index, workload, variant, pairing)
    except NoPairsError:
        return None
    throttled = any(was_throttled(index, workload, name) for name in (variant, pairing.baseline))
    noise = noise_of(index, workload, pairing)
    effect = _effect(ratio, noise, pairing)
    others = index.first(workload, variant, OTHERS)
    draws = bool(pairing.draws)  # independent draws: repeats decide nothing
    equal_within = None if draws or pairing.noise else pairing.equal_within
    return Comparison(
        ratio,
        effect,
        value.unit,
        value.origin,
        value.cell,
        throttled,
        None if draws else noise,
        others.mean if others else 0.0,
        equal_within,
    )


def compile_break_even(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> BreakEven | None:
    """Return after how many steps the variant's compile time has been saved; `pairing`: as for `compared`.

    None where it does not pay or compiles nothing. A first compilation counts where one was recorded; else
    the longest, since what follows may find its code in a cache.
    """
    from harness.statistics import break_even

    comparison = compared(index, workload, variant, pairing)
    compiled = _compile_time(index, workload, variant)
    base = index.get(workload, pairing.baseline, pairing.metric, pairing.method)
    if comparison is None or comparison.effect != "pays" or comparison.unit != "s":
        return None
    if compiled is None or base is None:
        return None
    return break_even(_longest_s(compiled), base.median, comparison.ratio)


def compile_cost(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> str:
    """Return what compiling took and when it has paid, for a sentence; "" where there is no break-even."""
    paid = compile_break_even(index, workload, variant, pairing)
    compiled = _compile_time(index, workload, variant)
    if paid is None or compiled is None:
        return ""
    took = human(_longest_s(compiled), "s")
    did = (
        f"its compiled code came from a cache in {took}"
        if compiled.method == CACHED
        else f"compiling took {took}"
    )
    return f"{did}, so it has paid after {steps_text(paid)}"


def _compile_time(index: ResultIndex, workload: str, variant: str) -> Value | None:
    place = workload, variant, COMPILE_TIME
    return index.get(*place, "cold") or index.first(*place)


def _longest_s(compiled: Value) -> float:
    """Return the seconds of a compilation: the median of those known to be cold, else the longest."""
    return compiled.median if compiled.method == "cold" else compiled.max


def steps_text(one: BreakEven) -> str:
    """Return `230 steps (180 … 410)`: two digits, since compile time is one sample."""
    steps, low, high = (number(max(1.0, float(round(end))), 2) for end in one)
    word = "step" if steps == "1" else "steps"
    return f"{steps} {word} ({low} … {high})" if low != high else f"{steps} {word}"


def _effect(ratio: Ratio, noise: Ratio | None, pairing: Pairing) -> str:
    """Return a variant's effect: compared with the noise where that was measured, else to `equal_within`."""
    from harness.statistics import effect, effect_within

    if pairing.noise:
        return effect(ratio, noise) if ratio.basis in ("pairs", "exact") else "undecided"
    return effect_within(ratio, pairing.equal_within)


def was_throttled(index: ResultIndex, workload: str, variant: str) -> bool:
    """Return whether the clock was lowered, for heat or power, in any window of the variant."""
    records = index.cells.get((workload, variant), [])
    samples = [one.samples for record in records for one in record.measurements if one.metric == THROTTLED]
    return any(value > 0 for some in samples for value in some)


def noise_of(index: ResultIndex, workload: str, pairing: Pairing) -> Ratio | None:
    """Return the baseline over itself; None where it was not timed twice."""
    try:
        return ratio_of(index, workload, pairing.noise, pairing) if pairing.noise else None
    except NoPairsError:
        return None


def ratio_of(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> Ratio:
    """Return the variant's metric over the baseline's; raises `NoPairsError`."""
    own, base = (index.cells.get((workload, name), []) for name in (variant, pairing.baseline))
    return compare(own, base, pairing.metric, pairing.method, bool(pairing.draws))


def why_none(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> tuple[str, str]:
    """Return in a word and in a sentence why there is no comparison."""
    for name in (variant, pairing.baseline):
        if index.get(workload, name, pairing.metric, pairing.method) is None:
            word, sentence = index.reason(workload, name, pairing.metric, pairing.method)
            if word == "unavailable":  # of any variant on any workload: one footnote per reason
                kept = "" if name == variant else f"{name}: "
                sentence = sentence.replace(f"{name} on {workload}: unavailable: ", kept, 1)
            return word, sentence
    try:
        ratio_of(index, workload, variant, pairing)
    except NoPairsError as reason:
        return "–", f"{variant} on {workload}: {reason}"
    return "–", f"{variant} on {workload}: nothing to compare"


def change(
    index: ResultIndex, value: Value, baseline: str, draws: bool = False, speed_up: bool = False
) -> TableCell:
    """Return a table cell with the change of a value against another variant, by the same comparison.

    `speed_up`: the speed-up in its place, where the value is a time.
    """
    pairing = Pairing(value.metric, value.method, baseline, draws=draws)
    comparison = compared(index, value.workload, value.optimization, pairing)
    if comparison is None:
        return reasoned(why_none(index, value.workload, value.optimization, pairing))
    notes = (comparison.left_out,) if comparison.left_out else ()
    if speed_up:
        return TableCell(comparison.text, value.cell, notes=notes)
    shown = percent(comparison.ratio.value - 1, True)
    low, high = (percent(end - 1, True).removesuffix(" %") for end in comparison.ratio[1:3])
    text = f"{shown} ({low} … {high})" if comparison.has_ends and low != high else shown
    return TableCell(marked(text, value.origin), value.cell, notes=notes)
