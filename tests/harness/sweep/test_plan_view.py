"""The plan as shown before a sweep runs."""

from dataclasses import replace

from planned import RUN

from harness.records import Limits, Record
from harness.sweep.plan import Basis, CellEstimate, estimate, plan
from harness.sweep.progress import announcement, plan_lines
from harness.sweep.sweep import total_line

RUN_1 = replace(RUN, repeats=1, limits=Limits(100.0))
GROUPS = plan(RUN_1, "here", lambda variant: "code")
CELLS = [cell for group in GROUPS for cell in group.cells]


def expected(earlier=(), groups=GROUPS):
    return estimate(groups, dict(earlier), 5.0, RUN_1.limits, 1)


def before(cell, seconds, basis=Basis.HERE):
    return (cell.workload, cell.optimization), CellEstimate(seconds, basis)


def test_the_number_of_cells_the_time_and_what_it_rests_on():
    earlier = [before(CELLS[2], 115.0), before(CELLS[3], 70.0, Basis.ELSEWHERE)]
    # the limit cuts the cell of 115 s; of workload a nothing is known
    assert announcement(RUN_1, GROUPS, expected(earlier), {}) == [
        "toy: 4 cells, 4 to run: about 3 min (from 1 cell of a run on this kind of host, "
        "1 cell of a run on another host, 2 cells of the suite's default)",
        "expected to run into limits.timeout_s=100: b baseline",
    ]
    found = expected([before(CELLS[0], 70.0), before(CELLS[2], 70.0)])
    assert total_line([found]) == "1 suite: 4 cells to run, 2 of them without an earlier run: about 3 min"
    done = announcement(RUN_1, GROUPS, expected([], []), {})
    assert done == ["toy: 4 cells, 4 done already: nothing to run"]
    crashed = {CELLS[0].id: Record(CELLS[0], "crashed", "killed by SIGKILL")}
    assert "1 cell to run again: 1 crashed" in announcement(RUN_1, GROUPS, expected(), {}, crashed)


def test_the_plan_names_what_is_skipped_and_why():
    done = {CELLS[0].id: Record(CELLS[0], "ok"), CELLS[1].id: Record(CELLS[1], "unavailable", "needs a GPU")}
    left = expected([before(cell, 50.0) for cell in CELLS], GROUPS[2:])
    lines = list(plan_lines(RUN_1, GROUPS, left, done, {}))
    assert lines[:2] == [
        "toy: 2 workloads × 2 variants × 1 repeat, into out",
        "variants: baseline, fast.x",
    ]
    assert [line.split() for line in lines[4:6]] == [
        ["a", "2", "2", "0", "–"],
        ["b", "2", "0", "2", "2", "min"],
    ]
    assert "skipped: 2 cells done already (1 ok, 1 unavailable), in out" in lines
    assert "unavailable: 1 cell: needs a GPU" in lines
    lines = list(plan_lines(RUN_1, GROUPS[:1], expected([], GROUPS[:1]), {}, {}))
    assert lines[0] == "toy: 1 workload × 2 variants where they apply × 1 repeat, into out"
