"""The plan as text: how many cells, how long they take, what is skipped. For a sweep and plan=true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from harness.config.run import Run
from harness.records import Cell, Group, Record, Status
from harness.sweep.estimate import Basis, SweepEstimate, as_time
from harness.units import counted

NAMES = 6
"""Names of cells in one line; of more, their number is given."""


def announcement(
    run: Run,
    groups: Sequence[Group],
    estimate: SweepEstimate,
    not_tried: Mapping[str, str],
    records: Mapping[str, Record] = {},
) -> list[str]:
    """Return the lines printed before a sweep: the number of cells, the duration, cells that may time out.

    `not_tried`: cells that are recorded as unavailable without being run, and why; `records`: earlier ones.
    """
    cells = [cell for group in groups for cell in group.cells]
    done = len(cells) - len(estimate.cells) - len(not_tried)
    counts = f"{run.suite}: {counted(len(cells), 'cell')}" + (f", {done} done already" if done else "")
    if not estimate.cells:
        lines = [f"{counts}: nothing to run"]
    else:
        bases = [f"{counted(n, 'cell')} of {basis}" for basis in Basis if (n := estimate.bases[basis])]
        about = f"about {as_time(estimate.seconds)} (from {', '.join(bases)})"
        lines = [f"{counts}, {len(estimate.cells)} to run: {about}"]
    limit = f"limits.timeout_s={run.limits.timeout_s:g}"
    again = [cell for cell in cells if cell.id in estimate.cells and cell.id in records]
    if again:
        ends = Counter(records[cell.id].status for cell in again)
        ended = ", ".join(f"{count} {status}" for status, count in ends.items())
        lines.append(f"{counted(len(again), 'cell')} to run again: {ended}")
    lines += run.left_out
    if late := [cell for cell in cells if cell.id in estimate.cells and estimate.cells[cell.id].times_out]:
        lines.append(f"expected to run into {limit}: {_names(late)}")
    if not_tried:
        names = _names([cell for cell in cells if cell.id in not_tried])
        lines.append(f"{counted(len(not_tried), 'cell')} planned as unavailable: {names}")
        lines += sorted(set(not_tried.values()))[:NAMES]
    return lines


def plan_lines(
    run: Run,
    groups: Sequence[Group],
    estimate: SweepEstimate,
    records: Mapping[str, Record],
    not_tried: Mapping[str, str],
) -> Iterator[str]:
    """Yield the full plan, for plan=true."""
    cells = [cell for group in groups for cell in group.cells]
    of_workload = defaultdict(list)
    for cell in cells:
        of_workload[cell.workload].append(cell)
    everywhere = len(cells) == len(of_workload) * len(run.variants) * run.repeats
    matrix = f"{counted(len(of_workload), 'workload')} × {counted(len(run.variants), 'variant')}"
    where = "" if everywhere else " where they apply"
    yield f"{run.suite}: {matrix}{where} × {counted(run.repeats, 'repeat')}, into {run.out}"
    yield f"variants: {', '.join(variant.name for variant in run.variants)}"
    yield ""
    width = max((len(name) for name in ("workload", *of_workload)), default=0)
    yield f"{'workload':{width}}  cells   done  to run   about"
    for name, own in of_workload.items():
        finished = sum(cell.id not in estimate.cells and cell.id not in not_tried for cell in own)
        todo = [estimate.cells[cell.id] for cell in own if cell.id in estimate.cells]
        time = as_time(sum(one.seconds for one in todo) / estimate.workers) if todo else "–"
        yield f"{name:{width}}  {len(own):5}  {finished:5}  {len(todo):6}   {time}"
    yield ""
    yield from announcement(run, groups, estimate, not_tried, records)
    done = [cell for cell in cells if cell.id not in estimate.cells and cell.id not in not_tried]
    ends = Counter(records[cell.id].status for cell in done if cell.id in records)
    if done:
        ended = ", ".join(f"{count} {status}" for status, count in ends.items())
        yield f"skipped: {counted(len(done), 'cell')} done already ({ended}), in {run.out}"
    yield from _unavailable([records[cell.id] for cell in done if cell.id in records])
    yield "nothing was run: plan=true"


def _unavailable(records: Sequence[Record]) -> Iterator[str]:
    """Yield why cells could not run, each reason once."""
    reasons = Counter(record.reason for record in records if record.status == Status.UNAVAILABLE)
    for reason, count in reasons.most_common(NAMES):
        yield f"unavailable: {counted(count, 'cell')}: {reason}"


def _names(cells: Sequence[Cell]) -> str:
    names = list(dict.fromkeys(f"{cell.workload} {cell.optimization}" for cell in cells))
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
