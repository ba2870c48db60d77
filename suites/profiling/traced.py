"""A trace of a run elsewhere, which is read and broken down as far as it allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.instruments.traces.breakdown import Breakdown, breakdown
from harness.instruments.traces.causes import Cause, causes
from harness.instruments.traces.output.sentence import advice, sentence
from harness.instruments.traces.reading.kineto import read_traces
from harness.records import Note, Origin, Reading
from suites.profiling.measure import factor_readings, state_readings
from suites.profiling.subject import Subject


@dataclass(frozen=True, slots=True)
class TracedElsewhere:
    """The breakdown of the subject's trace."""

    subject: Subject
    found: Breakdown

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return what the trace reports of its run."""
        trace = self.found.ranks[0].activity.trace
        return {
            "device": "cuda" if trace.has_device else "cpu",
            "device_name": ", ".join(dict.fromkeys(trace.devices)) or "not in the trace",
            "ranks": str(trace.world_size),
            "recorded": "elsewhere",
        }


def read_elsewhere(subject: Subject) -> TracedElsewhere:
    """Return the breakdown of the subject's trace; raises TraceError."""
    assert subject.workload.trace is not None
    return TracedElsewhere(subject, breakdown(read_traces(Path(subject.workload.trace))))


def in_a_sentence(found: Breakdown, named: Sequence[Cause]) -> str:
    """Return where the time goes, and what the trace shows about its launch gaps and its loader."""
    return " ".join([sentence(found, named), *advice(found)])


def readings_elsewhere(session: TracedElsewhere) -> Iterator[Reading | Note]:
    """Read the shares and factors, what is named, and what the trace does not have."""
    found = session.found
    yield Reading("profiled_time", "s", found.step_s, Origin.MEASURED)
    yield from state_readings(found, Origin.MEASURED, slice(None))
    yield from factor_readings(found, Origin.MEASURED)
    named = causes(found)
    for cause in named:
        yield Reading("named_share", "1", cause.share, Origin.MEASURED, cause.name)
    yield Note(in_a_sentence(found, named))
    for missing in found.missing:
        yield Note(f"Missing: {missing}")
