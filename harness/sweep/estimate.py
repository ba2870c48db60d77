"""How long a sweep takes: the median of earlier records of the same suite, workload and variant.

Records of the sweep's own folder come first, then those of this kind of host, then those of others, the
committed ones among them, so that a fresh machine has a plan, too.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.records import Group, Limits, Record
from harness.sweep.environment import Environment
from harness.sweep.plan import read_plan
from harness.sweep.store import RECORDS, StoreError, read_records

logger = logging.getLogger(__name__)

RESULTS = (Path("results"), ROOT / "results")
"""Where runs are kept, the user's and the committed ones: in folders of any name, or one level below."""

KIND = ("cpu", "cores", "gpus")
"""What two hosts of one kind have in common; versions and commits differ from run to run."""

START_UP_S = 5.0
"""Per process that is not forked: importing torch and a suite takes 4 to 6 s on two cores; records do not
include it."""

PACE_AFTER_S = 30.0
"""Seconds, predicted or real, that must be over before a sweep's own pace corrects the prediction."""

Key = tuple[str, str]
"""Workload and variant."""


class Basis(StrEnum):
    """What the estimate of a cell rests on."""

    HERE = "a run on this kind of host"
    ELSEWHERE = "a run on another host"
    DEFAULT = "the suite's default"


class CellEstimate(NamedTuple):
    """How long one cell takes, its share of its process's start included."""

    seconds: float
    basis: Basis
    times_out: bool = False  # expected to run into its limit


class SweepEstimate(NamedTuple):
    """How long the cells of a sweep take, by id."""

    cells: Mapping[str, CellEstimate]
    workers: int

    @property
    def seconds(self) -> float:
        """Return the expected duration."""
        return sum(cell.seconds for cell in self.cells.values()) / self.workers

    @property
    def bases(self) -> Counter[Basis]:
        """Return how many cells are estimated on each basis."""
        return Counter(cell.basis for cell in self.cells.values())


def estimate(
    groups: Sequence[Group],
    earlier: Mapping[Key, CellEstimate],
    default_s: float,
    limits: Limits,
    workers: int,
    forks: Callable[[Group], bool] = lambda group: False,
) -> SweepEstimate:
    """Estimate each cell of `groups`: those that are still to be run. `forks`: see `Executor.forks`.

    The limit ends a cell, and of interleaved cells each turn.
    """
    cells = {}
    for group in groups:
        start_s = 0.0 if forks(group) else START_UP_S / len(group.cells)
        for cell in group.cells:
            default = CellEstimate(default_s, Basis.DEFAULT)
            seconds, basis, _ = earlier.get((cell.workload, cell.optimization), default)
            late = group.sampling is None and seconds >= limits.timeout_s
            cells[cell.id] = CellEstimate(start_s + (limits.timeout_s if late else seconds), basis, late)
    return SweepEstimate(cells, workers)


def earlier_seconds(suite: str, out: Path, environment: Environment) -> dict[Key, CellEstimate]:
    """Return by workload and variant how long cells of `suite` took, in `out` and in the folders of results/.

    Seconds of other hosts are scaled by one rate, the median of what the cells that ran on both took here.
    Runs on hosts with other GPUs are left out, for they predict nothing here.
    """
    own, here, there = (defaultdict[Key, list[float]](list) for _ in range(3))
    for folder in _folders_of(suite, out):
        for record, same_kind in _records_in(folder, environment):
            key = record.cell.workload, record.cell.optimization
            (here if same_kind else there)[key].append(record.duration_s)
            if same_kind and folder == out:
                own[key].append(record.duration_s)
    here_s = {key: statistics.median(seconds) for key, seconds in {**here, **own}.items()}
    there_s = {key: statistics.median(seconds) for key, seconds in there.items()}
    ratios = [here_s[key] / there_s[key] for key in here_s.keys() & there_s.keys() if there_s[key]]
    rate = statistics.median(ratios) if ratios else 1.0
    elsewhere = {key: CellEstimate(rate * seconds, Basis.ELSEWHERE) for key, seconds in there_s.items()}
    return elsewhere | {key: CellEstimate(seconds, Basis.HERE) for key, seconds in here_s.items()}


def _folders_of(suite: str, out: Path) -> list[Path]:
    """Return the folders that hold records of `suite`, `out` first, each once."""
    folders: dict[Path, Path] = {}
    places = [one for results in RESULTS for level in ("*", "*/*") for one in sorted(results.glob(level))]
    for folder in [out, *places]:
        try:
            if (folder / RECORDS).is_file() and read_plan(folder).suite == suite:
                folders.setdefault(folder.resolve(), folder)
        except ConfigError:
            continue
    return list(folders.values())


def _records_in(folder: Path, environment: Environment) -> Iterator[tuple[Record, bool]]:
    """Yield the records of one folder, and whether each is of a host of this kind."""
    ours = json.loads(json.dumps(environment.to_dict()))
    theirs = {}
    for path in folder.glob("environment-*.json"):
        try:
            found = json.loads(path.read_text())
            if found["gpus"] == ours["gpus"]:
                name = path.stem.removeprefix("environment-")
                theirs[name] = all(found[part] == ours[part] for part in KIND)
        except (OSError, ValueError, LookupError, TypeError):
            continue
    try:
        records = read_records(folder) if theirs else []
    except StoreError as error:
        logger.info("%s: not used for the estimate: %s", folder, error)
        return
    yield from ((one, theirs[one.environment]) for one in records if one.environment in theirs)


class Countdown:
    """What is left of a sweep, corrected by its own pace once some of it is over."""

    def __init__(self, estimate: SweepEstimate, began_s: float) -> None:
        self._left = dict(estimate.cells)
        self._workers = estimate.workers
        self._began_s = began_s
        self._over_s = 0.0  # predicted, of the cells that have ended
        self._pace = 1.0  # real seconds per predicted second

    def finish(self, cell: str, now_s: float) -> None:
        """Note that `cell` has ended, at `now_s` on the sweep's clock."""
        ended = self._left.pop(cell, None)
        if ended is None:
            return
        self._over_s += ended.seconds
        real_s = (now_s - self._began_s) * self._workers
        if max(self._over_s, real_s) >= PACE_AFTER_S:
            self._pace = real_s / self._over_s

    @property
    def left_s(self) -> float:
        """Return the seconds left."""
        return sum(cell.seconds for cell in self._left.values()) * self._pace / self._workers


def as_time(seconds: float) -> str:
    """Return a duration in words: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
