"""Compare each variant with the baseline of its run: every ratio of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from harness.claims.values import NoPairsError, compare, inverse
from harness.records import Origin
from harness.report.results import ResultIndex, Value
from harness.report.spec import Pairing
from harness.report.tables import TableCell, percent, reasoned
from harness.sweep.preflight import SLOW_BF16
from harness.units import counted, human, marked, number, times

if TYPE_CHECKING:
    from harness.statistics import BreakEven, Ratio

LOOKS = {"pays": "good", "costs": "bad", "no difference": "muted", "undecided": "warn"}
SIGNS = {"pays": "▲", "costs": "▼", "no difference": "=", "undecided": "?"}
SIGNS_LEGEND = "▲ pays, ▼ costs, = no difference, ? undecided; in brackets the 95 % interval."

THROTTLED = "throttled"
"""The metric that is above 0 for a window in which the clock was lowered; such a speed-up is marked."""

COMPILE_TIME = "compile_time"
OTHERS = "others_cpu_share"
"""The metric with the share of the processors' time that other processes and the hypervisor took."""

BUSY = 0.05  # share of the processors' time above which an undecided effect says that the machine was busy
FEWEST_REPEATS = 5  # repeats that are suggested where there was one

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
    def size(self) -> str:
        """Return the speed-up of a time, the change of anything else, without its interval."""
        return self._shown(self.ratio.value)

    def _shown(self, ratio: float) -> str:
        return times(1 / ratio) if self.unit == "s" else percent(ratio - 1, True)

    @property
    def text(self) -> str:
        """Return `1.41× (1.38 … 1.44) ᵐ` for times, `−43.1 % ᵐ` for anything else."""
        brackets = ["throttled"] if self.throttled else []
        if self.has_ends:
            ends = self.ratio[1:3] if self.unit != "s" else (self.ratio.high, self.ratio.low)
            low, high = (self._shown(end).removesuffix("×") for end in ends)
            brackets.insert(0, f"{low} … {high}")
        return marked(f"{self.size} ({', '.join(brackets)})" if brackets else self.size, self.origin)

    @property
    def footnote(self) -> str:
        """What a reader must know of the samples that the ratio rests on; "" for nothing."""
        exact = self.origin == Origin.CALCULATED and not self.left_out
        return "" if exact else NO_INTERVAL.get(self.ratio.basis, self.left_out)

    @property
    def more_repeats(self) -> int | None:
        """Return how many more repeats would decide an undecided effect; None where that is not known."""
        from harness.statistics import more_repeats

        undecided = self.effect == "undecided"
        return more_repeats(self.ratio, self.noise, self.equal_within) if undecided else None

    @property
    def what_decides(self) -> str:
        """Return how many more repeats would decide an undecided effect; "" where that is not known."""
        if (more := self.more_repeats) is not None:
            return f"about {counted(more, 'more repeat')} would decide: repeats={self.ratio.processes + more}"
        comparable = self.noise is not None or self.equal_within is not None
        processes = min(one.processes for one in (self.ratio, self.noise) if one)
        if self.effect == "undecided" and comparable and processes < 2:
            return f"one repeat shows no spread between processes; try repeats={FEWEST_REPEATS}"
        return ""

    def notes(self, is_noise: bool, *more: str) -> tuple[str, ...]:
        """Return what a reader must know: of the samples, what would decide it or disturbed it, `more`."""
        undecided = []
        if self.effect == "undecided" and not is_noise:
            undecided.append(self.what_decides)
            if self.others > BUSY:
                share = f"{100 * self.others:.0f} %"
                undecided.append(f"the machine was busy: other processes took {share} of its time")
        return tuple(filter(None, (self.footnote, "; ".join(filter(None, undecided)), *more)))

    @property
    def left_out(self) -> str:
        """Which samples are in no pair; "" for none."""
        samples = counted(self.ratio.left_out, "sample")
        text = f"left out: {samples} without a counterpart in the other variant"
        return text if self.ratio.left_out else ""

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
    noise = noise_of(index, workload, pairing)
    effect = _effect(ratio, noise, pairing)
    if pairing.better == "higher":
        effect = {"pays": "costs", "costs": "pays"}.get(effect, effect)
    others = index.first(workload, variant, OTHERS)
    draws = pairing.draws  # independent draws: repeats decide nothing
    return Comparison(
        ratio,
        effect,
        value.unit,
        value.origin,
        value.cell,
        throttled=any(was_throttled(index, workload, name) for name in (variant, pairing.baseline)),
        noise=None if draws else noise,
        others=others.mean if others else 0.0,
        equal_within=None if draws or pairing.noise else pairing.equal_within,
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
    if compiled is None or base is None or comparison is None:
        return None
    pays = comparison.effect == "pays" and comparison.unit == "s"
    return break_even(_longest_s(compiled), base.median, comparison.ratio) if pays else None


def compile_cost(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> str:
    """Return what compiling took and when it has paid, for a sentence; "" where there is no break-even."""
    paid = compile_break_even(index, workload, variant, pairing)
    compiled = _compile_time(index, workload, variant)
    if paid is None or compiled is None:
        return ""
    did = "its compiled code came from a cache in" if compiled.method == "cached" else "compiling took"
    return f"{did} {human(_longest_s(compiled), 's')}, so it has paid after {steps_text(paid)}"


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
    measurements = (one for record in index.cells.get((workload, variant), []) for one in record.measurements)
    return any(max(one.samples, default=0.0) > 0 for one in measurements if one.metric == THROTTLED)


def noise_of(index: ResultIndex, workload: str, pairing: Pairing) -> Ratio | None:
    """Return the baseline over itself; None where it was not timed twice."""
    try:
        return ratio_of(index, workload, pairing.noise, pairing) if pairing.noise else None
    except NoPairsError:
        return None


def ratio_of(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> Ratio:
    """Return the variant's metric over the baseline's; raises `NoPairsError`."""
    own, base = (index.cells.get((workload, name), []) for name in (variant, pairing.baseline))
    return compare(own, base, pairing.metric, pairing.method, pairing.draws)


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


def change(index: ResultIndex, value: Value, baseline: str, draws: bool, over: bool) -> TableCell:
    """Return a cell with the change of a value against another variant; with `over` a time's speed-up."""
    pairing = Pairing(value.metric, value.method, baseline, draws=draws)
    comparison = compared(index, value.workload, value.optimization, pairing)
    if comparison is None:
        return reasoned(why_none(index, value.workload, value.optimization, pairing))
    text = comparison.text
    if not over:
        text, low, high = (percent(end - 1, True) for end in comparison.ratio[:3])
        if comparison.has_ends and low != high:
            text += f" ({low.removesuffix(' %')} … {high.removesuffix(' %')})"
        text = marked(text, value.origin)
    return TableCell(text, value.cell, notes=(comparison.left_out,) if comparison.left_out else ())


def comparison_cell(
    index: ResultIndex, workload: str, variant: str, pairing: Pairing
) -> tuple[TableCell, str]:
    """Return a variant's ratio, or why there is none, and an effect, `noise` or `unavailable`."""
    comparison = compared(index, workload, variant, pairing)
    if comparison is None:
        return reasoned(why_none(index, workload, variant, pairing)), "unavailable"
    is_noise = variant == pairing.noise
    notes = comparison.notes(is_noise, index.note(workload, variant, SLOW_BF16))
    cell = TableCell(comparison.text, comparison.cell, notes=notes)
    return cell, "noise" if is_noise else comparison.effect


def speed_up_cell(index: ResultIndex, workload: str, variant: str, pairing: Pairing) -> TableCell:
    """Return a speed-up with the sign of what it means."""
    cell, effect = comparison_cell(index, workload, variant, pairing)
    if effect not in SIGNS:
        return cell
    return cell._replace(text=f"{SIGNS[effect]} {cell.text}", look=LOOKS[effect])
