"""What a sweep knows of its host before it starts, and what that makes of cells in bf16."""

import sys
from dataclasses import replace

import pytest
from toy.sweep import cell, group

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import SET_UP_SAMPLES, Cell, Group, Limits, Sampling
from harness.sweep import preflight, sweep
from harness.sweep.environment import describe
from harness.sweep.in_child import in_child
from harness.sweep.plan import plan
from harness.sweep.preflight import HostProbe, probe, refuse_bad_inputs, survey, too_slow

SLOW = HostProbe({"fp32": 50e9, "bf16": 0.5e9}, True)
FAST = HostProbe({"fp32": 50e9, "bf16": 70e9}, False)


@pytest.fixture
def kernels(tmp_path):
    words = ["suite=kernels", "workloads=[step_5m_128,softmax_small]", "only=[autocast_bf16]", "repeats=2"]
    return replace(load(words)[0], out=tmp_path)


def groups_of(suite_run, gpu=False):
    return plan(suite_run, "here", lambda variant: "code", gpu=gpu)


def stub(monkeypatch, found):
    asked = []

    def in_child(module, function, group, timeout_s):
        asked.append(group)
        return found._asdict()

    monkeypatch.setattr(preflight, "in_child", in_child)
    return asked


@pytest.fixture
def slow_bf16(monkeypatch):
    """Let the child find slow bf16 products, without measuring any."""
    monkeypatch.setattr("harness.instruments.memory.bf16_products.bf16_is_slow", lambda: True)
    monkeypatch.setattr("harness.instruments.memory.bf16_products.matmul_FLOP_per_s", dict)


def test_the_child_measures_and_one_that_fails_is_a_warning(monkeypatch, tmp_path, kernels, caplog):
    found = HostProbe(**in_child("harness.sweep.preflight", "survey", Group(()), 120.0))
    assert found.bf16_FLOP == {}
    assert all(rate > 0 for rate in found.matmul_FLOP_per_s.values())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert probe(groups_of(kernels), tmp_path, describe()) is None
    assert "the host probe failed, continuing without it: exit code 1" in caplog.text


@pytest.mark.usefixtures("slow_bf16")
def test_the_kernels_suite_reports_its_bf16_products_and_no_others():
    """By hand: a product of M, N and K is 2 M N K; a step is counted by its own formula. Two workloads are
    there as the smaller ones of others."""
    from suites.kernels import training_step
    from suites.kernels.workload import Workload

    words = ["suite=kernels", "workloads=[step_5m_128,softmax_small,matmul_bf16]", "repeats=1"]
    words += ["only=[autocast_bf16,sdpa]", "suite.workloads.matmul_bf16.seq_len=100"]
    (suite_run,) = load(words)
    cells = [one for group in groups_of(suite_run) for one in group.cells]
    nowhere = Cell("x", "no_suite", "w", "baseline", "baseline", 0, 0, {"workload": {}})  # left to its run
    flop = survey(Group((*cells, nowhere)))["bf16_FLOP"]
    by_name = {(one.workload, one.optimization): flop[one.id] for one in cells if one.id in flop}
    assert len(by_name) == len(flop)
    step = training_step.flops(Workload(**suite_run.workloads["step_5m_128"]))
    assert by_name.pop(("step_5m_128", "autocast_bf16")) == step
    assert by_name.pop(("matmul_bf16", "baseline")) == 2.0 * 100 * 2048 * 2048
    assert by_name.pop(("matmul_bf16_small", "baseline")) == 2.0 * 256**3
    assert by_name.keys() == {("step_bf16_small", "autocast_bf16")}


def test_cells_timed_together_are_not_tried_where_slow_bf16_takes_minutes():
    sampling = Sampling(rounds=6, budget_s=1.0)
    base, long, short, alone, in_bf16, other = (cell("nothing", repeat=repeat) for repeat in range(6))
    groups = [group(base, long, short), group(in_bf16, other)]
    groups = [*(one._replace(sampling=sampling) for one in groups), group(alone)]
    calls = 6 + 5 + 2  # rounds, set-up, calibration and warm-up
    flop = {long.id: 61 * 2 * 0.5e9 / calls, short.id: 59 * 2 * 0.5e9 / calls}
    flop |= dict.fromkeys((alone.id, in_bf16.id, other.id), 1e11)
    ((found, reason),) = too_slow(groups, SLOW._replace(bf16_FLOP=flop), 2, Limits(600.0)).items()
    assert found == long.id
    assert reason.endswith("so bf16 cannot pay; timing the cell would take 61 s")


def test_a_model_too_large_for_this_machine_is_refused_before_the_sweep(monkeypatch, kernels, slow_bf16):
    words = ["suite.workload_from=tests/data/small_configs/llama.json", "suite.hf_defaults.seq_len=16"]
    own = replace(load(["suite=kernels", *words])[0], out=kernels.out)
    monkeypatch.setattr("suites.kernels.suite.too_large", lambda subject: "a step needs 5 TB")
    assert survey(groups_of(kernels)[0])["too_large"] == ""  # which has no model of the user's
    stub(monkeypatch, FAST._replace(too_large=survey(groups_of(own)[0])["too_large"]))
    with pytest.raises(ConfigError, match=r"^suite\.workload_from: a step needs 5 TB$"):
        sweep.prepare(own)


def test_a_plan_on_a_slow_cpu_is_smaller_and_leaves_out_what_would_not_end(monkeypatch, kernels):
    groups = sweep.groups_of(kernels, describe())
    slow = {one.id: 1e12 for g in groups for one in g.cells if one.optimization == "autocast_bf16"}
    asked = stub(monkeypatch, SLOW._replace(bf16_FLOP=slow))
    lines, _ = sweep.planned_sweep(kernels)
    assert lines[0].startswith("bf16: matrix products run 100 times slower than in fp32 on this CPU; ")
    assert "slow bf16 leaves out 2 cells, replaced by smaller workloads: step_bf16_small" in lines
    assert any("planned as unavailable" in line for line in lines)
    assert len(asked) == 1
    here = sweep.prepare(kernels)
    assert here.environment.matmul_FLOP_per_s == SLOW.matmul_FLOP_per_s
    assert here.messages[0] == lines[0]
    found = sweep.outlook(here, {})
    named = {one.id: (one.workload, one.optimization) for g in groups for one in g.cells}
    assert {named[one] for one in found.not_tried} == {("step_bf16_small", "autocast_bf16")}
    assert not found.not_tried.keys() & found.estimate.cells.keys()
    stub(monkeypatch, FAST)  # where nothing is slow, nothing is reported and all is tried
    here = sweep.prepare(kernels)
    assert not any("bf16" in line for line in here.messages)
    assert "step_bf16_small" not in {one.workload for g in here.groups for one in g.cells}
    assert sweep.outlook(here, {}).not_tried == {}


def test_a_suite_that_fails_to_build_or_builds_for_too_long_is_one_line(monkeypatch):
    groups = [group(cell("nothing"))._replace(package="no_such_package")]
    with pytest.raises(ConfigError) as error:
        refuse_bad_inputs(groups)
    assert str(error.value).startswith("the suite cannot build its cells: ModuleNotFoundError: ")
    assert "\n" not in str(error.value)
    monkeypatch.setattr(preflight, "BUILD_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigError, match=r"it took longer than 0\.01 s"):
        refuse_bad_inputs(groups)


def test_the_offload_suite_counts_the_steps_of_its_course_of_plain_pytorch_and_of_the_bytes(monkeypatch):
    import suites.offload.suite as offload

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fields = load(["suite=offload", "workloads=[llama_bf16_small]"])[0].workloads["llama_bf16_small"]
    layer = 4 * 256**2 + 3 * 256 * 688 + 2 * 256
    parameters = 3 * layer + 2 * 128 * 256 + 256
    bytes_of = 2 + 2 + 1 + 2  # settling, steady, of what moves, of what is sent
    flop = 6.0 * parameters * (2 * 32) * (16 + 16 + bytes_of)
    assert offload.bf16_FLOP(offload.build(fields, 1)) == pytest.approx(flop / SET_UP_SAMPLES)
    many = {**fields, "loss_steps": 8}  # a sample then has the more steps
    assert offload.bf16_FLOP(offload.build(many, 1)) == pytest.approx(flop / (16 + 16 + bytes_of) * 5)
    assert offload.bf16_FLOP(offload.build({**fields, "precision": "fp32"}, 1)) == 0
