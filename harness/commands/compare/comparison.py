"""Match the cells of two results folders and compare them: metrics, statuses and what only one folder has."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from harness.claims.values import AGAIN
from harness.commands.compare.change import (
    FALSE_FAILURES,
    FALSE_FINDINGS,
    HIGHER,
    LOWER,
    NEITHER,
    ROUNDING,
    Change,
    Directions,
    directions,
    significant,
    welch,
)
from harness.commands.grammar import planned, results_folder
from harness.config.optimizations import BASELINE
from harness.config.validation import ConfigError
from harness.records import Measurement, Origin, Record, Status, measurement
from harness.statistics import MOST_BAND, ratio
from harness.sweep.store import RECORDS, StoreError, read_records

Repeats = Mapping[int, Record]  # the records of one cell by repeat, each a process of its own

DETERMINISTIC = (Origin.CALCULATED, Origin.SIMULATED, Origin.PUBLISHED)
"""Origins of which a second process would give the same value again."""


class MetricChange(NamedTuple):
    """One metric of one workload and variant in both runs. Values are in the base unit `unit`."""

    suite: str
    workload: str
    optimization: str
    metric: str
    method: str
    unit: str
    origin: str
    better: str  # lower | higher | neither
    is_declared: bool  # whether the suite's report compares this metric
    a: float
    b: float
    change: Change
    effect_a: float | None = None  # the metric over the baseline's in the same processes
    effect_b: float | None = None
    effect_change: Change | None = None  # of B's effect over A's
    machines: tuple[str, str] = ("", "")
    not_compared: str = ""  # why there is no ratio

    @property
    def sign(self) -> int:
        """Return 1 where more is worse, -1 where less is worse, 0 where neither is."""
        return {LOWER: 1, HIGHER: -1, NEITHER: 0}[self.better]

    @property
    def is_exact(self) -> bool:
        """Return whether both runs' values repeat exactly."""
        return self.change.exact and not self.not_compared

    @property
    def is_judged(self) -> bool:
        """Return whether it is tested for a failure; the baseline's second run is not, for it is noise."""
        if self.optimization.endswith(AGAIN) or not self.sign or self.not_compared:
            return False
        return self.change.is_decidable and not self.change.exact

    def p_worse(self, margin: float) -> float:
        """Return the p-value of "not worse by more than `margin`", a share of A's value.

        A variant counts as worse only where its ratio to the baseline of its own run is worse by as much,
        too. A slower host alone does not change that.
        """
        if not self.sign or self.not_compared:
            return 1.0
        log_margin = math.log1p(margin) if self.sign > 0 else -math.log1p(-margin)
        changes = [self.change] + ([self.effect_change] if self.effect_change else [])
        return max(one.p_beyond(log_margin, self.sign) for one in changes)


def changes(
    cells: tuple[Repeats, Repeats],
    baselines: tuple[Repeats, Repeats] | None,
    of: Directions,
    machines: tuple[str, str],
) -> Iterator[MetricChange]:
    """Yield the change of each metric that both runs have of one cell; only repeats that ended ok count.

    `baselines`: the repeats of the same workload's baseline, None for the baseline itself.
    """
    ours = [_ended_ok(repeats) for repeats in cells]
    theirs = [_ended_ok(repeats) for repeats in baselines or ()]
    for key, one in _measurements(ours[0]).items():
        other = _measurements(ours[1]).get(key)
        if other is None or of.is_series(one.metric):
            continue
        cell = next(iter(ours[0].values())).cell
        better, is_declared = of.of(one)
        made = MetricChange(
            cell.suite, cell.workload, cell.optimization, *key, one.unit, other.origin, better, is_declared,
            math.nan, math.nan, Change(math.nan), machines=machines,
        )  # fmt: skip
        if (one.unit, one.origin) != (other.unit, other.origin):
            yield made._replace(
                not_compared=f"{one.unit} {one.origin} in A, {other.unit} {other.origin} in B"
            )
            continue
        samples, base = ([_samples(side, key) for side in sides] for sides in (ours, theirs))
        yield _compared(made, samples, base, key in of.draws)


def _compared(
    made: MetricChange,
    samples: Sequence[Mapping[int, Sequence[float]]],
    base: Sequence[Mapping[int, Sequence[float]]],
    draws: bool,
) -> MetricChange:
    if not all(0 < value < math.inf for side in samples for taken in side.values() for value in taken):
        if samples[0] != samples[1]:
            return made._replace(not_compared="a sample is not a positive number")
        value = next(iter(samples[0].values()))[0]
        return made._replace(a=value, b=value, change=Change(0.0, exact=True))
    logs = [[_location(taken, draws) for taken in side.values()] for side in samples]
    change = _exact(samples, made.origin) or welch(*logs)
    a, b = (math.exp(fmean(side)) for side in logs)
    made = made._replace(a=a, b=b, change=change)
    if not base or change.exact:
        return made
    effects = [_effects(*sides, draws) for sides in zip(samples, base, strict=True)]
    if not all(effects):
        return made
    effect_a, effect_b = (math.exp(fmean(side)) for side in effects)
    return made._replace(effect_a=effect_a, effect_b=effect_b, effect_change=welch(*effects))


def _exact(samples: Sequence[Mapping[int, Sequence[float]]], origin: str) -> Change | None:
    """Return the change of values that repeat exactly; None where they do not, or where too few show it."""
    counts = len(samples[0]), len(samples[1])
    if samples[0] == samples[1]:
        return Change(0.0, processes=counts, exact=True)
    a, b = ({tuple(taken) for taken in side.values()} for side in samples)
    if max(len(a), len(b)) > 1 or (min(counts) < 3 and origin not in DETERMINISTIC):
        return None
    difference = _location(b.pop(), True) - _location(a.pop(), True)
    return Change(0.0 if abs(difference) < ROUNDING else difference, processes=counts, exact=True)


def _location(taken: Sequence[float], draws: bool) -> float:
    return math.log(ratio([taken], [[1.0] * len(taken)], draws).value)


def _effects(
    ours: Mapping[int, Sequence[float]], base: Mapping[int, Sequence[float]], draws: bool
) -> list[float]:
    """Return the logarithm of the ratio to the baseline, of each repeat that has both; of its rounds' ratios
    where both have as many."""
    both = [(ours[repeat], base[repeat]) for repeat in ours if repeat in base]
    if not all(0 < value < math.inf for _, theirs in both for value in theirs):
        return []
    return [
        math.log(ratio([mine], [theirs], draws).value)
        if len(mine) == len(theirs)
        else _location(mine, draws) - _location(theirs, draws)
        for mine, theirs in both
    ]


def _ended_ok(repeats: Repeats) -> dict[int, Record]:
    """Return the repeats with a result: none where one of them was wrong."""
    if any(one.status == Status.WRONG_RESULT for one in repeats.values()):
        return {}
    return {repeat: one for repeat, one in sorted(repeats.items()) if one.status == Status.OK}


def _measurements(repeats: Repeats) -> dict[tuple[str, str], Measurement]:
    found: dict[tuple[str, str], Measurement] = {}
    for record in repeats.values():
        for one in record.measurements:
            if one.samples:
                found.setdefault((one.metric, one.method), one)
    return found


def _samples(repeats: Repeats, key: tuple[str, str]) -> dict[int, tuple[float, ...]]:
    found = {repeat: measurement(record, *key) for repeat, record in repeats.items()}
    return {repeat: one.samples for repeat, one in found.items() if one is not None and one.samples}


class ResultsFolder(NamedTuple):
    """The records of the last plan of one folder, and the environments that they name."""

    path: Path
    records: tuple[Record, ...]
    environments: Mapping[str, Mapping[str, Any]]  # digest to what environment-<digest>.json describes

    def machine(self, record: Record) -> str:
        """Return the processor, cores, memory and GPUs of a record's host in words."""
        environment = self.environments.get(record.environment)
        return machine(environment) if environment else f"unknown host {record.environment}".strip()


def machine(environment: Mapping[str, Any]) -> str:
    """Return `2 cores AMD EPYC, 24 GiB, no GPU`; memory in GiB, because what the kernel reserves varies."""
    names = [f"{gpu['name']} ({gpu['memory_B'] / 2**30:.0f} GiB)" for gpu in environment.get("gpus", ())]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "no GPU"
    memory_GiB = round(environment.get("memory_B", 0) / 2**30)
    ranks = f", {environment['ranks']}" if environment.get("ranks") else ""
    cores, cpu = environment.get("cores", "unknown"), environment.get("cpu", "unknown processor")
    return f"{cores} cores {cpu}, {memory_GiB} GiB, {gpus}{ranks}"


def read_folder(path: Path) -> ResultsFolder:
    """Return the results in `path`, which is not changed; raises ConfigError."""
    try:
        read = read_records(results_folder(path))
    except StoreError as error:
        raise ConfigError(str(error)) from None
    for record in read:
        samples = (value for one in record.measurements for value in one.samples)
        whole = isinstance(record.cell.config, dict) and isinstance(record.conditions, dict)
        if not (whole and all(isinstance(value, int | float) for value in samples)):
            raise ConfigError(f"{path / RECORDS}: the record of cell {record.cell.id} is malformed")
    records = tuple(planned(path, read))
    if not records:
        of_plan = " of its plan" if (path / "plan.json").exists() else ""
        raise ConfigError(f"{path}: holds no record{of_plan}")
    environments = {}
    for file in sorted(path.glob("environment-*.json")):
        try:
            environment = json.loads(file.read_text())
            machine(environment)
            dict(environment.get("versions", {}))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}: not an environment: {error!r}") from None
        environments[file.stem.removeprefix("environment-")] = environment
    return ResultsFolder(path, records, environments)


class CellName(NamedTuple):
    """A cell without its repeat."""

    suite: str
    workload: str
    optimization: str


class StatusChange(NamedTuple):
    """A cell that ended differently: each status with its number of repeats, in A and in B."""

    cell: CellName
    a: Mapping[str, int]
    b: Mapping[str, int]

    @property
    def is_lost(self) -> bool:
        """Return whether it is a failure: ok in all repeats of A; in B in none, or wrong in one."""
        return set(self.a) == {Status.OK} and (Status.OK not in self.b or Status.WRONG_RESULT in self.b)


class FolderComparison(NamedTuple):
    """What changed from A to B."""

    metrics: tuple[MetricChange, ...]
    verdicts: tuple[str, ...]  # of each metric: same, worse, better, changed, no difference or undecided
    failed: tuple[bool, ...]  # of each metric
    statuses: tuple[StatusChange, ...]
    only_a: tuple[CellName, ...]
    only_b: tuple[CellName, ...]
    metrics_only_a: int
    metrics_only_b: int
    matched: tuple[tuple[Repeats, Repeats], ...]  # the cells that both folders have
    fail_above: float | None = None

    @property
    def is_failure(self) -> bool:
        """Return whether `--fail-above` was given and something failed."""
        return self.fail_above is not None and (any(self.failed) or any(one.is_lost for one in self.statuses))


_ByMachine = Mapping[str, Repeats]
"""The repeats of one cell by the machine that they ran on: those of unlike hosts are never pooled."""


def compare_folders(a: ResultsFolder, b: ResultsFolder, fail_above: float | None = None) -> FolderComparison:
    """Compare two folders; raises ConfigError where no cell ended ok in both."""
    cells_a, cells_b = _cells(a), _cells(b)
    metrics: list[MetricChange] = []
    matched: list[tuple[Repeats, Repeats]] = []
    statuses: list[StatusChange] = []
    lacking = [0, 0]
    known: dict[str, Directions] = {}
    for name in (one for one in cells_a if one in cells_b):
        if name.suite not in known:
            known[name.suite] = directions(name.suite)
        of, base = known[name.suite], name._replace(optimization=BASELINE)
        is_baseline = name.optimization in (BASELINE, BASELINE + AGAIN)
        ended = [
            Counter(str(one.status) for repeats in side[name].values() for one in repeats.values())
            for side in (cells_a, cells_b)
        ]
        if set(ended[0]) != set(ended[1]):
            statuses.append(StatusChange(name, *ended))
        for machines in _pairs(cells_a[name], cells_b[name]):
            cells = cells_a[name][machines[0]], cells_b[name][machines[1]]
            baselines = cells_a.get(base, {}).get(machines[0], {}), cells_b.get(base, {}).get(machines[1], {})
            matched.append(cells)
            metrics += changes(cells, None if is_baseline else baselines, of, machines)
            for side, count in enumerate(_metrics_of_one(cells, of)):
                lacking[side] += count
    if not metrics:
        raise ConfigError(f"{a.path} and {b.path}: no cell ended ok in both")
    return FolderComparison(
        tuple(metrics), tuple(_verdicts(metrics)), tuple(_failed(metrics, fail_above)), tuple(statuses),
        tuple(one for one in cells_a if one not in cells_b),
        tuple(one for one in cells_b if one not in cells_a),
        lacking[0], lacking[1], tuple(matched), fail_above,
    )  # fmt: skip


def _cells(folder: ResultsFolder) -> dict[CellName, dict[str, dict[int, Record]]]:
    cells: dict[CellName, dict[str, dict[int, Record]]] = {}
    for record in folder.records:
        name = CellName(record.cell.suite, record.cell.workload, record.cell.optimization)
        cells.setdefault(name, {}).setdefault(folder.machine(record), {})[record.cell.repeat] = record
    return cells


def _pairs(a: _ByMachine, b: _ByMachine) -> list[tuple[str, str]]:
    """Return the machines to compare: each with itself, or every one with every one where none is in both."""
    same = [(one, one) for one in a if one in b]
    return same or [(one, other) for one in a for other in b]


def _metrics_of_one(cells: tuple[Repeats, Repeats], of: Directions) -> tuple[int, int]:
    """Return how many metrics only A has, and only B, of a cell that ended ok in both."""
    records = [[one for one in side.values() if one.status == Status.OK] for side in cells]
    every = [[one for record in side for one in record.measurements] for side in records]
    a, b = ({(one.metric, one.method) for one in s if not of.is_series(one.metric)} for s in every)
    return (len(a - b), len(b - a)) if a and b else (0, 0)


def _verdicts(metrics: Sequence[MetricChange]) -> Iterator[str]:
    """Yield the verdict of each metric: a difference has to stand out among all of them."""
    tested = [i for i, one in enumerate(metrics) if one.change.is_decidable and not one.change.exact]
    found = significant(
        [metrics[i].change.p_different() for i in tested],
        [metrics[i].is_declared for i in tested],
        FALSE_FINDINGS,
    )
    differs = {i for i, one in zip(tested, found, strict=True) if one}
    for i, one in enumerate(metrics):
        if one.not_compared or not one.change.is_decidable:
            yield "undecided"
        elif one.change.exact and one.change.log_ratio == 0:
            yield "same"
        elif one.change.exact or i in differs:
            sign = one.sign if one.change.log_ratio > 0 else -one.sign
            yield {1: "worse", -1: "better", 0: "changed"}[sign]
        else:
            low, high = one.change.interval or (0.0, math.inf)
            yield "no difference" if low >= 1 / (1 + MOST_BAND) and high <= 1 + MOST_BAND else "undecided"


def _failed(metrics: Sequence[MetricChange], fail_above: float | None) -> list[bool]:
    """Return which metrics got worse by more than the margin, beyond the noise of the whole comparison."""
    if fail_above is None:
        return [False] * len(metrics)
    p_worse, judged = [one.p_worse(fail_above) for one in metrics], [one.is_judged for one in metrics]
    tested = [i for i, is_judged in enumerate(judged) if is_judged]
    found = significant(
        [p_worse[i] for i in tested], [metrics[i].is_declared for i in tested], FALSE_FAILURES
    )
    worse = {i for i, is_worse in zip(tested, found, strict=True) if is_worse}
    # Values that repeat exactly have no noise.
    return [i in worse or (one.is_exact and p_worse[i] == 0) for i, one in enumerate(metrics)]
