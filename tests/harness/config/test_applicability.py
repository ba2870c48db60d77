"""What cannot apply is not planned, and is counted; a mistake in `applies_to` is refused in one line."""

import pytest

from harness.config.optimizations import applies, checked_alternatives
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.sweep.plan import not_planned, plan

FIELDS = {"operation": {"type": "str", "one_of": ["softmax", "attention"]}, "size": {"type": "int"}}


def alternatives(*given):
    return checked_alternatives("suite.applies_to", given, FIELDS)


def test_one_alternative_must_be_met_in_every_field():
    allowed = alternatives({"operation": "softmax", "size": [1, 2]}, {"operation": "attention", "gpu": True})
    assert applies(allowed, {"operation": "softmax", "size": 2}, gpu=False)
    assert not applies(allowed, {"operation": "softmax", "size": 3}, gpu=False)
    assert not applies(allowed, {"operation": "attention", "size": 3}, gpu=False)
    assert applies(allowed, {"operation": "attention", "size": 3}, gpu=True)
    assert applies((), {"operation": "softmax"}, gpu=False)
    for ends, sizes in (({"at_least": 2}, {2, 3, 9}), ({"at_least": 2, "at_most": 3}, {2, 3})):
        allowed = alternatives({"size": ends})
        assert {one for one in (1, 2, 3, 9, None) if applies(allowed, {"size": one}, gpu=False)} == sizes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"operatoin": "softmax"}, ".operatoin: no such name; did you mean operation"),
        ({"operation": ["softmax", 3]}, ".operation=3: expected text"),
        ({"operation": "matmul"}, ".operation='matmul': expected one of softmax, attention"),
        ({"operation": {"at_least": 3}}, ".operation={'at_least': 3}: expected"),
        ({"size": {"at_mots": 3}}, ".size={'at_mots': 3}: expected a value, a list, or of a number"),
        ({"size": {"at_least": "two"}}, ".size.at_least='two': expected a number"),
        ({"gpu": False}, ".gpu=False: expected true"),
        ({}, "={}: expected fields of a workload"),
        ("softmax", "='softmax': expected fields of a workload"),
    ],
)
def test_a_mistake_is_refused_in_one_line(given, said):
    with pytest.raises(ConfigError) as error:
        alternatives(given)
    assert str(error.value).startswith(f"suite.applies_to[0]{said.removesuffix(' text')}")
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"\[0\]\.gpu: here it is the host's GPU, so no field may be named"):
        checked_alternatives("suite.applies_to", [{"gpu": True}], {"gpu": {"type": "bool"}})


def planned(run, gpu=False):
    groups = plan(run, "env", lambda variant: "code", gpu)
    return {(cell.workload, cell.optimization) for group in groups for cell in group.cells}


def test_suites_plan_no_cell_that_their_code_refuses():
    (offload,) = load(["suite=offload"])
    on_gpu = planned(offload, gpu=True) - planned(offload)
    assert {workload for workload, _ in on_gpu} == {"gpu_32gb", "gpu_10b"}
    assert "not planned: 43 cells that need a GPU" in not_planned(offload, gpu=False)
    (run,) = load(["suite=interconnect"])
    cells = planned(run)
    assert {workload for workload, name in cells if name == "hybrid_shard"} == {"fsdp2_two_a_node"}
    assert not_planned(run, gpu=False) == ["not planned: 33 cells to which the variant does not apply"]
    (run,) = load(["suite=kernels", "only=[compile_sdpa_autocast]"])
    assert run.variants[-1].applies_to == ({"operation": ("training_step",), "part": ("all",)},)
