"""The profiling suite without ranks: what is injected, counted and named, and the step."""

import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from marked import wait_for
from torch.utils.flop_counter import FlopCounterMode

from harness.instruments import control_group
from harness.instruments.timing import core_account
from harness.instruments.timing.device_telemetry import DeviceState, nvml_reader
from harness.instruments.traces.factors import TimeShare
from harness.instruments.traces.segments import State
from suites.profiling import competing_process
from suites.profiling.diagnosis import ALL_RANKS, Recording, diagnose, lower_bound, middle
from suites.profiling.measure import losses_s, model_FLOP, relative_clock
from suites.profiling.ranks import RankRecord
from suites.profiling.recorder import StepAccount
from suites.profiling.workload import Workload
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 32, "seq_len": 16,
}  # fmt: skip


@pytest.mark.parametrize("last_signal", ["CONT", "STOP"])
def test_a_competing_process_ends_with_its_parent_even_while_stopped(tmp_path, last_signal):
    out = tmp_path / "out"
    child = f"{sys.executable} {competing_process.__file__} {min(os.sched_getaffinity(0))} 0.1 0.01"
    until_busy = f"until grep -q busy {out}; do sleep 0.01; done"
    command = f"{child} > {out} & {until_busy}; kill -{last_signal} $!; echo $!"
    pid = int(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    try:
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), limit_s=20)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_throttled_time_is_that_of_the_own_group(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(control_group, "PROC", tmp_path)
    for groups, mount, stat, expected_s in (
        ("4:cpu,cpuacct:/a\n0::/\n", "cgroup cgroup rw,cpu,cpuacct", "throttled_time 1500000000", 1.5),
        ("0::/a\n", "cgroup2 cgroup rw", "throttled_usec 250000", 0.25),
        ("0::/a\n", "cgroup2 cgroup rw", "usage_usec 7", 0.0),
        ("0::/a\n", "ext4 disk rw", "throttled_usec 250000", 0.0),
    ):
        (tmp_path / "a/cpu.stat").write_text(f"nr_periods 3\n{stat}\n")
        (tmp_path / "cgroup").write_text(groups)
        (tmp_path / "mountinfo").write_text(f"30 20 0:25 / {tmp_path} rw - {mount}\n")
        assert core_account.throttled_s() == expected_s


def test_the_relative_clock_is_by_the_sampled_clock_or_else_by_the_chain():
    steps = [StepAccount(**dict.fromkeys(StepAccount._fields, 2e-4))] * 4
    assert relative_clock([RankRecord(steps, steps, {})] * 2, 1.5e-4) == pytest.approx(0.75)
    sampled = {"clock_Hz": 1.4e9, "peak_clock_Hz": 2.0e9}
    assert relative_clock([RankRecord(steps, steps, sampled)] * 2, 1.5e-4) == pytest.approx(0.7)


def test_an_nvidia_gpu_is_read_in_base_units():
    """NVML's units are MHz and mW; an idle GPU and set clocks are no throttling."""
    library = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksThrottleReasonGpuIdle=1,
        nvmlClocksThrottleReasonApplicationsClocksSetting=2,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1410, 2: 2619}[kind],
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980}[kind],
        nvmlDeviceGetPowerUsage=lambda handle: 650_000,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
    )
    for reasons, throttled in ((0, 0.0), (3, 0.0), (4, 1.0), (5, 1.0)):
        library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle, reasons=reasons: reasons
        state = nvml_reader(library, handle=7)()
        assert state == pytest.approx(DeviceState(1.41e9, 1.98e9, 2.619e9, 650.0, 61.0, throttled))


def test_the_model_FLOP_are_those_of_its_products():
    """6 per parameter contains the embedding, which multiplies nothing, and the norms."""
    workload = Workload(**SIZES, micro_batch_size=3)
    trainer = Trainer(build_step(workload.training, [], 0))
    with FlopCounterMode(display=False) as counter:
        trainer.train_step(trainer.text_batches())
    norms = (2 * workload.num_hidden_layers + 1) * workload.hidden_size
    no_products = 6 * 3 * workload.seq_len * (workload.vocab_size * workload.hidden_size + norms)
    assert model_FLOP(workload) - no_products == pytest.approx(counter.get_total_flops(), rel=1e-6)


def test_losses_are_differences_along_the_chain_of_factors():
    chain = [("frequency", 0.03), ("not separated", 0.08), ("exposed communication", 0.09)]
    factors = [SimpleNamespace(name=name, time_s=time_s) for name, time_s in chain]
    found = SimpleNamespace(factors=SimpleNamespace(base_name="theoretical", base_s=0.02, factors=factors))
    lost_s = losses_s(found)
    assert lost_s == pytest.approx({"frequency": 0.01, "not separated": 0.05, "exposed communication": 0.01})
    found.factors.base_name = "computing, with theoretical"
    assert losses_s(found) == {}


PAIRS = 14
STATES_MS = {"COMPUTING": 80.0, "COMMUNICATION": 6.0, "PREPARING": 5.0, "WAITING_FOR_DATA": 2.0}
NOTHING = {**dict.fromkeys(StepAccount._fields, 0.0), "chain_s": 1e-4}


def rank_of(number, rng, account=None, has_device=False, **longer_ms):
    """Return a rank's breakdown and record: its states with noise, longer in each second step of a pair."""
    scale = 1 + 0.03 * rng.standard_normal(2 * PAIRS)  # of all states of a step together
    columns = {
        State[name]: (ms + longer_ms.get(name, 0.0) * (np.arange(2 * PAIRS) % 2)) * scale
        for name, ms in STATES_MS.items()
    }
    order = rng.permuted(np.arange(2 * PAIRS).reshape(-1, 2), axis=1).ravel()  # of steps in time
    shares = [TimeShare(state, "", tuple(column[order] * 1e6)) for state, column in columns.items()]
    found = SimpleNamespace(
        rank=number,
        shares=shares,
        step_ns=tuple(sum(columns.values())[order] * 1e6),
        activity=SimpleNamespace(
            steps=[SimpleNamespace(number=2 * int(one)) for one in order],
            trace=SimpleNamespace(has_device=has_device),
        ),
        chosen=tuple(range(2 * PAIRS)),
    )
    without = [StepAccount(**NOTHING)] * PAIRS
    return found, RankRecord(without, [StepAccount(**{**NOTHING, **(account or {})})] * PAIRS, {})


def recording(*ranks):
    """Return the recording of these ranks."""
    found, records = zip(*ranks, strict=True)
    return Recording(SimpleNamespace(ranks=found), records, 1e-4)


def slowed(seed, account=None, **longer_ms):
    """Return a recording in which rank 1 takes longer."""
    rng = np.random.default_rng(seed)
    return recording(rank_of(0, rng), rank_of(1, rng, account, **longer_ms))


SLOWER_MS = {"COMPUTING": 25.0, "PREPARING": 2.0}
CASES = {
    "data_wait": ({"WAITING_FOR_DATA": 20.0}, {}, 0.020),
    "launch_sleep": ({"PREPARING": 16.0}, {}, 0.016),
    "competing_load": (SLOWER_MS, {"waited_for_core_s": 0.028}, 0.027),
    "cpu_quota": (SLOWER_MS, {"waited_for_core_s": 0.028, "throttled_s": 0.025}, 0.027),
    "slower_clock": ({"COMPUTING": 20.0, "PREPARING": 1.0}, {"chain_s": 1.25e-4}, 0.021),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_of_one_rank_is_named_as_what_it_is(name):
    longer_ms, account, expected_s = CASES[name]
    found = diagnose(slowed(2, account, **longer_ms))
    assert [one[:2] for one in found] == [(name, 1)]
    assert found[0].seconds == pytest.approx(expected_s, abs=0.0025)


def test_a_slower_link_is_named_as_one_of_all_ranks_unless_a_late_rank_exposes_it():
    rng = np.random.default_rng(2)
    found = diagnose(recording(*(rank_of(rank, rng, COMMUNICATION=14.0) for rank in (0, 1))))
    assert [one[:2] for one in found] == [("slow_link", ALL_RANKS)]
    assert found[0].seconds == pytest.approx(0.014, abs=0.001)
    late = rank_of(1, rng, COMMUNICATION=14.0, WAITING_FOR_DATA=20.0)
    found = diagnose(recording(rank_of(0, rng, COMMUNICATION=14.0), late))
    assert [one[:2] for one in found] == [("data_wait", 1)]


def test_longer_computing_that_nothing_explains_is_not_named():
    """On an H100 a slower core did, in 1 of 8 recordings: a rank's core was slower while it waited."""
    assert diagnose(slowed(2, COMPUTING=25.0)) == []
    longer_ms, account, _ = CASES["slower_clock"]
    assert diagnose(slowed(2, account, has_device=True, **longer_ms)) == []


def test_nothing_is_named_in_steps_that_differ_by_noise():
    account = {"waited_for_core_s": 0.01, "throttled_s": 0.01, "chain_s": 1.1e-4}  # explains anything
    assert sum(bool(diagnose(slowed(seed, account))) for seed in range(200)) <= 2


def test_the_lower_bound_is_rarely_above_the_truth_and_the_middle_leaves_disturbed_steps_out():
    rng = np.random.default_rng(5)
    above = sum(lower_bound(rng.standard_t(3, 14), 0.05) > 0 for _ in range(2000))
    assert 0.02 < above / 2000 < 0.07
    assert lower_bound(np.array([1.0]), 0.05) == -math.inf
    assert middle(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0, 0.0])) == 1.0
