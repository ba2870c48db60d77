"""How far predictions of training steps are off, as readings of one method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.records import Origin, Reading
from suites.step_time.pairs import SWITCHES, Predictions, of_ratios, pairs_of
from suites.training.step_time.published.steps import PublishedStep, ran

DIFFER = 1.05
"""Ratio of two steps from which on the sign of their difference counts."""


def readings(method: str, steps: Sequence[PublishedStep], said: Predictions) -> Iterator[Reading]:
    """Yield the errors of each step, and shares; nothing where nothing can be compared."""
    for metric, value in values(steps, said):
        unit = "s" if metric.startswith("step_time") else "1"
        yield Reading(metric, unit, value, Origin.CALCULATED, method)


def values(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield each metric with a value, several of those that each step has."""
    yield from of_seconds(steps, said)
    yield from of_memory(steps, said)
    yield from of_choices(steps, said)
    yield from of_signs(steps, said)
    yield from of_ratios(steps, said)


def of_seconds(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield the error of each step that ran, its size at nine in ten, and what the intervals hold."""
    asked = [one for one in steps if ran(one)]
    known = [one for one in asked if said.get(one["id"], {}).get("step_s")]
    if not known:
        return
    errors = [said[one["id"]]["step_s"] / one["published"]["step_s"] - 1 for one in known]
    yield "steps_predicted", len(known)
    yield "steps_not_known", len(asked) - len(known)
    for error in errors:
        yield "relative_error", error
        yield "absolute_error", abs(error)
    yield "absolute_error_at_90", sorted(map(abs, errors))[min(len(errors) - 1, int(0.9 * len(errors)))]
    spans = [
        (said[one["id"]], one["published"]["step_s"]) for one in known if "step_s_low" in said[one["id"]]
    ]
    for one, seconds in spans:
        yield "inside_interval", float(one["step_s_low"] <= seconds <= one["step_s_high"])
        yield "interval_half_width", (one["step_s_high"] - one["step_s_low"]) / 2 / one["step_s"]


def of_memory(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield whether each step that ran is said to fit, and rightly, of sources that published failures."""
    for one in steps:
        if ran(one) and "fits" in said.get(one["id"], {}):
            yield "ran_and_fits", float(said[one["id"]]["fits"])
    failing = {one["source"] for one in steps if one["kind"] == "step" and not one["published"]["runs"]}
    asked = [one for one in steps if one["kind"] == "step" and one["source"] in failing]
    told = [(one["published"]["runs"], said.get(one["id"], {}).get("fits")) for one in asked]
    known = [(runs, bool(fits)) for runs, fits in told if fits is not None]
    for runs, fits in known:
        yield "fits_rightly", float(runs == fits)
    if known:
        yield "said_to_fit_and_failed", sum(fits and not runs for runs, fits in known)
        yield "said_to_fail_and_ran", sum(runs and not fits for runs, fits in known)


def of_choices(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield the rate of each chosen layout over the best one's; 0 for one that does not run."""
    for one in steps:
        if one["kind"] != "choose" or said.get(one["id"], {}).get("index") is None:
            continue
        rates = one["published"]["tokens_s"]
        yield (
            "chosen_over_best",
            (rates[said[one["id"]]["index"]] or 0.0) / max(rate for rate in rates if rate),
        )


def of_signs(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield whether the faster was named of two layouts that differ by one switch and 5 % or more."""
    of_playbook = [one for one in steps if one["source"] == "playbook"]
    for switch in SWITCHES:
        for pair in pairs_of(of_playbook, switch):
            ours = pair.predicted(said)
            if ours is not None and math.log(pair.gain) >= math.log(DIFFER):
                yield f"sign_rightly/{switch.name}", float(ours > 1)
