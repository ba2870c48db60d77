"""The published suite: how far off is what users get for training runs that others published?

Each workload is some of the runs of runs.jsonl. They are asked as a user asks, without their outcomes, as
`harness.fit` and `harness.advise` answer `questions=`. What is answered is compared with what came out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.ask.batch import answers_of
from harness.records import Json, Note, Origin, Reading
from suites.published.runs import (
    KINDS,
    AnswerLine,
    Score,
    group_of,
    kind_of,
    of_bytes,
    of_seconds,
    peak_of,
    set_up_of,
    tokens_per_s,
)
from suites.published.workload import Workload
from suites.training.step_time.published.rows import PublishedRun, published_runs, question

SCORES = {"bytes": of_bytes, "seconds": of_seconds}

AskedRuns = tuple[PublishedRun, ...]

SHOWN = 160
"""Characters of a refusal's reason that are kept."""


def runs_of(workload: Workload) -> AskedRuns:
    """Return the runs of a workload; raises ValueError for one without any."""
    every = published_runs()
    first = {run.source: run.id for run in reversed(every)}
    sampled = set(first.values())
    if workload.kind == "sample":
        chosen = [run for run in every if run.id in sampled]
    else:
        chosen = [run for run in every if kind_of(run) == workload.kind and run.id not in sampled]
    chosen = chosen[workload.part - 1 :: workload.parts]
    if not chosen:
        raise ValueError(f"part={workload.part}: {workload.kind} has no run in it; parts={workload.parts}")
    return tuple(chosen)


def build(workload: Json, seed: int) -> AskedRuns:
    """Return the runs of the workload."""
    return runs_of(Workload(**workload))


def check(runs: AskedRuns) -> None:
    """Do nothing: what is compared are predictions."""


def conditions(runs: AskedRuns) -> Mapping[str, str]:
    """Return as JSON what is known of each run, by id: `PublishedFacts` of the report; and all kinds."""
    facts = {
        run.id: [
            *(KINDS[kind_of(run)], run.kind, run.source, run.framework, run.model, run.device),
            *(run.date[:4], run.page, group_of(run), set_up_of(run)),
        ]
        for run in runs
    }
    return {"runs": json.dumps(facts, ensure_ascii=False), "kinds": json.dumps([*KINDS.values()])}


def sample(runs: AskedRuns) -> Iterator[Reading | Note]:
    """Yield what came out, what was answered and how these compare, by the run's id; then shares of all."""
    for asked, score_of in SCORES.items():
        chosen = [run for run in runs if asked == "bytes" or run.step_s is not None]
        scores = []
        answers = answers_of([question(run) for run in chosen], seconds=asked == "seconds")
        for run, answer in zip(chosen, answers, strict=True):
            scores.append(score_of(run, answer))
            if asked == "seconds":
                yield from of_choice(run, answer)
            yield from readings(asked, run, answer, scores[-1])
        yield from of_all(asked, scores)
    others = [
        run for run in runs if run.step_s is None and tokens_per_s(run, {})[0] is not None and group_of(run)
    ]
    if others:
        of_others = answers_of([question(run) for run in others], seconds=True)
        for run, answer in zip(others, of_others, strict=True):
            yield from of_choice(run, answer)


def of_choice(run: PublishedRun, answer: AnswerLine) -> Iterator[Reading]:
    """Yield the tokens/s per GPU of a run of a group, published and to be expected; both or nothing."""
    published, expected = tokens_per_s(run, answer)
    if group_of(run) and published is not None and expected is not None:
        yield Reading("choice/published", "token/s", published, Origin.PUBLISHED, run.id)
        yield Reading("choice/expected", "token/s", expected, Origin.CALCULATED, run.id)


def of_all(asked: str, scores: Sequence[Score]) -> Iterator[Reading]:
    """Yield the shares of some runs, and the sizes of the error that half and nine in ten do not exceed."""
    for name in ("refused", "wrong", "inside"):
        values = [float(one) for score in scores if (one := getattr(score, name)) is not None]
        if values:
            yield Reading(f"{asked}/share_{name}", "1", float(np.mean(values)), Origin.CALCULATED)
    errors = [abs(score.error) for score in scores if score.error is not None]
    for name, quantile in (("median_error", 0.5), ("error_at_90", 0.9)):
        if errors:
            yield Reading(f"{asked}/{name}", "1", float(np.quantile(errors, quantile)), Origin.CALCULATED)


def readings(asked: str, run: PublishedRun, answer: AnswerLine, score: Score) -> Iterator[Reading]:
    """Yield the readings of one run: published, predicted, the fields of its score, and why not more."""
    unit, published, predicted = compared_values(asked, run, answer)
    if published is not None:
        yield Reading(f"{asked}/published", unit, published, Origin.PUBLISHED, run.id)
    if predicted is not None:
        origin = Origin.SIMULATED if answer.get("engine") == "dry run" else Origin.CALCULATED
        yield Reading(f"{asked}/predicted", unit, predicted, origin, run.id)
    for name, value in score._asdict().items():
        if value is not None:
            yield Reading(f"{asked}/{name}", "1", float(value), Origin.CALCULATED, run.id)
    if score.refused:
        reason = str(answer.get("reason") or f"answered without {asked}")[:SHOWN]
        yield Reading(f"{asked}/refused_as", "1", 1.0, Origin.CALCULATED, f"{run.id} {reason}")
    turns = {f"{turn['kind']}: {turn['name']}" for turn in answer.get("turns") or ()}
    for turn in sorted(turns):
        yield Reading(f"{asked}/turned_by", "1", 1.0, Origin.CALCULATED, f"{run.id} {turn}")
    if "answer_seconds" in answer:
        yield Reading(f"{asked}/time_to_answer", "s", answer["answer_seconds"], Origin.MEASURED)


def compared_values(asked: str, run: PublishedRun, answer: AnswerLine) -> tuple[str, Any, Any]:
    """Return the unit of what is compared, what was published, and what is predicted; None where absent."""
    if asked == "seconds":
        return "s", run.step_s, answer.get("step_tuned_s") or answer.get("step_s")
    peak, published_GB = peak_of(run, answer), run.outcome.peak_GB
    return "B", published_GB and published_GB * 1e9, peak and peak[0] * 1e9
