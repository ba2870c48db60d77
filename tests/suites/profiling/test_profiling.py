"""The profiling suite without ranks: what is injected, what is counted, and the step."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.instruments.timing import core_account
from harness.instruments.timing.device_telemetry import (
    DeviceSampler,
    DeviceState,
    amdsmi_reader,
    cpu_reader,
    nvml_reader,
    telemetry_means,
    telemetry_readings,
)
from harness.records import UNITS, Unavailable
from suites.profiling import competing_process, recorder
from suites.profiling.diagnosis import ALL_RANKS
from suites.profiling.measure import losses_s, model_FLOP, relative_clock
from suites.profiling.ranks import RankRecord
from suites.profiling.recorder import Sleeper, StepAccount, Subject, baseline, before_launches, send_as
from suites.profiling.suite import build
from suites.profiling.workload import Workload

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 32,
    "seq_len": 16,
}


# -- what is injected


def test_a_sleeper_sums_what_its_sleeps_took(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(recorder.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(recorder.time, "sleep", lambda s: now_s.__setitem__(0, now_s[0] + s + 1e-4))
    sleeper = Sleeper(0.002, every=3)
    for active in (False, True):
        sleeper.active = active
        for _ in range(10):
            sleeper()
    assert sleeper.slept_s == pytest.approx(3 * 0.0021)


def test_launches_are_those_of_linear_layers_and_hooks_are_removed():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    calls = []
    end = before_launches(SimpleNamespace(plain=model), lambda: calls.append(1))
    model(torch.ones(1, 4))
    model(torch.ones(1, 4))
    end()
    model(torch.ones(1, 4))
    assert len(calls) == 4


@pytest.mark.parametrize("last_signal", ["CONT", "STOP"])
def test_a_competing_process_ends_with_its_parent_even_while_stopped(tmp_path, last_signal):
    out = tmp_path / "out"
    child = f"{sys.executable} {competing_process.__file__} {min(os.sched_getaffinity(0))} 0.1 0.01"
    until_busy = f"until grep -q busy {out}; do sleep 0.01; done"
    parent = subprocess.run(
        ["sh", "-c", f"{child} > {out} & {until_busy}; kill -{last_signal} $!; echo $!"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    pid = int(parent.stdout)
    until_s = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    try:
        assert not Path(f"/proc/{pid}").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["data_wait", "launch_sleep", "competing_load", "cpu_quota"])
def test_a_rank_that_there_is_not_is_refused_in_one_line(kind):
    subject = Subject(Workload(**SIZES), 0, None)
    assert subject.with_injection(kind=kind).injection.rank == 1
    assert subject.with_injection(kind=kind, rank=0).injection.rank == 0
    with pytest.raises(Unavailable, match="into rank 2: ranks are 0 to 1") as refused:
        subject.with_injection(kind=kind, rank=2)
    assert "\n" not in str(refused.value)
    assert subject.with_injection(kind="slow_link", rank=ALL_RANKS).injection.rank == ALL_RANKS


# -- what is counted


@pytest.mark.parametrize(
    ("groups", "mount", "stat", "expected_s"),
    [
        ("4:cpu,cpuacct:/a\n0::/\n", "cgroup cgroup rw,cpu,cpuacct", "throttled_time 1500000000", 1.5),
        ("0::/a\n", "cgroup2 cgroup rw", "throttled_usec 250000", 0.25),
        ("0::/a\n", "cgroup2 cgroup rw", "usage_usec 7", 0.0),
        ("0::/a\n", "ext4 disk rw", "throttled_usec 250000", 0.0),
    ],
)
def test_throttled_time_is_that_of_the_own_group(tmp_path, monkeypatch, groups, mount, stat, expected_s):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/cpu.stat").write_text(f"nr_periods 3\n{stat}\n")
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(f"30 20 0:25 / {tmp_path} rw - {mount}\n")
    monkeypatch.setattr(core_account, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(core_account, "MOUNTS", tmp_path / "mountinfo")
    assert core_account.throttled_s() == expected_s


def test_waiting_for_a_core_is_in_seconds(tmp_path, monkeypatch):
    (tmp_path / "schedstat").write_text("5000000000 2500000000 12\n")
    monkeypatch.setattr(core_account, "SCHEDSTAT", tmp_path / "schedstat")
    assert core_account.waited_s() == 2.5
    monkeypatch.setattr(core_account, "SCHEDSTAT", tmp_path / "none")
    assert core_account.waited_s() == 0.0


def test_the_fastest_of_a_few_chains_counts(monkeypatch):
    times_s = iter([0.9, 0.4, 0.5])
    monkeypatch.setattr(core_account, "_one_chain_s", lambda: next(times_s))
    assert core_account.chain_s() == 0.4


def test_the_relative_clock_is_by_the_sampled_clock_or_else_by_the_chain():
    steps = [StepAccount(**dict.fromkeys(StepAccount._fields, 2e-4))] * 4
    assert relative_clock([RankRecord(steps, steps, {})] * 2, 1.5e-4) == pytest.approx(0.75)
    sampled = {"clock_Hz": 1.4e9, "peak_clock_Hz": 2.0e9}
    assert relative_clock([RankRecord(steps, steps, sampled)] * 2, 1.5e-4) == pytest.approx(0.7)


class Nvml:
    """NVML's functions that are read, in its units: MHz and mW."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonGpuIdle, nvmlClocksThrottleReasonApplicationsClocksSetting = 1, 2

    def __init__(self, reasons):
        self.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: reasons

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1410, 2: 2619}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return {1: 1980}[kind]

    def nvmlDeviceGetPowerUsage(self, handle):
        return 650_000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 61


@pytest.mark.parametrize(("reasons", "throttled"), [(0, 0.0), (3, 0.0), (4, 1.0), (5, 1.0)])
def test_an_nvidia_gpu_is_read_in_base_units(reasons, throttled):
    state = nvml_reader(Nvml(reasons), handle=7)()
    assert state == pytest.approx(DeviceState(1.41e9, 1.98e9, 2.619e9, 650.0, 61.0, throttled))


def test_an_amd_gpu_is_read_in_base_units():
    clocks = {"gfx": {"clk": 1650, "max_clk": 2100}, "mem": {"clk": 1300, "max_clk": 1300}}
    library = SimpleNamespace(
        AmdSmiClkType=SimpleNamespace(GFX="gfx", MEM="mem"),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT="hot"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="now"),
        amdsmi_get_clock_info=lambda handle, kind: clocks[kind],
        amdsmi_get_power_info=lambda handle: {"current_socket_power": 700},
        amdsmi_get_temp_metric=lambda handle, sensor, metric: 66,
    )
    assert amdsmi_reader(library, 0)() == DeviceState(1.65e9, 2.1e9, 1.3e9, 700.0, 66.0, None)


def test_a_cpu_is_read_where_the_kernel_exposes_it(tmp_path):
    assert cpu_reader(tmp_path, tmp_path) is None
    for number, kHz in enumerate((2_000_000, 3_000_000)):
        (tmp_path / f"cpu{number}/cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{number}/cpufreq/scaling_cur_freq").write_text(f"{kHz}\n")
    (tmp_path / "thermal_zone0").mkdir()
    (tmp_path / "thermal_zone0/temp").write_text("48500\n")
    read = cpu_reader(tmp_path, tmp_path)
    assert read is not None
    assert read() == DeviceState(clock_Hz=pytest.approx(2.5e9), temperature_C=pytest.approx(48.5))


def test_the_sampler_reads_until_its_end_and_means_leave_out_what_is_not_read():
    numbers = count()
    with DeviceSampler(lambda: DeviceState(clock_Hz=float(next(numbers)), power_W=100.0), 1e-3) as sampler:
        while len(sampler.samples) < 3:
            time.sleep(1e-3)
    taken = len(sampler.samples)
    means = telemetry_means(sampler.samples)
    assert means == {"clock_Hz": pytest.approx((taken - 1) / 2), "power_W": 100.0}
    assert {one.unit for one in telemetry_readings(means, "rank 0")} == {"Hz", "W"} <= UNITS


# -- the step


def test_the_model_FLOP_are_those_of_its_products():
    """6 per parameter contains the embedding, which multiplies nothing, and the norms."""
    from torch.utils.flop_counter import FlopCounterMode

    from suites.training.techniques import build_step
    from suites.training.trainer import Trainer

    workload = Workload(**SIZES, micro_batch_size=3)
    trainer = Trainer(build_step(workload.training, [], 0))
    with FlopCounterMode(display=False) as counter:
        trainer.train_step(trainer.text_batches())
    norms = (2 * workload.num_hidden_layers + 1) * workload.hidden_size
    no_products = 6 * 3 * workload.seq_len * (workload.vocab_size * workload.hidden_size + norms)
    assert model_FLOP(workload) - no_products == pytest.approx(counter.get_total_flops(), rel=1e-6)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_the_step_shares_the_model_as_its_workload_says(parallelism):
    step = baseline(Workload(**SIZES, parallelism=parallelism), 0).step
    assert step.settings_of(parallelism) is not None
    assert step.ranks == 2


def test_the_step_of_one_rank_is_not_shared():
    workload = Workload(**SIZES, parallelism="none", dp_size=1)
    subject = baseline(workload, 0)
    assert subject.step.ranks == 1
    assert subject.with_injection(kind="data_wait").injection.rank == 0


def test_ranks_that_share_nothing_are_refused_in_one_line():
    with pytest.raises(Unavailable, match="parallelism=none is for one rank, and dp_size=2") as refused:
        build({**SIZES, "parallelism": "none"}, 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sharded", "calls"),
    [(False, [("all_reduce", 8)]), (True, [("gather", 8, 4), ("gather", 8, 4), ("scatter", 4, 8)])],
)
def test_what_a_step_sends_is_sent_alone(monkeypatch, sharded, calls):
    """DDP reduces all gradients; FSDP gathers for both passes, and scatters the reduced gradients."""
    seen = []
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda whole: seen.append(("all_reduce", len(whole))))
    for name, called in (("all_gather_into_tensor", "gather"), ("reduce_scatter_tensor", "scatter")):
        monkeypatch.setattr(
            dist, name, lambda out, given, called=called: seen.append((called, len(out), len(given)))
        )
    send_as(sharded, torch.ones(8))
    assert seen == calls


def test_losses_are_differences_along_the_chain_of_factors():
    chain = [("frequency", 0.03), ("not separated", 0.08), ("exposed communication", 0.09)]
    factors = [SimpleNamespace(name=name, time_s=time_s) for name, time_s in chain]
    found = SimpleNamespace(factors=SimpleNamespace(base_name="theoretical", base_s=0.02, factors=factors))
    lost_s = losses_s(found)
    assert lost_s == pytest.approx({"frequency": 0.01, "not separated": 0.05, "exposed communication": 0.01})
    found.factors.base_name = "computing, with theoretical"
    assert losses_s(found) == {}
