"""One suite from its configuration to its records: plan, probe, estimate, executor, runner."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from harness.config.code_fingerprint import ROOT, module_of, source_digest
from harness.config.optimizations import CONF, Variant, code_of
from harness.config.protocols import optimization_file
from harness.config.run import Run
from harness.config.techniques import file_of
from harness.config.validation import ConfigError
from harness.config.workloads import model_digest, trace_digest
from harness.records import Group, Record
from harness.sweep.environment import Environment
from harness.sweep.executors import Executor
from harness.sweep.executors.job_folder import alike
from harness.sweep.plan import (
    PLAN,
    Basis,
    Plan,
    SweepEstimate,
    as_time,
    earlier_seconds,
    estimate,
    not_planned,
    plan,
    read_plan,
    write_plan,
)
from harness.sweep.preflight import HostProbe, fit_to_host, keep, probe, refuse_bad_inputs, too_slow
from harness.sweep.progress import Progress, announce, announcement, plan_lines
from harness.sweep.runner import pending, run
from harness.sweep.store import RECORDS, Store, read_records
from harness.units import counted


class PreparedSweep(NamedTuple):
    """A run on this host: its executor, the environment, the cells in groups, the probe of the host."""

    run: Run
    executor: Executor
    environment: Environment
    groups: list[Group]
    host: HostProbe | None
    messages: tuple[str, ...]  # for the user: of the configuration, the host, what is not planned on it


class Outlook(NamedTuple):
    """What is expected of the cells that are still to be run; by id those that are not tried, and why."""

    estimate: SweepEstimate
    not_tried: Mapping[str, str]
    notes: Mapping[str, str]


def stages(suite_run: Run) -> Iterator[Run]:
    """Yield the run in stages, each to be reported: the workloads that come first, if any, then all."""
    first = {name: fields for name, fields in suite_run.workloads.items() if name in suite_run.first}
    if first and len(first) < len(suite_run.workloads) and not suite_run.retry:
        rest = ", ".join(name for name in suite_run.workloads if name not in first)
        yield replace(suite_run, workloads=first, left_out=(*suite_run.left_out, f"still to be run: {rest}"))
    yield suite_run


def sweep(suite_run: Run) -> None:
    """Report how long the sweep will take, then run what is not done yet."""
    here = prepare(suite_run)
    with Store(suite_run.out) as store:
        keep(here.host, here.run.out, here.environment)
        expected = outlook(here, store.records)
        announce(here.messages)
        announce(announcement(here.run, here.groups, expected.estimate, expected.not_tried, store.records))
        with Progress(here.groups, store, expected.estimate) as progress:
            titles = {variant.name: variant.title for variant in here.run.variants}
            cells = tuple(cell.id for group in here.groups for cell in group.cells)
            write_plan(here.run.out, Plan(here.run.suite, cells, titles, here.run.left_out))
            run(
                here.groups,
                store,
                here.executor,
                here.run.limits,
                here.environment,
                progress,
                here.run.size_fields,
                expected.not_tried,
                expected.notes,
                here.run.retry,
            )


def planned_sweep(suite_run: Run) -> tuple[list[str], SweepEstimate]:
    """Return what `sweep` would do, in lines, and how long it would take; runs no cell and writes nothing."""
    here = prepare(suite_run)
    records = recorded(suite_run)
    expected = outlook(here, records)
    lines = plan_lines(here.run, here.groups, expected.estimate, records, expected.not_tried)
    return [*here.messages, *lines], expected.estimate


def total_line(estimates: Sequence[SweepEstimate]) -> str:
    """Return how many cells several sweeps have still to run, and about how long they take together."""
    cells = counted(sum(len(one.cells) for one in estimates), "cell")
    default = sum(one.bases[Basis.DEFAULT] for one in estimates)
    more = f", {default} of them without an earlier run" if default else ""
    time = as_time(sum(one.seconds for one in estimates))
    return f"{counted(len(estimates), 'suite')}: {cells} to run{more}: about {time}"


def recorded(suite_run: Run) -> dict[str, Record]:
    """Return what a results folder has, by cell; nothing where there is no such folder yet."""
    earlier = read_records(suite_run.out) if (suite_run.out / RECORDS).is_file() else []
    return {record.cell.id: record for record in earlier}


def prepare(suite_run: Run) -> PreparedSweep:
    """Return the run as it is on this host, with smaller workloads where bf16 products are slow.

    Raises ConfigError where it cannot be run, an input is refused, or its folder has another suite's results.
    """
    out = suite_run.out
    if (out / PLAN).is_file() and (suite := read_plan(out).suite) != suite_run.suite:
        raise ConfigError(f"out={out}: has results of suite {suite}; choose another folder")
    module = import_module(f"harness.sweep.executors.{suite_run.executor}")
    settings = {"settings": suite_run.executor_settings} if suite_run.executor_settings else {}
    executor: Executor = module.create(suite_run.out, suite_run.workers, **settings)
    environment = executor.environment()
    planned = groups_of(suite_run, environment)
    if suite_run.builds_first:
        refuse_bad_inputs(planned)
    host = probe(planned, suite_run.out, environment)
    if host is not None and host.too_large:
        raise ConfigError(f"suite.workload_from: {host.too_large}")
    groups, replaced = fit_to_host(suite_run, planned, host)
    suite_run = replace(suite_run, left_out=(*suite_run.left_out, *replaced))
    slow = (host.sentence,) if host is not None and host.sentence else ()
    messages = (*suite_run.messages, *slow, *not_planned(suite_run, bool(environment.gpus)))
    rates = {} if host is None else host.matmul_FLOP_per_s
    return PreparedSweep(
        suite_run, executor, environment._replace(matmul_FLOP_per_s=rates), groups, host, messages
    )


def groups_of(suite_run: Run, environment: Environment) -> list[Group]:
    """Return the plan, each variant's identity taken from the sources that its values come out of.

    These are the files that the suite's module, the variant's and those of its techniques import, whatever
    else the suite's package has.
    """
    suite, loaded = code_of(suite_run.suite), loaded_digest(suite_run.loads)

    def code(variant: Variant) -> str:
        own = optimization_file(suite, variant.module)
        files = [*([own] if own else []), *(file_of(name) for name, _ in variant.techniques)]
        return loaded + source_digest(("harness.sweep.worker", suite.module, *map(module_of, files)))

    def own_code(workload: Mapping[str, Any]) -> str:
        if workload.get("trace"):
            return trace_digest(workload["trace"])
        return model_digest(workload["model"]) if workload.get("model") else ""

    return plan(suite_run, environment.host, code, bool(environment.gpus), own_code)


READ = (".py", ".yaml", ".jsonl")  # suffixes of what code and data are in


def loaded_digest(paths: Sequence[str]) -> str:
    """Return digits that change with any of some files, or of those below some folders; "" of none.

    Paths are below the project, `conf/` where the configuration is. Raises ConfigError where one is absent.
    """
    digest = hashlib.sha256()
    for path in paths:
        top, _, rest = path.partition("/")
        at = CONF / rest if top == "conf" else ROOT / path
        files = [at] if at.is_file() else sorted(one for one in at.rglob("*") if one.suffix in READ)
        if not files:
            raise ConfigError(f"suite.loads: {path}: no such file or folder")
        for file in files:
            digest.update(f"{path}/{file.relative_to(at)}".encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16] if paths else ""


def outlook(here: PreparedSweep, records: Mapping[str, Record]) -> Outlook:
    """Return how long the cells take that are still to be run, and which of them are not tried."""
    limits, host = here.run.limits, here.host
    nodes = alike(here.run.out, here.environment)
    left = pending(here.groups, records, limits, here.environment.digest, nodes, here.run.retry)
    not_tried = too_slow(left, host, here.environment.cores, limits) if host is not None else {}
    tried = [g._replace(cells=tuple(cell for cell in g.cells if cell.id not in not_tried)) for g in left]
    to_run = [group for group in tried if group.cells]
    earlier = earlier_seconds(here.run.suite, here.run.out, here.environment) if to_run else {}
    expected = estimate(to_run, earlier, here.run.usual_cell_s, limits, here.run.workers, here.executor.forks)
    notes = dict.fromkeys(host.bf16_FLOP, host.sentence) if host is not None else {}
    return Outlook(expected, not_tried, notes)
