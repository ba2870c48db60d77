"""Ends of the 90 % intervals of user's questions, from what came out of the public runs, by kind.

    python -m suites.published.ends seconds=ANSWERS    as_run of suites/training/step_time/constants.yaml
    python -m suites.published.ends bytes=ANSWERS      as_asked of conf/engine_errors.yaml

ANSWERS is what `harness.advise` or `harness.fit` writes with questions=. Quantiles are those of published
over predicted values. `held`: the share of runs inside the interval that
the other sources give, which is out of sample.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from suites.published.runs import AnswerLine, PublishedRun, published_runs

MOST = 20
"""Runs that a source counts as at most, so that no long table decides."""

GENERATES = ("grpo", "ppo")
"""Methods whose published step has generation in it."""

LOW, HIGH = 0.05, 0.95

FEWEST_RUNS, FEWEST_SOURCES = 10, 3
"""Of a kind, below which it has no ends of its own."""


class RunRatio(NamedTuple):
    """Published over predicted of a run."""

    source: str
    value: float


def is_as_described(run: PublishedRun) -> bool:
    """Return whether a run trains on as many tokens as its row says, and does nothing else meanwhile."""
    other = any(name in run.method for name in GENERATES) or "length_note" in run.other
    return not other and not any(word in run.padded_or_packed for word in ("padded", "maximum", "up to"))


def of_seconds(run: PublishedRun, answer: AnswerLine) -> Iterator[tuple[str, RunRatio]]:
    """Yield the kind of a run's step and its ratio, where both seconds are known."""
    if run.step_s and answer.get("step_tuned_s") and is_as_described(run):
        kind = re.search("“(.*)”", str(answer["layouts"][0]["basis"]))
        assert kind is not None
        yield kind[1], RunRatio(run.source, run.step_s / answer["step_tuned_s"])


def of_bytes(run: PublishedRun, answer: AnswerLine) -> Iterator[tuple[str, RunRatio]]:
    """Yield engine, bytes and kind of a run's peak, and its ratio, where both peaks are known.

    A peak whose kind is not stated is compared with reserved bytes, as nvidia-smi's.
    """
    published = run.outcome.peak_GB
    which = "allocated" if run.outcome.peak_kind == "allocated" else "reserved"
    predicted = answer.get(f"peak_{which}_GB")
    if published and predicted and is_as_described(run):
        yield f"{answer['engine']}/{which}/{answer['asked_as']}", RunRatio(run.source, published / predicted)


def quantile(ratios: Sequence[RunRatio], share: float) -> float:
    """Return a quantile of some ratios, of which a source counts as `MOST` at most."""
    sizes = Counter(one.source for one in ratios)
    weights = {source: min(1.0, MOST / size) for source, size in sizes.items()}
    whole, seen = sum(weights[one.source] for one in ratios), 0.0
    for one in sorted(ratios, key=lambda ratio: ratio.value):
        seen += weights[one.source] / whole
        if seen >= share:
            break
    return one.value


def held(ratios: Sequence[RunRatio]) -> float:
    """Return the share of ratios inside the interval that the other sources give, of several."""
    inside = []
    for one in ratios:
        others = [other for other in ratios if other.source != one.source]
        inside.append(quantile(others, LOW) <= one.value <= quantile(others, HIGH))
    return sum(inside) / len(inside)


def ends(asked: str, answers: Mapping[str, AnswerLine]) -> dict[str, Any]:
    """Return the ends by kind, as the YAML has them; of kinds with enough runs and sources alone."""
    kinds: defaultdict[str, list[RunRatio]] = defaultdict(list)
    for run in published_runs():
        for kind, ratio in {"bytes": of_bytes, "seconds": of_seconds}[asked](run, answers.get(run.id, {})):
            kinds[kind].append(ratio)
    found: dict[str, Any] = {}
    for kind, ratios in sorted(kinds.items(), key=lambda item: -len(item[1])):
        sources = {one.source for one in ratios}
        if len(ratios) < FEWEST_RUNS or len(sources) < FEWEST_SOURCES:
            continue
        *folders, name = kind.split("/")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        shares = {"low": LOW, "likely": 0.5, "high": HIGH}
        place[name] = {key: round(quantile(ratios, share), 2) for key, share in shares.items()} | {
            "n": len(ratios), "sources": len(sources), "held": round(held(ratios), 2)
        }  # fmt: skip
    return found


def main(words: Sequence[str]) -> None:
    """Print the ends by kind."""
    for word in words:
        asked, _, path = word.partition("=")
        answers = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        found = ends(asked, {one["id"]: one for one in answers})
        yaml.safe_dump(found, sys.stdout, default_flow_style=None, sort_keys=False, width=110)


if __name__ == "__main__":
    main(sys.argv[1:])
