"""Where bf16 products are slow, cells that have any run on smaller workloads, next to a baseline."""

from dataclasses import replace

import pytest
from planned import RUN

from harness.config.variants.optimizations import AGAIN, BASELINE, Variant
from harness.records import Sampling
from harness.sweep.estimate.host_probe import HostProbe
from harness.sweep.estimate.slow_bf16 import fit_to_host
from harness.sweep.plan import plan

VARIANTS = tuple(Variant(name, name, {}) for name in (BASELINE, AGAIN, "fp32", "bf16"))
FIELDS = RUN.workloads["b"]
NARROW = replace(
    RUN,
    variants=VARIANTS,
    workloads={"large": FIELDS, "other": FIELDS, "small": FIELDS},
    slow_bf16_workloads={"small": ("large",)},
    sampling=Sampling(),
    repeats=1,
)
FAST = HostProbe({"fp32": 50e9, "bf16": 70e9}, False)


def fitted(run=NARROW, variants=("bf16",), slow=True):
    """What is left by workload where the cells of `variants` have bf16 products, and the sentence."""
    groups = plan(run, "here", lambda variant: "code")
    flop = {one.id: 1e9 for group in groups for one in group.cells if one.optimization in variants}
    host = HostProbe({"fp32": 50e9, "bf16": 0.5e9}, True, flop) if slow else FAST
    kept, said = fit_to_host(run, groups, host)
    return {one.cells[0].workload: [cell.optimization for cell in one.cells] for one in kept}, said


def test_bf16_cells_move_to_the_smaller_workload_with_the_baselines():
    kept, said = fitted()
    assert kept == {
        "large": ["baseline", "baseline_again", "fp32"],
        "other": ["baseline", "baseline_again", "fp32", "bf16"],  # nothing smaller is named for it
        "small": ["baseline", "baseline_again", "bf16"],
    }
    assert said == ("slow bf16 leaves out 1 cell, replaced by smaller workloads: small",)


@pytest.mark.parametrize("slow", [True, False])
def test_without_slow_bf16_products_no_smaller_workload_is_run(slow):
    kept, said = fitted(variants=() if slow else ("bf16",), slow=slow)
    everything = ["baseline", "baseline_again", "fp32", "bf16"]
    assert (kept, said) == ({"large": everything, "other": everything}, ())


def test_without_a_probe_no_smaller_workload_is_run():
    groups = plan(NARROW, "here", lambda variant: "code")
    kept, said = fit_to_host(NARROW, groups, None)
    assert ([one.cells[0].workload for one in kept], said) == (["large", "other"], ())


def test_a_baseline_that_is_left_with_nothing_to_compare_is_not_run():
    run = replace(NARROW, variants=tuple(one for one in VARIANTS if one.name != "fp32"))
    kept, _ = fitted(run)
    assert kept.keys() == {"other", "small"}


def test_a_baseline_in_bf16_moves_as_a_whole():
    run = replace(NARROW, variants=VARIANTS[:2])
    kept, said = fitted(run, variants=(BASELINE, AGAIN))
    assert kept.keys() == {"other", "small"}
    assert said == ("slow bf16 leaves out 2 cells, replaced by smaller workloads: small",)
