"""Ends of the 90 % intervals of user's questions, from what came out of the public runs, by kind.

    python -m suites.published.ends seconds=ANSWERS    as_run of suites/training/step_time/constants.yaml
    python -m suites.published.ends bytes=ANSWERS      as_asked of conf/engine_errors.yaml

ANSWERS is what `harness.advise` or `harness.fit` writes with questions=. Quantiles are those of published
over predicted values. `held`: the share of runs inside the interval that the other sources give. The runs
of other kinds (of bytes, of the same engine) count with a kind's own, as much as six sources of one run, so
that a kind of few sources has nearly what all have; `error`: median size of the error of `likely`, of a
source that it was not fitted to. Neither is fully out of sample: `OTHERS` and each kind's shares were
chosen by them, and constants of fine-tuning, generation and experts were fitted to whole steps of some
of the same sources.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from suites.published.runs import AnswerLine
from suites.training.step_time.prediction import TUNED
from suites.training.step_time.published.rows import PublishedRun, published_runs

MOST = 20
"""Runs that a source counts as at most, so that no long table decides."""

GENERATES = ("grpo", "ppo")
"""Methods whose published step has generation in it."""


class RunRatio(NamedTuple):
    """Published over predicted of a run."""

    source: str
    value: float


def is_as_described(run: PublishedRun) -> bool:
    """Return whether a run trains on as many tokens as its row says, and does nothing else meanwhile."""
    other = any(name in run.method for name in GENERATES) or "length_note" in run.other
    return not other and not any(word in run.padded_or_packed for word in ("padded", "maximum", "up to"))


def of_seconds(run: PublishedRun, answer: AnswerLine) -> Iterator[tuple[str, RunRatio]]:
    """Yield the kind of a run and the ratio of its seconds, where both are known."""
    if run.step_s and answer.get("step_tuned_s") and is_as_described(run):
        kind = str(answer["layouts"][0]["as_run_kind"])
        if kind != TUNED:
            yield kind, RunRatio(run.source, run.step_s / answer["step_tuned_s"])


def of_bytes(run: PublishedRun, answer: AnswerLine) -> Iterator[tuple[str, RunRatio]]:
    """Yield engine, bytes and kind of a run's peak, and its ratio, where both peaks are known.

    A peak whose kind is not stated is compared with reserved bytes, as nvidia-smi's. Of batches that are
    padded to their longest sequence, the longest has the peak.
    """
    published = run.outcome.peak_GB
    which = "allocated" if run.outcome.peak_kind == "allocated" else "reserved"
    predicted = answer.get(f"peak_{which}_GB")
    longest = "longest" in run.padded_or_packed and "length_note" not in run.other
    if published and predicted and (is_as_described(run) or longest):
        yield f"{answer['engine']}/{which}/{answer['asked_as']}", RunRatio(run.source, published / predicted)


class WeightedRatios(NamedTuple):
    """Logarithms of ratios and how much each counts."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles of the ratios."""
        order = np.argsort(self.values)
        seen = np.cumsum(self.weights[order]) / self.weights.sum()
        at = np.minimum(np.searchsorted(seen, shares), len(order) - 1)
        return [float(math.exp(value)) for value in self.values[order][at]]


SHARES = ((0.05, 0.95), (0.06, 0.93), (0.07, 0.92), (0.08, 0.91), (0.08, 0.9), (0.09, 0.89), (0.1, 0.88))
"""Quantiles that the ends can be: of each kind the narrowest that hold `HELD` of its runs; of bytes of fewer
than `FEWEST` runs the first."""

HELD = 0.87
"""Share of a kind's runs, sources left out, that the ends are to hold: between 85 and 95 %. Where a source
is unlike all others no ends do; then those count that hold the most."""

FEWEST = 10
"""Runs of a kind from which on its ends of bytes are chosen."""

OTHERS = 6.0
"""What the runs of all other kinds count together, where a source of n runs of a kind counts √n, of 20 at
most: chosen among 1 to 8 by the error of sources that were left out."""

FEWER_OTHERS = 2.0
"""The same where a kind's own runs give narrower ends that hold as many."""


def blended(
    kinds: Mapping[str, Sequence[RunRatio]], kind: str, without: str = "", others: float = OTHERS
) -> WeightedRatios:
    """Return the ratios of a kind and of all others; `without`: a source that is left out."""
    values: list[float] = []
    weights: list[NDArray[np.float64]] = []
    for own in (True, False):
        groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for name, ratios in kinds.items():
            for one in ratios:
                if (name == kind) is own and one.source != without:
                    groups[name, one.source].append(math.log(one.value))
        of = [np.full(len(group), min(len(group), MOST) ** 0.5 / len(group)) for group in groups.values()]
        each = np.concatenate(of) if of else np.zeros(0)
        values += [value for group in groups.values() for value in group]
        weights.append(each if own else each / max(each.sum(), 1e-9) * others)
    return WeightedRatios(np.array(values), np.concatenate(weights))


def ends_of(
    kinds: Mapping[str, Sequence[RunRatio]], kind: str, shares: tuple[float, float], others: float = OTHERS
) -> dict[str, Any]:
    """Return the ends of a kind, and how they do on sources that they were not fitted to."""
    ratios = kinds[kind]
    sources = sorted({one.source for one in ratios})
    without = {source: blended(kinds, kind, source, others).quantiles(shares) for source in sources}
    medians = {source: blended(kinds, kind, source).quantiles((0.5,))[0] for source in sources}
    inside = [without[one.source][0] <= one.value <= without[one.source][1] for one in ratios]
    errors = [abs(medians[one.source] / one.value - 1) for one in ratios]
    low, high = blended(kinds, kind, others=others).quantiles(shares)
    return {
        **{"low": round(low, 2), "likely": round(blended(kinds, kind).quantiles((0.5,))[0], 2)},
        **{"high": round(high, 2), "n": len(ratios), "sources": len(sources)},
        **{"held": round(float(np.mean(inside)), 2), "error": round(float(np.median(errors)), 2)},
        **{"at_low": shares[0], "at_high": shares[1]},
    }


def narrowest(kinds: Mapping[str, Sequence[RunRatio]], kind: str) -> dict[str, Any]:
    """Return the narrowest ends of a kind that hold `HELD` of its runs."""
    counts = OTHERS, FEWER_OTHERS
    choices = [ends_of(kinds, kind, shares, others) for shares in SHARES for others in counts]
    return min(choices, key=lambda one: (max(HELD - one["held"], 0.0), one["high"] - one["low"]))


def by_runs(kinds: Mapping[str, Sequence[RunRatio]]) -> list[str]:
    """Return the kinds, those of most runs first."""
    return sorted(sorted(kinds), key=lambda kind: -len(kinds[kind]))


def ends(asked: str, answers: Mapping[str, AnswerLine]) -> dict[str, Any]:
    """Return the ends by kind, as the YAML has them; of bytes for each engine apart."""
    kinds: defaultdict[str, list[RunRatio]] = defaultdict(list)
    for run in published_runs():
        for kind, ratio in {"bytes": of_bytes, "seconds": of_seconds}[asked](run, answers.get(run.id, {})):
            kinds[kind].append(ratio)
    if asked == "seconds":
        chosen = {kind: narrowest(kinds, kind) for kind in by_runs(kinds)}
        for of in chosen.values():
            del of["at_low"], of["at_high"]
        return chosen
    found: dict[str, Any] = {}
    for engine in sorted({kind.partition("/")[0] for kind in kinds}):
        own = {kind: ratios for kind, ratios in kinds.items() if kind.startswith(f"{engine}/")}
        for kind in by_runs(own):
            _, which, name = kind.split("/")
            of = narrowest(own, kind) if len(own[kind]) >= FEWEST else ends_of(own, kind, SHARES[0])
            found.setdefault(engine, {}).setdefault(which, {})[name] = of
    return found


def main(words: Sequence[str]) -> None:
    """Print the ends by kind."""
    for word in words:
        asked, _, path = word.partition("=")
        answers = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        found = ends(asked, {one["id"]: one for one in answers})
        yaml.safe_dump(found, sys.stdout, default_flow_style=None, sort_keys=False, width=150)


if __name__ == "__main__":
    main(sys.argv[1:])
