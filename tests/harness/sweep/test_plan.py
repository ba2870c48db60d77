"""Config to cells: the matrix, its groups, and what a cell's identity depends on."""

from dataclasses import replace
from pathlib import Path

from planned import RUN, cells

from harness.records import Limits, Sampling
from harness.sweep.plan import plan


def ids(*args, **more):
    return {cell.id for cell in cells(*args, **more)}


def test_the_matrix_is_whole_and_each_cell_once():
    found = cells(RUN)
    assert [(c.workload, c.repeat, c.optimization) for c in found] == [
        (w, r, o) for w in "ab" for r in (0, 1) for o in ("baseline", "fast.x")
    ]
    assert len(ids(RUN)) == 8
    assert {c.seed for c in found} == {7, 8}
    # real steps get a process each, and the rest one per workload
    assert [len(group.cells) for group in plan(RUN, "env", lambda a: "code")] == [1, 1, 1, 1, 4]


def test_a_workload_may_say_how_many_rounds():
    timed = replace(RUN, sampling=Sampling(rounds=3), rounds_field="size")
    groups = plan(timed, "env", lambda variant: "code")
    sampled = [(group.sampling.rounds, group.sampling.budget_s) for group in groups]
    assert sampled == [(1, 0), (1, 0), (2, 0), (2, 0)]


def test_identity_depends_on_config_code_and_host_and_on_nothing_else():
    assert ids(RUN) == ids(replace(RUN, limits=Limits(9.0), out=Path("elsewhere"), workers=2))
    in_another_order = {name: dict(reversed(one.items())) for name, one in RUN.workloads.items()}
    assert ids(RUN) == ids(replace(RUN, workloads=in_another_order))
    assert not ids(RUN) & ids(RUN, environment="other")
    assert not ids(RUN) & ids(RUN, code=lambda variant: "new")
    lists = [(), (("fsdp2", {}),), (("fsdp2", {"dp_size": 2}),)]
    variants = tuple(replace(RUN.variants[1], techniques=one) for one in lists)
    found = cells(replace(RUN, variants=variants))
    assert len({one.id for one in found}) == len(found)
    techniques = [one.config.get("techniques") for one in found[:3]]
    assert techniques == [None, [["fsdp2", {}]], [["fsdp2", {"dp_size": 2}]]]
    changed = {**RUN.workloads, "b": {"size": 3, "train": False}}
    assert len(ids(RUN) & ids(replace(RUN, workloads=changed))) == 4
    assert len(ids(RUN) & ids(RUN, code=lambda a: "new" if a.module == "fast" else "code")) == 4
