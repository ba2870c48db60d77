"""How far predictions of training steps are off, and how far of pairs that differ by one switch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from harness.records import Origin, Reading
from suites.training.step_time.published.steps import PublishedStep, ran
from suites.training.step_time.rates.gpu import gpu_of

Predictions = Mapping[str, Mapping[str, Any]]
"""By the id of the question: step_s with step_s_low and step_s_high, memory_GB, fits; or index."""

ACCUMULATED = "gradient_accumulation_steps"
LAYOUT = ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "sharding", "micro_batch_size", ACCUMULATED)


class SwitchedFields(NamedTuple):
    """What differs between the two steps of a pair."""

    name: str
    differs: str  # the switch: a field of the question or of its layout, or the GPU's architecture
    follows: tuple[str, ...]  # fields that may differ, too


SWITCHES = (
    SwitchedFields("zero", "sharding", ()),
    SwitchedFields("micro_batch", "micro_batch_size", (ACCUMULATED,)),
    SwitchedFields("tensor_for_data", "tp", ("dp", ACCUMULATED)),
    SwitchedFields("pipeline_for_data", "pp", ("dp", ACCUMULATED)),
    SwitchedFields("precision", "precision", ()),
    SwitchedFields("attention", "attention", ()),
    SwitchedFields("gpus", "gpus", ("dp", "global_batch_size", ACCUMULATED)),
    SwitchedFields("gpu", "architecture", ("device", "gpus_per_node", "global_batch_size", *LAYOUT)),
)
"""Between generations of GPUs, a step has the layout and the batch that were published for it."""


class StepPair(NamedTuple):
    """Two steps, the one that takes more GPU-seconds per token first."""

    slower: PublishedStep
    faster: PublishedStep

    @property
    def gain(self) -> float:
        """Return how many times as many published GPU-seconds per token the slower step takes."""
        return per_token_s(self.slower) / per_token_s(self.faster)

    def predicted(self, said: Predictions) -> float | None:
        """Return the predicted gain; None where a step was not predicted."""
        seconds = [said.get(one["id"], {}).get("step_s") for one in self]
        if not all(seconds):
            return None
        return per_token_s(self.slower, seconds[0]) / per_token_s(self.faster, seconds[1])


def per_token_s(step: PublishedStep, seconds: float | None = None) -> float:
    """Return the GPU-seconds per token of a step, of the published seconds unless others are given."""
    tokens = step["global_batch_size"] * step["seq_len"]
    return float((seconds or step["published"]["step_s"]) * step["gpus"] / tokens)


def pairs_of(steps: Sequence[PublishedStep], switch: SwitchedFields) -> Iterator[StepPair]:
    """Yield each pair of steps that ran, are of one source and differ in nothing but the switch."""
    free = {switch.differs, *switch.follows}
    groups: dict[str, list[tuple[object, PublishedStep]]] = {}
    for one in steps:
        if ran(one):
            flat = _fields(one, with_architecture=switch.differs == "architecture")
            rest = {name: value for name, value in flat.items() if name not in free}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append((flat.get(switch.differs), one))
    for group in groups.values():
        for (of_first, first), (of_second, second) in combinations(group, 2):
            if of_first != of_second:
                pair = StepPair(first, second)
                yield pair if pair.gain >= 1 else StepPair(second, first)


def _fields(step: PublishedStep, with_architecture: bool) -> dict[str, object]:
    """Return what a step was asked with, its layout's fields among the others."""
    fields = {name: value for name, value in step.items() if name not in ("id", "published", "layout")}
    gpu = gpu_of(str(step["device"])) if with_architecture else None
    return {**fields, **step["layout"], **({"architecture": gpu.architecture} if gpu else {})}


def of_ratios(steps: Sequence[PublishedStep], said: Predictions) -> Iterator[tuple[str, float]]:
    """Yield how far off the predicted gain of each pair is, by kind of switch, and how many there are."""
    for switch in SWITCHES:
        known = [(pair, pair.predicted(said)) for pair in pairs_of(steps, switch)]
        errors = [gain / pair.gain - 1 for pair, gain in known if gain]
        for error in errors:
            yield f"ratio_error/{switch.name}", error
            yield f"absolute_ratio_error/{switch.name}", abs(error)
        if errors:
            yield f"ratio_pairs/{switch.name}", len(errors)


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
