"""The step_time suite's types: published training steps of some sources, and the predictions on file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.training.step_time.published.steps import PublishedStep, published, with_and_without_attention

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The sources whose steps are compared."""

    sources: list[Any]  # as `source` of a published step names them
    source: str = ""  # who published them, where


@dataclass(frozen=True, slots=True)
class Subject:
    """Published steps of some sources."""

    workload: Workload
    steps: Sequence[PublishedStep]


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of this folder, one per line."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def steps_of(sources: Sequence[str]) -> list[PublishedStep]:
    """Return the steps of some sources; raises ValueError for a source that has none."""
    every = (*published(), *with_and_without_attention())
    known = {one["source"] for one in every}
    unknown = [name for name in sources if name not in known]
    if unknown:
        raise ValueError(
            f"sources={unknown[0]!r}: no step was published there; known are {', '.join(sorted(known))}"
        )
    return [one for one in every if one["source"] in sources]


def conditions_of(subject: Subject) -> Mapping[str, str]:
    """Return what was published: steps that ran, devices, GPUs, repositories with their commits."""
    steps = [one for one in subject.steps if one["kind"] == "step"]
    gpus = sorted({int(one["gpus"]) for one in steps})
    places = sorted({_place(one["published"]) for one in steps} - {""})
    return {
        "layouts": str(len(steps)),
        "devices": ", ".join(sorted({str(one["device"]) for one in steps})),
        "gpus": str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]:,}",
        "source": subject.workload.source,
        "places": "; ".join(places),
    }


def _place(answer: Mapping[str, Any]) -> str:
    return f"{answer['repo']}, commit {str(answer['commit'])[:9]}" if answer.get("repo") else ""
