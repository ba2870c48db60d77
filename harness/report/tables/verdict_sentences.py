"""A verdict -> the sentence that an engineer reads."""

from __future__ import annotations

from collections.abc import Sequence

from harness.claims.judge import NOT_JUDGED
from harness.claims.model import AdjacentRatio, Claim, Difference, Interpretation, Verdict
from harness.claims.monotonic import failing_steps, undecided_steps
from harness.units import counted, human

BANDS = {"holds": "inside", "exceeds": "above", "falls short": "below"}

STATS = {"min": "the minimum", "max": "the maximum", "mean": "the mean"}


def sentence(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    """Return our value, its origin, how it compares with the quoted one, and the outcome."""
    if verdict.ours is None or verdict.low is None or verdict.high is None:
        return f"No value for “{interpretation.name}”: {verdict.reason}."
    if verdict.steps:
        return _order_sentence(claim, interpretation, verdict)
    shown = "x" if interpretation.relative_to else None
    per = f" per {interpretation.divide_by.removesuffix('s')}" if interpretation.divide_by else ""
    ours = human(verdict.ours, claim.unit, shown) + per
    low, high = (human(end, claim.unit, shown) for end in (verdict.low, verdict.high))
    if verdict.basis == "bounds":
        ours = f"between {low} and {high}{per}"
    elif verdict.low != verdict.high and not (interpretation.relative_to and low == high):
        ours += f", from {low} to {high}"
    origin = f"{verdict.origin}, {basis}" if (basis := _basis(verdict)) else verdict.origin
    quoted = _quoted(claim, shown) + per
    bounded = f"against {quoted}" if claim.upper is None else quoted
    exact = verdict.ratio is not None and claim.relation == "about"
    compared = f"{verdict.ratio:.2f} of the {quoted}" if exact else bounded
    end = _end(claim, interpretation, verdict)
    return f"{interpretation.text} {ours} ({origin}), {compared} quoted: {end}{_noise(verdict)}."


def difference_text(difference: Difference) -> str:
    """Return one condition that differs, in words."""
    condition, found, wanted, variants = difference
    allowed = " or ".join(one.replace("*", " ").strip() for one in wanted.split(" | "))
    if condition == "origin":
        text = f"{found}, not {wanted}"
    elif condition == NOT_JUDGED:
        text = found
    elif condition == "status":
        text = f"the cell ended as {found.replace('_', ' ')}"
    elif not found:
        text = f"{condition} not recorded, the claim has {allowed}"
    else:
        text = f"{condition} {found}, the claim has {allowed}"
    return f"{text} ({', '.join(variants)})" if variants else text


def _quoted(claim: Claim, shown: str | None) -> str:
    value = human(claim.value, claim.unit, shown)
    if claim.upper is not None:
        return f"against a range of {value} to {human(claim.upper, claim.unit, shown)}"
    return {"at_least": "at least ", "at_most": "at most ", "up_to": "up to "}.get(claim.relation, "") + value


def _basis(verdict: Verdict) -> str:
    """Return what the value rests on, in words."""
    if verdict.basis in STATS:
        interval = " and its 95 % interval" if verdict.basis == "mean" else ""
        return f"{STATS[verdict.basis]} of {counted(verdict.samples, 'sample')}{interval}"
    return "" if verdict.basis in ("samples", "bounds") else _rounds(verdict.processes, verdict.samples)


def _rounds(processes: int, rounds: int) -> str:
    return f"{counted(processes, 'process', 'processes')}, {counted(rounds, 'round')}"


def _end(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    bounded = claim.relation in ("at_least", "at_most")
    interval = interpretation.relative_to or interpretation.stat == "mean"
    spread = "the interval lies" if interval else "the samples lie"
    spread = "the bounds lie" if interpretation.stat == "bounds" else spread
    if verdict.shown == "context" and verdict.outcome in BANDS:
        return f"{BANDS[verdict.outcome]} the accepted band, as context"
    return {
        "holds": "the claim holds",
        "exceeds": "the claim does not hold" if bounded else "the claim understates it",
        "falls short": "the claim does not hold" if bounded else "the claim overstates it",
        "undecided": f"{spread} partly inside and partly outside the accepted band",
    }[verdict.outcome]


def _noise(verdict: Verdict) -> str:
    """Return the warning that our value is within the run's noise; "" where it is not."""
    if verdict.noise is None:
        return ""
    low, high = (_times(end) for end in verdict.noise)
    least = min(verdict.steps, key=lambda step: step.ratio, default=None)
    what = f"the step from {least.before} to {least.after}" if least else "it"
    return f"; {what} lies within this run's noise ({low} to {high})"


def _order_sentence(claim: Claim, interpretation: Interpretation, verdict: Verdict) -> str:
    """Return every step in order, their origin, and which of them decides."""
    verb = "increases" if verdict.outcome == "holds" else "goes"
    steps = ", ".join(f"{_shown(step)} to {step.after}" for step in verdict.steps)
    rests_on = dict.fromkeys(text for step in verdict.steps if (text := _step_basis(step)))
    origin = f"{verdict.origin}, {' or '.join(rests_on)}" if rests_on else verdict.origin
    asked = f", where each step is to be at least {_times(claim.value)}" if claim.value > 1 else ""
    end = _order_end(claim, verdict)
    start = f"{interpretation.text} {verb} from {interpretation.order[0]} by {steps}"
    return f"{start} ({origin}){asked}: {end}{_noise(verdict)}."


def _order_end(claim: Claim, verdict: Verdict) -> str:
    steps, context = verdict.steps, verdict.shown == "context"
    if verdict.outcome == "holds":
        return "each step is an increase, as context" if context else "the claim holds"
    if verdict.outcome == "falls short":
        enough = " enough" if claim.value > 1 else ""
        failing = f"no increase{enough} {_named(failing_steps(claim, steps))}"
        return f"{failing}, as context" if context else f"{failing}, so the claim does not hold"
    undecided = undecided_steps(claim, steps)
    paired = all(step.basis == "pairs" for step in undecided)
    spread = "the interval lies" if paired else "the samples lie"
    return f"{_named(undecided)} {spread} on both sides of what counts as an increase"


def _step_basis(step: AdjacentRatio) -> str:
    if step.basis == "pairs":
        return _rounds(step.processes, step.samples)
    return "ranges of all samples" if step.basis == "ranges" else ""


def _named(steps: Sequence[AdjacentRatio]) -> str:
    return " and ".join(f"from {step.before} to {step.after}" for step in steps)


def _shown(step: AdjacentRatio) -> str:
    low, high = _times(step.low), _times(step.high)
    return _times(step.ratio) + (f" ({low} to {high})" if low != high else "")


def _times(ratio: float) -> str:
    return human(ratio, "1", "x")
