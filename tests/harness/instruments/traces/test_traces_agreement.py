"""The breakdown agrees with a count that shares no code with it, on random traces and on small cases."""

from pathlib import Path

import numpy as np
import pytest
from counted_trace import counted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_traces import EPOCH_NS, FORMATS, Writer

from harness.config.code_fingerprint import ROOT
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_trace
from harness.instruments.traces.segments import State

CASES = ROOT / "tests/data/traces"
KERNELS = {
    "gemm": "computing",
    "void at::native::reduce_kernel<512>(int)": "computing",
    "triton_poi_fused_all_reduce_0": "computing",
    "ncclDevKernel_SendRecv(int)": "communication",
    "void dpsk::ep::internode::combine<8>(int)": "communication",
    "two_shot_all_reduce_kernel": "communication",
}
COMMUNICATION = r"ncclDev|dpsk::ep|two_shot"
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*KERNELS, "copy"]),
        st.integers(0, 90),
        st.integers(0, 40),
        st.none() | st.integers(0, 30),
        st.integers(7, 9),
    ),
    max_size=25,
)


def ms_of(found):
    """Return the mean step's times by kind, in milliseconds."""
    state = {one: 1e3 * found.step_s * found.share_of(one) for one in State}
    idle = sum(state[one] for one in State if one > State.COPYING and one != State.WAITING_FOR_RANK)
    return {
        "computing": state[State.COMPUTING],
        "communication": 1e3 * (found.overlapped_s + found.exposed_s),
        "exposed": state[State.COMMUNICATION],
        "copies": state[State.COPYING],
        "idle": idle,
    }


def assert_agree(path: Path, communication: str, steps: int = 1, between=None):
    found = breakdown((read_trace(path),))
    assert len(found.step_numbers) == steps
    count = counted(path, communication, between)
    for kind, time_ms in ms_of(found).items():
        assert time_ms * steps * 1e6 == pytest.approx(count[kind], abs=2e-3 * count["span"]), kind
        assert time_ms * steps * 1e6 == pytest.approx(count[kind], abs=1e-3), kind


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(EVENTS, st.sampled_from(FORMATS), st.booleans())
def test_random_traces(tmp_path, events, version, marked):
    unit = 1000  # the oldest format has whole microseconds
    one = Writer(format=version)
    one.host_event("aten::mm", 0, 150 * unit)
    if marked:
        for number in range(3):
            one.step(number, 50 * unit * number, 50 * unit * (number + 1))
    one.kernel("gemm", 60 * unit, 70 * unit, called=0)
    for name, start, length, early, stream in events:
        called = None if early is None else max(start - early, 0) * unit
        category = "gpu_memcpy" if name == "copy" else "kernel"
        name = "Memcpy HtoD (Host -> Device)" if name == "copy" else name
        end = min(start + length, 149) * unit
        one.kernel(
            name, start * unit, max(end, start * unit), called=called, stream=stream, category=category
        )
    base = EPOCH_NS if version in ("1.10", "2.1") else 0
    between = (base, base + 150 * unit)
    assert_agree(one.write(tmp_path), COMMUNICATION, 3 if marked else 1, between)


def test_communication_without_the_names_of_nccl():
    """Nine products of 0.1 ms, and nine kernels of seven libraries of 0.09 ms, the last one half exposed."""
    found = ms_of(breakdown((read_trace(CASES / "communication_without_nccl.json"),)))
    assert found == pytest.approx(
        {"computing": 0.9, "communication": 0.81, "exposed": 0.05, "copies": 0, "idle": 0.05}
    )


def test_a_trace_without_steps_is_one_from_its_first_to_its_last_event():
    path = CASES / "without_profiler_step.json"
    assert_agree(path, r"deep_ep|nvshmem|mscclpp|rccl|multimem|symm_mem|userbuffers")
    found = breakdown((read_trace(path),))
    assert found.step_s == pytest.approx(0.99e-3)
    assert ms_of(found)["computing"] == pytest.approx(0.9)
    assert "from its first to its last event" in found.steps_found


def test_the_count_is_right_where_a_grid_counts_each_nanosecond(tmp_path):
    """The sweep itself, compared with a mask of every nanosecond."""
    rng = np.random.default_rng(5)
    one = Writer(format="2.4")
    grid = {"computing": np.zeros(300, bool), "communication": np.zeros(300, bool)}
    for kind, name in (("computing", "gemm"), ("communication", "ncclDevKernel")):
        for start, length in rng.integers(0, 100, (12, 2)).tolist():
            one.kernel(name, start, start + length)
            grid[kind][start : start + length] = True
    compute, communicate = grid.values()
    count = counted(one.write(tmp_path), "nccl", (0, 300))
    assert count["computing"] == compute.sum()
    assert count["exposed"] == (communicate & ~compute).sum()
    assert count["idle"] == (~compute & ~communicate).sum()
