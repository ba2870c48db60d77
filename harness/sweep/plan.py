"""Config to cells, and how long they take; a cell's identity is a hash of its config, the code and the host.

A cell takes the median of earlier records of the same suite, workload and variant: those of the sweep's own
folder, else of this kind of host, else of others, the committed ones among them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import BASELINE, BASELINES, Variant, applies, left_out
from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.records import Cell, Group, Limits, Record, digest
from harness.sweep.environment import Environment, environments
from harness.sweep.store import RECORDS, StoreError, read_records, replace_file

PLAN = "plan.json"

NEVER = "never"  # value of a suite's `isolate_if`: all cells of a workload always share one process


def plan(
    run: Run,
    environment: str,
    code: Callable[[Variant], str],
    gpu: bool = True,
    own_code: Callable[[Mapping[str, Any]], str] = lambda workload: "",
) -> list[Group]:
    """Return the cells of `run` in groups: workload by workload, baseline first.

    Reference workloads are planned once, for the baseline, and a variant only where it applies; `gpu`:
    whether the host has one. `environment` is the digest of the host, `code(variant)` the digest of the
    sources that make a variant's readings, `own_code(workload)` that of the user's model code or trace.
    """
    tails = [
        (variant, digest([variant.name, config_of(variant), code(variant), environment]))
        for variant in run.variants
    ]
    groups: list[Group] = []
    for name, workload in run.workloads.items():
        sampling = run.sampling
        if sampling is not None and run.rounds_field:
            sampling = sampling._replace(rounds=int(workload[run.rounds_field]), budget_s=0.0)
        own = [own_code(workload)] if own_code(workload) else []
        head = digest([run.suite, name, workload, *([] if sampling is None else [sampling]), *own])
        config = [{"workload": workload, **config_of(variant)} for variant in run.variants]
        cells = [
            Cell(
                hashlib.sha256(f"{head}{tail}{repeat}/{run.seed}".encode()).hexdigest()[:16],
                run.suite, name, variant.name, variant.module, repeat, run.seed + repeat, config[column],
            )
            for repeat in range(1 if name in run.reference_workloads else run.repeats)
            for column, (variant, tail) in enumerate(tails)
            if repeat < repeats_of(run, variant) and is_planned(run, variant, name, gpu)
        ]  # fmt: skip
        if sampling is not None:  # a child interleaves each repeat, the baseline first
            repeats = groupby(cells, key=lambda cell: cell.repeat)
            groups += [Group(tuple(repeat), sampling=sampling) for _, repeat in repeats]
        elif run.isolate_if != NEVER and workload.get(run.isolate_if, True):
            groups += [Group((cell,)) for cell in cells]
        elif cells:
            groups.append(Group(tuple(cells)))
    return groups


def is_planned(run: Run, variant: Variant, workload: str, gpu: bool) -> bool:
    """Return whether the variant has cells of that workload on a host with or without a GPU."""
    fields = run.workloads[workload]
    return (
        (variant.module == BASELINE or not _is_for_baseline_alone(run, workload))
        and is_requested(run, variant, workload)
        and applies(run.applies_to, fields, gpu)
        and applies(variant.applies_to, fields, gpu)
        and not _has_nothing_to_compare(run, variant, workload, gpu)
    )


def _is_for_baseline_alone(run: Run, workload: str) -> bool:
    return workload in run.reference_workloads or bool(run.workloads[workload].get("trace"))


def repeats_of(run: Run, variant: Variant) -> int:
    """Return how many fresh processes a variant gets; a baseline as many as any other variant."""
    if variant.module in BASELINES:
        others = (repeats_of(run, one) for one in run.variants if one.module not in BASELINES)
        return max(others, default=run.repeats)
    return min(run.repeats, variant.repeats or run.repeats)


def is_requested(run: Run, variant: Variant, workload: str) -> bool:
    """Return whether the variant is among those that the run names for the workload, if it names any."""
    named = run.variants_by_workload.get(workload)
    return named is None or variant.module in BASELINES or variant.name in named


def _has_nothing_to_compare(run: Run, variant: Variant, workload: str, gpu: bool) -> bool:
    """Return whether it is an interleaved baseline on a workload to which no chosen variant applies."""
    others = [one for one in run.variants if one.module not in BASELINES]
    if run.sampling is None or variant.module not in BASELINES or _is_for_baseline_alone(run, workload):
        return False
    return bool(others) and not any(applies(o.applies_to, run.workloads[workload], gpu) for o in others)


def not_planned(run: Run, gpu: bool) -> list[str]:
    """Return what the plan leaves out of the suite's own workloads, in sentences."""
    pairs = [
        (is_planned(run, variant, name, gpu), is_planned(run, variant, name, True))
        for name in run.workloads
        for variant in run.variants
        if name not in run.reference_workloads and name not in run.slow_bf16_workloads
        if is_requested(run, variant, name)
        if variant.module not in BASELINES or is_planned(run, variant, name, True)
        for _ in range(repeats_of(run, variant))
    ]
    return left_out(pairs)


def config_of(variant: Variant) -> dict[str, Any]:
    """Return what a variant adds to its cells' config: settings, and techniques where it has any."""
    techniques = [[name, dict(settings)] for name, settings in variant.techniques]
    return {"settings": variant.settings} | ({"techniques": techniques} if techniques else {})


class Plan(NamedTuple):
    """What plan.json keeps of the last command."""

    suite: str
    cells: tuple[str, ...]  # ids, in order
    titles: Mapping[str, str] = {}  # of each variant; of plans before it was kept: none
    left_out: tuple[str, ...] = ()  # sentences about it


def write_plan(folder: Path, plan: Plan) -> None:
    """Write plan.json next to the records; raises OSError."""
    replace_file(folder / PLAN, json.dumps(plan._asdict(), indent=0).encode() + b"\n")


def read_plan(folder: Path) -> Plan:
    """Return the plan of a results folder; raises ConfigError."""
    path = folder / PLAN
    try:
        order = json.loads(path.read_text())
        titles = {str(name): str(title) for name, title in order.get("titles", {}).items()}
        left_out = tuple(str(sentence) for sentence in order.get("left_out", []))
        return Plan(str(order["suite"]), tuple(str(cell) for cell in order["cells"]), titles, left_out)
    except FileNotFoundError:
        raise ConfigError(f"from_results={folder}: no such results folder (it has no {PLAN})") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a plan: {error}") from None


logger = logging.getLogger(__name__)

RESULTS = (Path("results"), ROOT / "results")
"""Where runs are kept, the user's and the committed ones: in folders of any name, or one level below."""

START_UP_S = 5.0
"""Per process that is not forked: importing torch and a suite takes 4 to 6 s on two cores; records do not
include it."""

PACE_AFTER_S = 30.0
"""Seconds, predicted or real, that must be over before a sweep's own pace corrects the prediction."""

Key = tuple[str, str]  # workload and variant


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
    """Yield the records of one folder, and whether each is of a host of this kind: processor, cores, GPUs."""
    theirs = {
        digest: (one.cpu, one.cores) == (environment.cpu, environment.cores)
        for digest, one in environments(folder).items()
        if one.gpus == environment.gpus
    }
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
