"""The kernels suite's workloads and optimizations through pytest-benchmark, a group per operation.

`pytest tests/benchmarks/test_kernels.py --benchmark-only -k softmax`. Here one variant is timed after the
other, in one process; `python -m harness suite=kernels` times them in pairs, and reports what differences
mean.
"""

from importlib import import_module

import pytest
import torch
import variants

from harness.config.run import load
from harness.records import Unavailable
from harness.sweep.worker import host

RUN = load(["suite=kernels"])[0]
SUITE = import_module("suites.kernels.suite")
ARMS = {
    f"{number:02}-{variant.name}": variant
    for number, variant in enumerate(RUN.variants)
    if variant.name != "baseline_again"
}


def prepared(workload, variant):
    """Return the variant's session, its result compared with float64; skips where it cannot be timed here."""
    try:
        if reason := variants.unavailable("kernels", variant, host(torch)):
            raise Unavailable(reason)
        subject = variants.applied("kernels", variant, SUITE.build(RUN.workloads[workload], RUN.seed))
    except Unavailable as reason:
        pytest.skip(str(reason))
    session = SUITE.prepare(subject)
    SUITE.check(session)
    if not SUITE.timed(session):
        pytest.skip(f"{variant.name} is checked here and never timed")
    return session


@pytest.mark.parametrize("variant", ARMS)
@pytest.mark.parametrize("workload", RUN.workloads)
@pytest.mark.benchmark(warmup=True, warmup_iterations=3, min_rounds=5, max_time=1.0)
def test_kernel(benchmark, workload, variant):
    benchmark.group = workload
    session = prepared(workload, ARMS[variant])
    work, device = session.work, session.subject.device

    def call():
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    benchmark(call)
    SUITE.close(session)
