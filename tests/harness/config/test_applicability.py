"""What cannot apply is not planned, and is counted; a mistake in `applies_to` is refused in one line."""

from dataclasses import replace

import pytest
from planned import RUN

from harness.config.optimizations import Variant, applies, checked_alternatives, code_of, left_out
from harness.config.protocols import optimization_file
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Sampling
from harness.sweep.plan import is_planned, not_planned, plan

FIELDS = {"operation": {"type": "str", "one_of": ["softmax", "attention"]}, "size": {"type": "int"}}


def alternatives(*given):
    return checked_alternatives("suite.applies_to", given, FIELDS)


def test_one_alternative_must_be_met_in_every_field():
    allowed = alternatives({"operation": "softmax", "size": [1, 2]}, {"operation": "attention"})
    assert applies(allowed, {"operation": "softmax", "size": 2}, gpu=False)
    assert not applies(allowed, {"operation": "softmax", "size": 3}, gpu=False)
    assert applies(allowed, {"operation": "attention", "size": 3}, gpu=False)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"at_least": 2}, [False, True, True, True, False]),
        ({"at_most": 3}, [True, True, True, False, False]),
        ({"at_least": 2, "at_most": 3}, [False, True, True, False, False]),
    ],
)
def test_a_number_may_be_given_by_its_bounds(ends, expected):
    allowed = alternatives({"operation": "softmax", "size": ends})
    sizes = (1, 2, 3, 9, None)
    assert [applies(allowed, {"operation": "softmax", "size": one}, gpu=False) for one in sizes] == expected


def test_without_alternatives_everything_applies():
    assert applies((), {"operation": "softmax"}, gpu=False)


def test_an_alternative_may_need_a_gpu():
    allowed = alternatives({"operation": "softmax"}, {"operation": "attention", "gpu": True})
    assert not applies(allowed, {"operation": "attention"}, gpu=False)
    assert applies(allowed, {"operation": "attention"}, gpu=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"operatoin": "softmax"},
            r"suite\.applies_to\[0\]\.operatoin: no such name; did you mean operation",
        ),
        (
            {"operation": "matmul"},
            r"suite\.applies_to\[0\]\.operation='matmul': expected one of softmax, attention",
        ),
        ({"operation": ["softmax", 3]}, r"suite\.applies_to\[0\]\.operation=3: expected"),
        (
            {"size": {"at_mots": 3}},
            r"suite\.applies_to\[0\]\.size=\{'at_mots': 3\}: expected a value, a list, or of a number",
        ),
        ({"operation": {"at_least": 3}}, r"suite\.applies_to\[0\]\.operation=\{'at_least': 3\}: expected"),
        ({"size": {"at_least": "two"}}, r"suite\.applies_to\[0\]\.size\.at_least='two': expected a number"),
        ({"gpu": False}, r"suite\.applies_to\[0\]\.gpu=False: expected true"),
        ({}, r"suite\.applies_to\[0\]=\{\}: expected fields of a workload"),
        ("softmax", r"suite\.applies_to\[0\]='softmax': expected fields of a workload"),
    ],
)
def test_a_mistake_is_refused_in_one_line(given, said):
    with pytest.raises(ConfigError, match=said) as error:
        alternatives(given)
    assert "\n" not in str(error.value)


def test_the_plan_has_no_cell_of_what_does_not_apply():
    first, second = RUN.variants
    run = replace(RUN, variants=(first, replace(second, applies_to=({"size": (2,)},))))
    cells = [cell for group in plan(run, "env", lambda variant: "code") for cell in group.cells]
    assert {(cell.workload, cell.optimization) for cell in cells} == {
        ("a", "baseline"), ("b", "baseline"), ("b", second.name)
    }  # fmt: skip
    assert not_planned(run, gpu=False) == ["not planned: 2 cells to which the variant does not apply"]


def test_an_interleaved_baseline_is_not_planned_where_no_chosen_variant_applies():
    first, second = RUN.variants
    narrow = replace(second, applies_to=({"size": (2,)},))
    run = replace(RUN, variants=(first, narrow), sampling=Sampling(), reference_workloads=())

    def planned(run):
        return {cell.workload for group in plan(run, "env", lambda one: "code") for cell in group.cells}

    assert planned(run) == {"b"}
    assert not_planned(run, gpu=False) == ["not planned: 2 cells to which the variant does not apply"]
    assert planned(replace(run, reference_workloads=("a",))) == {"a", "b"}
    assert planned(replace(run, variants=(first,))) == {"a", "b"}  # the baseline alone was chosen


def test_what_needs_a_gpu_is_planned_with_one_alone():
    variant = Variant("fused", "fused", {}, applies_to=({"gpu": (True,)},))
    run = replace(RUN, variants=(*RUN.variants, variant))
    without, with_gpu = (len(plan(run, "env", lambda one: "code", gpu)[-1].cells) for gpu in (False, True))
    assert with_gpu == without + 2
    assert not_planned(run, gpu=False) == ["not planned: 4 cells that need a GPU"]
    assert not_planned(run, gpu=True) == []


def test_a_field_cannot_have_the_name_of_the_hosts_gpu():
    with pytest.raises(ConfigError, match=r"\[0\]\.gpu: here it is the host's GPU, so no field may be named"):
        checked_alternatives("suite.applies_to", [{"gpu": True}], {"gpu": {"type": "bool"}})


def test_offload_plans_what_is_sized_for_a_gpu_with_one_alone():
    (run,) = load(["suite=offload"])
    with_gpu, without = (
        [one for group in plan(run, "env", lambda variant: "code", gpu) for one in group.cells]
        for gpu in (True, False)
    )
    assert len(with_gpu) - len(without) == 43
    assert {one.workload for one in with_gpu} - {one.workload for one in without} == {"gpu_32gb", "gpu_10b"}
    assert "not planned: 43 cells that need a GPU" in not_planned(run, gpu=False)


def test_nothing_is_reported_where_nothing_is_left_out():
    assert left_out([(True, True)] * 5) == []


def test_every_applies_to_of_a_suite_is_read():
    (run,) = load(["suite=kernels"])
    assert run.applies_to
    assert {one.name for one in run.variants if one.applies_to} >= {"sdpa", "liger", "triton"}


def test_techniques_alone_apply_to_full_training_steps_in_kernels():
    (run,) = load(["suite=kernels"])
    alone = [
        one
        for one in run.variants
        if one.techniques and optimization_file(code_of("kernels"), one.module) is None
    ]
    assert alone
    assert all(one.applies_to == ({"operation": ("training_step",), "part": ("all",)},) for one in alone)


def test_no_cell_of_interconnect_is_planned_for_a_strategy_that_its_variant_refuses():
    (run,) = load(["suite=interconnect"])
    planned = {
        variant.name: {name for name in run.workloads if is_planned(run, variant, name, gpu=False)}
        for variant in run.variants
    }
    assert planned["hybrid_shard"] == {"fsdp2_two_a_node"}
    assert planned["bf16_reduce"] == planned["overlap"] == {"fsdp2", "ddp", "fsdp2_two_a_node"}
    assert planned["link.3g"] == set(run.workloads)
    assert not_planned(run, gpu=False) == ["not planned: 33 cells to which the variant does not apply"]
