"""Answers for the page of `harness.advise serve=`: python -m suites.layouts.page.

Reads questions from standard input and writes an answer to each, one JSON object per line, until its input
ends. The readings are those of the suite; the page also has each rank's timeline and memory.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from harness.records import Json, Note, Unavailable
from suites.layouts import build, conditions, sample
from suites.layouts.causes import asked_of
from suites.layouts.seconds import COMPARED, setting_of
from suites.layouts.subject import Subject
from suites.training.layouts.kinds import memory_kinds
from suites.training.step_time.questions.answers import predicted
from suites.training.step_time.whole_step.timeline import View, timeline


def answer(question: Json) -> dict[str, Any]:
    """Return the answer to one question: a `workload`, and which `view` of its timeline.

    The answer has `readings`, `notes` and `conditions` as a record has them, and of one layout `timeline` and
    `memory`; or only `refused` with one line.
    """
    try:
        subject = build(question["workload"], 0)
        found = list(sample(subject))
    except Unavailable as error:
        return {"refused": str(error)}
    said: dict[str, Any] = {
        "readings": [list(one) for one in found if not isinstance(one, Note)],
        "notes": [one.text for one in found if isinstance(one, Note)],
        "conditions": dict(conditions(subject)),
    }
    if not subject.workload.search:
        said |= {"timeline": timeline_of(subject, question.get("view", "step")), "memory": memory_of(subject)}
    return said


def timeline_of(subject: Subject, view: View) -> dict[str, Any]:
    """Return the spans of each pipeline rank in seconds."""
    setting = setting_of(subject)
    steps = predicted(asked_of(setting, subject.layout, subject.workload.global_batch_size))
    found = timeline(setting, subject.layout, steps.parts, float(steps.seconds[0]), view)
    return {**found._asdict(), "ranks": [[list(one) for one in rank] for rank in found.ranks]}


def memory_of(subject: Subject) -> dict[str, Any]:
    """Return the bytes of each pipeline rank by kind, and those that its device has."""
    kinds = memory_kinds(subject.shape, subject.layout, subject.training, subject.cluster)
    by_kind = {name: values.tolist() for name, values in kinds._asdict().items()}
    return {"usable_B": subject.cluster.usable_B, "kinds": by_kind}


def main(questions: TextIO, answers: TextIO) -> None:
    """Write which devices can be asked about, then answer each line."""
    print(json.dumps({"devices": COMPARED}), file=answers, flush=True)
    for line in questions:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    main(sys.stdin, out)
