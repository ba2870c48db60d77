"""Config to cells: the matrix, its groups, and what a cell's identity depends on."""

import time
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from planned import RUN, cells

from harness.config.optimizations import Variant
from harness.records import Limits, Sampling
from harness.sweep.plan import not_planned, plan


def ids(*args, **more):
    return [cell.id for cell in cells(*args, **more)]


def test_the_matrix_is_whole_and_each_cell_once():
    found = cells(RUN)
    assert [(c.workload, c.repeat, c.optimization) for c in found] == [
        (w, r, o) for w in "ab" for r in (0, 1) for o in ("baseline", "fast.x")
    ]
    assert len(set(ids(RUN))) == 8
    assert {c.seed for c in found} == {7, 8}


def test_real_steps_get_a_process_each_and_the_rest_one_a_workload():
    assert [len(group.cells) for group in plan(RUN, "env", lambda a: "code")] == [1, 1, 1, 1, 4]


def test_reference_workloads_are_measured_once_and_with_the_baseline():
    again = (*RUN.variants, Variant("baseline_again", "baseline_again", {}))
    for sampling in (None, Sampling()):
        run = replace(RUN, variants=again, reference_workloads=("a",), sampling=sampling)
        found = [(one.repeat, one.optimization) for one in cells(run) if one.workload == "a"]
        assert found == [(0, "baseline")]
        assert len([one for one in cells(run) if one.workload == "b"]) == 6


def test_a_variant_may_need_fewer_processes_than_the_others():
    once = Variant("once", "once", {}, repeats=1)
    again = Variant("baseline_again", "baseline_again", {})
    run = replace(RUN, variants=(*RUN.variants, again, once), sampling=Sampling())
    found = [(one.repeat, one.optimization) for one in cells(run) if one.workload == "b"]
    assert found == [
        (0, "baseline"), (0, "fast.x"), (0, "baseline_again"), (0, "once"),
        (1, "baseline"), (1, "fast.x"), (1, "baseline_again"),
    ]  # fmt: skip
    alone = replace(run, variants=(RUN.variants[0], again, once))
    assert {one.repeat for one in cells(alone)} == {0}
    assert {one.repeat for one in cells(replace(alone, variants=alone.variants[:2]))} == {0, 1}
    more = replace(run, variants=(RUN.variants[0], Variant("once", "once", {}, repeats=5)))
    assert {one.repeat for one in cells(more)} == {0, 1}


def test_cells_that_are_not_planned_are_counted_with_their_own_repeats():
    elsewhere = ({"size": (3,)},)
    run = replace(
        RUN,
        variants=(
            *RUN.variants,
            Variant("once", "once", {}, applies_to=elsewhere, repeats=1),
            Variant("twice", "twice", {}, applies_to=elsewhere),
        ),
    )
    assert not_planned(run, gpu=True) == ["not planned: 6 cells to which the variant does not apply"]


def test_a_workload_may_say_how_many_rounds():
    timed = replace(RUN, sampling=Sampling(rounds=3), rounds_field="size")
    groups = plan(timed, "env", lambda variant: "code")
    assert [(group.sampling.rounds, group.sampling.budget_s) for group in groups] == [
        (1, 0),
        (1, 0),
        (2, 0),
        (2, 0),
    ]


def test_identity_depends_on_config_code_and_host_and_on_nothing_else():
    assert ids(RUN) == ids(replace(RUN, limits=Limits(9.0), out=Path("elsewhere"), workers=2))
    assert not set(ids(RUN)) & set(ids(RUN, environment="other"))
    assert not set(ids(RUN)) & set(ids(RUN, code=lambda variant: "new"))
    changed = {**RUN.workloads, "b": {"size": 3, "train": False}}
    assert len(set(ids(RUN)) & set(ids(replace(RUN, workloads=changed)))) == 4
    only_fast = [c.id for c in cells(RUN, code=lambda a: "new" if a.module == "fast" else "code")]
    assert len(set(ids(RUN)) & set(only_fast)) == 4


@given(st.permutations(["size", "train", "z"]))
def test_identity_does_not_depend_on_the_order_of_keys(order):
    values = {"size": 1, "train": True, "z": 0}
    run = replace(RUN, workloads={"a": {k: values[k] for k in order}})
    assert ids(run) == ids(replace(RUN, workloads={"a": values}))


def test_a_hundred_thousand_cells_are_a_plan(record_property):
    workloads = {f"w{i}": dict.fromkeys((f"f{j}" for j in range(25)), i) for i in range(2000)}
    variants = tuple(Variant(f"o{i}", f"o{i}", {"x": i}) for i in range(10))
    began = time.perf_counter()
    found = cells(replace(RUN, workloads=workloads, variants=variants, repeats=5))
    record_property("seconds", time.perf_counter() - began)
    assert len({c.id for c in found}) == 100_000
