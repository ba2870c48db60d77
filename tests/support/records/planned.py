"""A run of two toy workloads and two variants, and its cells, for tests of what precedes a sweep."""

from pathlib import Path

from harness.config.optimizations import Variant
from harness.config.run import Run
from harness.records import Limits
from harness.sweep.plan import plan

RUN = Run(
    suite="toy",
    question="",
    workloads={"a": {"size": 1, "train": True}, "b": {"size": 2, "train": False}},
    variants=(Variant("baseline", "baseline", {}), Variant("fast.x", "fast", {"x": 1})),
    isolate_if="train",
    sampling=None,
    rounds_field="",
    size_fields=(),
    repeats=2,
    seed=7,
    limits=Limits(1.0),
    executor="local",
    workers=1,
    out=Path("out"),
)


def cells(run, environment="env", code=lambda variant: "code"):
    return [cell for group in plan(run, environment, code) for cell in group.cells]
