"""One suite from its configuration to its records: plan, estimate, executor, runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from harness.code_fingerprint import source_digest
from harness.config import Run
from harness.environment import Environment, describe
from harness.estimate import Estimate, estimate
from harness.executors import Executor
from harness.history import earlier_cells
from harness.optimizations import Variant
from harness.plan import plan, write_plan
from harness.plan_view import announcement, plan_lines
from harness.progress import Progress, announce
from harness.records import Group, Record
from harness.runner import pending, run
from harness.store import RECORDS, Store, read_records
from harness.techniques import PACKAGE


def sweep(suite_run: Run) -> None:
    """Say how long it will take, then run what is not done yet."""
    executor, environment, groups = _prepared(suite_run)
    with Store(suite_run.out) as store:
        expected = _expected(suite_run, groups, environment, store.records)
        announce(announcement(suite_run, groups, expected))
        with Progress(groups, store, expected) as progress:
            write_plan(
                suite_run.out, suite_run.suite, groups, {one.name: one.title for one in suite_run.variants}
            )
            run(groups, store, executor, suite_run.limits, environment, progress, suite_run.size_fields)


def planned_sweep(suite_run: Run) -> Iterator[str]:
    """Yield what `sweep` would do, in lines; runs and writes nothing."""
    _, environment, groups = _prepared(suite_run)
    found = read_records(suite_run.out) if (suite_run.out / RECORDS).is_file() else []
    records = {record.cell.id: record for record in found}
    yield from plan_lines(suite_run, groups, _expected(suite_run, groups, environment, records), records)


def _prepared(suite_run: Run) -> tuple[Executor, Environment, list[Group]]:
    """Return where cells run, on what machine, and the plan.

    A variant's identity is taken from the sources that its values come out of.
    """
    executor: Executor = import_module(f"harness.executors.{suite_run.executor}").create(
        suite_run.out, suite_run.workers
    )
    environment = describe(executor.ranks)
    package = f"suites.{suite_run.suite}"

    def code(variant: Variant) -> str:
        techniques = [f"suites.{PACKAGE}.{name}" for name, _ in variant.techniques]
        return source_digest(("harness.worker", package, f"{package}.{variant.module}", *techniques))

    return executor, environment, plan(suite_run, environment.host, code)


def _expected(
    suite_run: Run, groups: Sequence[Group], environment: Environment, records: Mapping[str, Record]
) -> Estimate:
    """Return how long the cells take that are still to be run."""
    left = pending(groups, records, suite_run.limits, environment.digest)
    earlier = earlier_cells(suite_run.suite, suite_run.out, environment) if left else []
    return estimate(left, earlier, suite_run.limits, suite_run.workers)
