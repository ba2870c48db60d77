"""The nouns of the harness, as plain data; everything else is built on this module.

It is at the bottom of the import graph and uses the standard library alone. Claims and verdicts are in
`harness.claims.model`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

SCHEMA = 2  # version of the line that one record is; a reader refuses any other

UNITS = frozenset(
    (
        *("1", "B", "s", "Hz", "W", "°C", "B/s", "FLOP/s", "token/s", "sample/s"),
        *("USD", "USD/h", "USD/token", "USD/sample"),
    )
)
"""Base units. Values are converted for people in `harness.units` and nowhere else."""

Json = Mapping[str, Any]


class Origin(StrEnum):
    """How a number came to be; printed next to it."""

    MEASURED = "measured"  # this hardware, the real work
    EMULATED = "emulated"  # real code under imposed or scaled conditions
    SIMULATED = "simulated"  # a model stepped through time; a run on fake tensors
    CALCULATED = "calculated"  # a closed formula
    PUBLISHED = "published"  # by others, on their hardware


class Status(StrEnum):
    """How a cell ended. Each cell ends in exactly one."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    WRONG_RESULT = "wrong_result"


class Reading(NamedTuple):
    """One sample of one metric, in a base unit; `method` distinguishes several methods for one quantity."""

    metric: str
    unit: str
    value: float
    origin: str
    method: str = ""


class Note(NamedTuple):
    """A suite's note about a cell in words: for example a method that did not apply, and why."""

    text: str


class Measurement(NamedTuple):
    """All samples of one metric by one method in one cell, in the order taken, never averaged."""

    metric: str
    unit: str
    origin: str
    method: str
    samples: tuple[float, ...]


class Cell(NamedTuple):
    """Workload x variant x repeat: the smallest unit that is run."""

    id: str  # hash of the resolved config, the code and the host: equal ids mean interchangeable records
    suite: str
    workload: str
    optimization: str  # the variant: `fsdp2`, or `activation_checkpointing.full` for a variant
    module: str  # without the variant; also the name of its module or function, where it has one
    repeat: int
    seed: int
    config: Json  # {"workload": {...}, "settings": {...}}, as resolved, and [[name, {...}]] in "techniques"


class Sampling(NamedTuple):
    """How cells timed together are sampled: in rounds, each cell once per round, in random order.

    Without a budget there are `rounds`, and nothing warms up before.
    """

    metric: str = "time"  # the one that is compared
    rounds: int = 6  # at least
    target_ci_half_width: float = 0.01  # relative, of each cell's ratio to the first cell's; at 95 %
    budget_s: float = 1.0  # per cell, after which rounds end


SET_UP_SAMPLES = 5
"""Samples that an interleaved cell's first and longest turn is taken to last, where bf16 products are slow:
its check makes up to three, readings two. A suite whose first turn is longer says so by `bf16_FLOP`."""


class Group(NamedTuple):
    """Cells that one child process runs: in order, or with `sampling` interleaved, the baseline first."""

    cells: tuple[Cell, ...]
    package: str = "suites"  # of all suites
    sampling: Sampling | None = None


class Limits(NamedTuple):
    """Limits after which one cell is ended."""

    timeout_s: float
    memory_B: int | None = None  # private, beyond what the libraries hold once imported; None: no limit


class Record(NamedTuple):
    """What happened to one cell. Written once, as one line of JSON."""

    cell: Cell
    status: str
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    conditions: Mapping[str, str] = {}
    environment: str = ""  # digest of the environment, stored with the records
    limits: Limits = Limits(0.0)
    started_at: str = ""  # ISO 8601, UTC
    duration_s: float = 0.0
    host: str = ""  # digest of that environment's hardware and libraries; filled in by the store on reading

    @property
    def machine(self) -> str:
        """Return what two records have in common whose samples may be pooled; see `Environment.host`."""
        return self.host or self.environment


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a worker knows about its machine, for `Optimization.unavailable`. Bytes, counts."""

    device: str  # "cpu" or "cuda"
    device_name: str
    devices: int
    memory_B: int
    cores: int
    versions: Mapping[str, str] = field(default_factory=dict)


class WrongResult(Exception):
    """An optimization's result differs from the baseline's by more than it declares; the text names where."""


class Unavailable(Exception):
    """A cell cannot run here; the text names why, and what would help."""


class UnavailableWith(Unavailable):
    """It could run without one technique."""

    def __init__(self, reason: str, technique: str) -> None:
        super().__init__(f"{reason}; leave out the technique {technique}")
        self.reason, self.technique = reason, technique


LOST = "its job "
"""Start of the reason of a cell whose job or node was lost through no fault of its own: it is tried again."""

STATUS_UNKNOWN = "its exit status is unknown: the process that forked it ended first"
"""Start of the reason of a cell whose process's parent was killed."""

KILLED = tuple(f"killed by {name}" for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
"""Starts of reasons of a cell whose process got a signal that something outside sent."""


IN_OTHER_PROCESS = "in_other_process"
"""Attribute of an exception, true where what failed is a process of the cell's own: this one may run the next
cell."""


def digest(data: Any) -> str:
    """Return sixteen hexadecimal digits that identify `data`, whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record_to_json(record: Record) -> str:
    """Return one line of JSON, without its end of line."""
    data: dict[str, Any] = {"schema": SCHEMA, **record._asdict()}
    del data["host"]
    data["cell"] = record.cell._asdict()
    data["measurements"] = [list(m) for m in record.measurements]
    data["limits"] = record.limits._asdict()
    return json.dumps(data, separators=(",", ":"))


def record_from_json(data: Json) -> Record:
    """Return the record of a parsed line; raises KeyError, TypeError or ValueError where it is not one."""
    fields = {name: data[name] for name in Record._fields if name != "host"}
    fields["cell"] = Cell(**data["cell"])
    fields["limits"] = Limits(**data["limits"])
    fields["notes"] = tuple(data["notes"])
    fields["measurements"] = tuple(
        [
            Measurement(metric, unit, origin, method, tuple(samples))
            for metric, unit, origin, method, samples in data["measurements"]
        ]
    )
    return Record(**fields)


def is_lost(record: Record) -> bool:
    """Return whether something outside ended the cell, its job, node or process: it is tried again."""
    killed = record.status == Status.CRASHED and record.reason.startswith((*KILLED, STATUS_UNKNOWN))
    return killed or record.reason.startswith(LOST)


def measurement(record: Record, metric: str, method: str | None = None) -> Measurement | None:
    """Return the record's measurement of `metric` by `method` (None: the first one)."""
    for one in record.measurements:
        if one.metric == metric and (method is None or one.method == method):
            return one
    return None


def wrong_variants(records: Iterable[Record]) -> frozenset[tuple[str, str]]:
    """Return workload and variant of each that was wrong in any process: of those no sample is a result."""
    return frozenset(
        (one.cell.workload, one.cell.optimization) for one in records if one.status == Status.WRONG_RESULT
    )


def without_wrong(records: Iterable[Record]) -> list[Record]:
    """Return the records but those of variants that were wrong in any process, see `wrong_variants`."""
    records = list(records)
    wrong = wrong_variants(records)
    return [one for one in records if (one.cell.workload, one.cell.optimization) not in wrong]


def gather(readings: Sequence[Reading]) -> tuple[Measurement, ...]:
    """Return readings of one cell as measurements: by metric and method, samples in the order taken."""
    gathered: dict[tuple[str, str, str, str], list[float]] = {}
    for reading in readings:
        key = (reading.metric, reading.unit, reading.origin, reading.method)
        gathered.setdefault(key, []).append(reading.value)
    return tuple(Measurement(*key, tuple(samples)) for key, samples in gathered.items())
