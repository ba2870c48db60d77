"""The arrows of the harness, in order: config, plan, runner, judge, report."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness.claims import load_claims
from harness.code_fingerprint import source_digest
from harness.config import Run, load, names
from harness.environment import Environment, describe
from harness.estimate import Estimate, estimate
from harness.history import earlier_cells
from harness.instruments.distributed.launcher_env import LaunchError, attended, launch, serve
from harness.judge import judge
from harness.optimizations import Variant, optimizations
from harness.plan import plan, read_plan, write_plan
from harness.plan_view import announcement, plan_lines
from harness.progress import Progress, announce
from harness.records import Group, Record
from harness.report import gather, write_all, write_report
from harness.runner import pending
from harness.runner import run as run_cells
from harness.store import RECORDS, Store, StoreError, read_records
from harness.techniques import PACKAGE
from harness.validation import ConfigError

if TYPE_CHECKING:
    from harness.report.findings import Findings

USAGE = """python -m harness suite=NAME [KEY=VALUE ...]

  suite=NAME            what to run: {suites}, or all
  only=[a,b]            these optimizations, or variants such as activation_checkpointing.full
  workloads=[a,b]       these workloads
  from_results=FOLDER   judge and report what a results folder holds; run nothing
  out=FOLDER            where records and report go (results/<suite>); finished cells there are not run again
  repeats=N  seed=0  limits.timeout_s=600  limits.memory_B=null
  hardware=NAME         the device that tables speak of: {hardware}
  executor=NAME         where cells run: {executors}; executor.workers=1

{details}

  +suite.workloads.NAME={{...}}          another workload
  suite.workloads.NAME.micro_batch_size=4         any field of a workload
  suite.workload_from=PATH             a Hugging Face config.json; the rest under suite.hf_defaults
"""


def usage() -> str:
    """What `--help` prints."""
    details = []
    for suite in names("suite"):
        details.append(f"  {suite}: optimizations {', '.join(optimizations(suite))}")
        details.append(f"  {suite}: workloads {', '.join(load([f'suite={suite}'])[0].workloads)}")
    return USAGE.format(
        suites=", ".join(names("suite")),
        hardware=", ".join(names("hardware")),
        executors=", ".join(names("executor")),
        details="\n".join(details),
    )


def build_plan(run: Run, environment: Environment) -> list[Group]:
    """The plan, with each variant's identity taken from the sources that its figures come out of."""
    package = f"suites.{run.suite}"

    def code(variant: Variant) -> str:
        techniques = [f"suites.{PACKAGE}.{name}" for name, _ in variant.techniques]
        return source_digest(("harness.worker", package, f"{package}.{variant.module}", *techniques))

    return plan(run, environment.host, code)


def sweep(run: Run) -> None:
    """Say how long it will take, then run what is not done yet."""
    environment = describe()
    groups = build_plan(run, environment)
    executor = import_module(f"harness.executors.{run.executor}").create(run.out, run.workers)
    with Store(run.out) as store:
        expected = expect(run, groups, environment, store.records)
        announce(announcement(run, groups, expected))
        with Progress(groups, store, expected) as progress:
            write_plan(run.out, run.suite, groups, {one.name: one.title for one in run.variants})
            run_cells(groups, store, executor, run.limits, environment, progress, run.size_fields)


def expect(
    run: Run, groups: Sequence[Group], environment: Environment, records: Mapping[str, Record]
) -> Estimate:
    """Return how long the cells take that are still to be run."""
    left = pending(groups, records, run.limits, environment.digest)
    earlier = earlier_cells(run.suite, run.out, environment) if left else []
    return estimate(left, earlier, run.limits, run.workers)


def show_plan(run: Run) -> None:
    """Print what a sweep would do, and run nothing."""
    environment = describe()
    groups = build_plan(run, environment)
    found = read_records(run.out) if (run.out / RECORDS).is_file() else []
    records = {record.cell.id: record for record in found}
    expected = expect(run, groups, environment, records)
    print("\n".join(plan_lines(run, groups, expected, records)))


def report(source: Path, out: Path, asked: str = "") -> tuple[Findings, Path]:
    """Judge and report what `source` holds (of suite `asked`), into `out`; what was found, and its page."""
    suite, records, titles = load_run(source)
    if asked not in ("", suite):
        raise ConfigError(f"suite={asked}: {source} holds results of suite {suite}")
    found = gather(suite, records, judge(load_claims(suite), records), source, titles)
    page = write_report(out, found)
    from harness.report.terminal import show

    show(found, page)
    return found, page


def load_run(folder: Path) -> tuple[str, list[Record], Mapping[str, str]]:
    """Return the suite of a results folder, the records of its last plan in that order, variants' titles."""
    suite, cells, titles = read_plan(folder)
    if suite not in names("suite"):
        raise ConfigError(f"{folder}: holds results of suite {suite!r}; allowed: {', '.join(names('suite'))}")
    records = {record.cell.id: record for record in read_records(folder)}
    return suite, [records[cell] for cell in cells if cell in records], titles


def main(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 the store failed, 2 a mistake in the command, 128 + N ended by signal N."""
    logging.basicConfig(format="harness: %(message)s", level=logging.WARNING)
    logging.getLogger("harness.progress").setLevel(logging.INFO)
    if {"-h", "--help"} & set(words):
        print(usage())
        return 0
    try:
        started = launch()
        if started is not None and started.rank:
            serve(started)
        with attended(started):
            answer(words)
    except (ConfigError, LaunchError, StoreError) as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) else 2
    return 0


def answer(words: Sequence[str]) -> None:
    """Run what is asked for, then judge and report it; raises ConfigError, StoreError."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if "from_results" in given:
        for key in given:
            if key not in ("from_results", "out", "suite"):
                raise ConfigError(f"{key}: nothing is run with from_results; allowed beside it: out, suite")
        source = Path(given["from_results"])
        report(source, Path(given.get("out", source)), given.get("suite", ""))
        return
    pages = []
    for run in load(words):
        if run.plan_only:
            show_plan(run)
            continue
        sweep(run)
        pages.append(report(run.out, run.out))
    if pages and given.get("suite") == "all":
        print(f"All verdicts: {write_all(Path(given.get('out', 'results')) / 'all', pages)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
