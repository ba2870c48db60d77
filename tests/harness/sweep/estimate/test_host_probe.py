"""What a sweep knows of its host before it starts, and what that makes of cells in bf16."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from planned import RUN
from toy.sweep import LIMITS, cell, group

from harness.commands.run.suites import run_command
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import SET_UP_SAMPLES, Cell, Limits, Sampling, Status
from harness.sweep import sweep
from harness.sweep.environment import Gpu, describe
from harness.sweep.estimate import host_probe
from harness.sweep.estimate.host_probe import (
    HostProbe,
    has_bf16_products,
    keep,
    own_model_seconds,
    probe,
    product_seconds,
    too_slow,
    too_slow_to_pay,
)
from harness.sweep.estimate.slow_bf16 import fit_to_host
from harness.sweep.estimate.survey import bf16_FLOP, own_model
from harness.sweep.executors.local import create
from harness.sweep.plan import plan
from harness.sweep.runner import pending, run
from harness.sweep.skip_rules import NOT_TRIED
from harness.sweep.store import Store, read_records

SLOW = HostProbe({"fp32": 50e9, "bf16": 0.5e9}, True)
FAST = HostProbe({"fp32": 50e9, "bf16": 70e9}, False)


@pytest.fixture
def kernels():
    """Return steps and products, planned as on this host."""
    words = ["suite=kernels", "workloads=[step_5m_128,softmax_small]", "only=[autocast_bf16]", "repeats=2"]
    return load(words)[0]


def groups_of(suite_run):
    return plan(suite_run, "here", lambda variant: "code")


def stub(monkeypatch, found):
    """Have the child find `found`; returns the groups that it was asked about."""
    asked = []

    def measured(group):
        asked.append(group)
        return found

    monkeypatch.setattr(host_probe, "_measured", measured)
    return asked


def test_a_cpu_that_is_slow_is_reported_and_another_is_not():
    assert SLOW.sentence == (
        "bf16: matrix products run 100 times slower than in fp32 on this CPU; "
        "bf16 rows measure that, not a GPU's gain"
    )
    assert FAST.sentence == ""


def test_only_suites_with_bf16_products_are_probed(monkeypatch, tmp_path):
    asked = stub(monkeypatch, FAST)
    assert all(map(has_bf16_products, ("kernels", "offload", "interconnect")))
    assert not has_bf16_products("congestion")
    assert probe(groups_of(load(["suite=congestion"])[0]), tmp_path, describe()) is None
    assert probe([], tmp_path, describe()) is None
    assert asked == []


def test_on_a_gpu_nothing_is_measured(monkeypatch, tmp_path, kernels):
    asked = stub(monkeypatch, SLOW)
    there = describe()._replace(gpus=(Gpu("H100", 80 << 30),))
    assert probe(groups_of(kernels), tmp_path, there) is None
    assert asked == []


def test_a_host_is_measured_once_per_folder(monkeypatch, tmp_path, kernels):
    asked, here = stub(monkeypatch, FAST), describe()
    found = probe(groups_of(kernels), tmp_path, here)
    assert found == FAST
    keep(found, tmp_path, here)
    assert probe(groups_of(kernels), tmp_path, here) == FAST
    assert len(asked) == 1
    assert probe(groups_of(kernels), tmp_path, here._replace(cpu="another")) == FAST
    assert len(asked) == 2


def test_where_bf16_is_slow_the_suite_is_asked_once_per_variant_and_answers_for_every_repeat(
    monkeypatch, tmp_path, kernels
):
    groups = groups_of(kernels)
    narrow = [one for g in groups for one in g.cells if one.optimization == "autocast_bf16"]
    first = next(one for one in narrow if one.workload == "step_5m_128")
    asked = stub(monkeypatch, SLOW._replace(bf16_FLOP={first.id: 3e10}))
    keep(SLOW, tmp_path, describe())
    found = probe(groups, tmp_path, describe())
    repeats = {one.id for one in narrow if one.workload == "step_5m_128"}
    assert found.bf16_FLOP == dict.fromkeys(repeats, 3e10)
    assert len(repeats) == 2
    assert len(asked[0].cells) == len({(one.workload, one.optimization) for one in asked[0].cells})


def test_a_child_that_fails_is_a_warning_and_no_end(monkeypatch, tmp_path, kernels, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert probe(groups_of(kernels), tmp_path, describe()) is None
    assert "the host probe failed, continuing without it: exit code 1" in caplog.text


def test_the_child_measures_and_speaks_json():
    group = json.dumps([[], "suites", None])
    done = subprocess.run(
        [sys.executable, "-m", "harness.sweep.estimate.survey"],
        input=group,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = HostProbe(**json.loads(done.stdout))
    assert found.bf16_FLOP == {}
    assert all(rate > 0 for rate in found.matmul_FLOP_per_s.values())


def test_the_kernels_suite_reports_its_bf16_products_and_no_others():
    """By hand: a product of M, N and K is 2 M N K; a step is counted by its own formula. Two workloads are
    there as the smaller ones of others."""
    from suites.kernels.step import training_step
    from suites.kernels.workload import Workload

    words = [
        "suite=kernels",
        "workloads=[step_5m_128,softmax_small,matmul_bf16]",
        "only=[autocast_bf16,sdpa]",
    ]
    suite_run = load([*words, "repeats=1", "suite.workloads.matmul_bf16.seq_len=100"])[0]
    cells = [one for group in groups_of(suite_run) for one in group.cells]
    flop = bf16_FLOP(cells, "suites")
    by_name = {(one.workload, one.optimization): flop[one.id] for one in cells if one.id in flop}
    step = training_step.flops(Workload(**suite_run.workloads["step_5m_128"]))
    assert by_name.pop(("step_5m_128", "autocast_bf16")) == step
    assert by_name.pop(("matmul_bf16", "baseline")) == 2.0 * 100 * 2048 * 2048
    assert by_name.pop(("matmul_bf16_small", "baseline")) == 2.0 * 256**3
    assert by_name.keys() == {("step_bf16_small", "autocast_bf16")}


def test_on_a_cpu_that_is_slow_at_bf16_every_cell_of_offload_ends_within_its_limit(monkeypatch):
    """At 0.5 GFLOP/s on two cores; all of its cells run on smaller workloads there."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (suite_run,) = load(["suite=offload"])
    groups = plan(suite_run, "here", lambda variant: "code", gpu=False)
    flop = bf16_FLOP([one for group in groups for one in group.cells], "suites")
    host = HostProbe({"fp32": 25e9, "bf16": 0.25e9}, True, flop)
    kept, said = fit_to_host(suite_run, groups, host)
    small = {one.id: one for group in kept for one in group.cells if one.id in flop}
    assert {one.workload for one in small.values()} == suite_run.slow_bf16_workloads.keys()
    seconds = product_seconds(kept, host, cores=2, per_turn=True)
    assert seconds.keys() == small.keys()
    assert too_slow(seconds, host, suite_run.limits) == {}
    assert max(seconds.values()) < suite_run.limits.timeout_s / 2
    (line,) = said
    assert line.startswith("slow bf16 leaves out")
    assert line.endswith(f"replaced by smaller workloads: {', '.join(suite_run.slow_bf16_workloads)}")


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


def test_a_cell_that_cannot_be_built_here_is_left_to_its_run():
    assert (
        bf16_FLOP([Cell("x", "no_suite", "w", "baseline", "baseline", 0, 0, {"workload": {}})], "suites")
        == {}
    )


def test_seconds_count_every_sample_and_all_cores():
    timed = plan(replace(RUN, sampling=Sampling(rounds=6)), "here", lambda variant: "code")
    alone = plan(RUN, "here", lambda variant: "code")
    for groups, samples, in_a_turn in ((timed, 13, 5), (alone, 1, 1)):
        one = groups[0].cells[0]
        found = SLOW._replace(bf16_FLOP={one.id: 1e9})
        assert product_seconds(groups, found, cores=2) == {one.id: samples * 1.0}
        longest = product_seconds(groups, found, cores=2, per_turn=True)  # a limit is a turn's
        assert longest == {one.id: in_a_turn * 1.0}


def test_more_than_the_limit_is_not_tried_and_the_reason_says_why():
    seconds = {"long": 700.0, "short": 599.0}
    (found,) = too_slow(seconds, SLOW, Limits(600.0)).items()
    assert found == (
        "long",
        f"{NOT_TRIED}: bf16 products run at 0.5 GFLOP/s per thread of this CPU, and the cell's would take "
        "700 s, more than limits.timeout_s=600",
    )


def test_cells_timed_together_are_not_tried_where_slow_bf16_takes_minutes():
    sampling = Sampling(rounds=6, budget_s=1.0)
    base, long, short, alone, in_bf16, other = (cell("nothing", repeat=repeat) for repeat in range(6))
    groups = [group(base, long, short), group(in_bf16, other)]
    groups = [*(one._replace(sampling=sampling) for one in groups), group(alone)]
    calls = 6 + 5 + 2  # rounds, set-up, calibration and warm-up
    flop = {long.id: 61 * 2 * 0.5e9 / calls, short.id: 59 * 2 * 0.5e9 / calls}
    flop |= dict.fromkeys((alone.id, in_bf16.id, other.id), 1e15)
    ((found, reason),) = too_slow_to_pay(groups, SLOW._replace(bf16_FLOP=flop), cores=2).items()
    assert found == long.id
    assert reason.startswith(
        f"{NOT_TRIED}: bf16 products run at 0.5 GFLOP/s per thread of this CPU, 100 times"
    )
    assert reason.endswith("so bf16 cannot pay; timing the cell would take 61 s")


def test_what_is_not_tried_has_a_record_and_others_have_the_note(tmp_path, toy_suites):
    one, two = cell("nothing"), cell("nothing", repeat=1)
    reason = f"{NOT_TRIED}: too slow"
    here = describe()
    with Store(tmp_path) as store:
        executor = create(tmp_path, 1)
        run(
            [group(one, two)],
            store,
            executor,
            LIMITS,
            here,
            unavailable={one.id: reason},
            notes={two.id: "slow"},
        )
    records = {record.cell.id: record for record in read_records(tmp_path)}
    assert (records[one.id].status, records[one.id].reason) == (Status.UNAVAILABLE, reason)
    assert records[one.id].notes == ()
    assert records[two.id].status == Status.OK
    assert records[two.id].notes[-1] == "slow"
    assert pending([group(one, two)], records, LIMITS, here.digest) == []
    (again,) = pending([group(one, two)], records, Limits(99.0), here.digest)
    assert again.cells == (one,)


def test_a_plan_on_a_slow_cpu_is_smaller_and_leaves_out_what_would_not_end(monkeypatch, tmp_path, kernels):
    groups = sweep.groups_of(kernels, describe())
    slow = {one.id: 1e12 for g in groups for one in g.cells if one.optimization == "autocast_bf16"}
    asked = stub(monkeypatch, SLOW._replace(bf16_FLOP=slow))
    lines, _ = sweep.planned_sweep(replace(kernels, out=tmp_path))
    assert lines[0] == SLOW.sentence
    assert "slow bf16 leaves out 2 cells, replaced by smaller workloads: step_bf16_small" in lines
    assert len(asked) == 1
    here = sweep.prepare(replace(kernels, out=tmp_path))
    assert here.environment.matmul_FLOP_per_s == SLOW.matmul_FLOP_per_s
    assert here.messages[0] == here.host.sentence
    found = sweep.outlook(here, {})
    left_out = {
        (one.workload, one.optimization) for g in groups for one in g.cells if one.id in found.not_tried
    }
    assert left_out == {("step_bf16_small", "autocast_bf16")}
    assert not found.not_tried.keys() & found.estimate.cells.keys()
    assert any("planned as unavailable" in line for line in lines)


def test_on_a_fast_cpu_nothing_is_reported_and_nothing_changes(monkeypatch, tmp_path, kernels):
    stub(monkeypatch, FAST)
    here = sweep.prepare(replace(kernels, out=tmp_path))
    assert not any("bf16" in line for line in here.messages)
    assert here.run.left_out == kernels.left_out
    assert {one.workload for g in here.groups for one in g.cells} == {
        "copy", "matmul_fp32", "matmul_bf16", "step_5m_128"
    }  # fmt: skip
    assert sweep.outlook(here, {}).not_tried == {}


def test_where_bf16_is_slow_a_plan_in_fp32_does_not_report_it(monkeypatch, tmp_path):
    stub(monkeypatch, SLOW)
    (steps,) = load(["suite=interconnect", "workloads=[ddp]", "only=[overlap]", f"out={tmp_path}"])
    here = sweep.prepare(steps)
    assert not any("bf16" in line for line in here.messages)
    assert here.environment.matmul_FLOP_per_s == SLOW.matmul_FLOP_per_s


def test_the_plan_of_all_suites_ends_with_what_they_take_together(monkeypatch, capsys, tmp_path):
    runs = load(["suite=congestion", "workloads=[incast_16]"]) * 2
    monkeypatch.setattr(
        "harness.config.run.load", lambda words: [replace(one, plan_only=True) for one in runs]
    )
    monkeypatch.chdir(tmp_path)
    run_command(["suite=all", "plan=true"])
    printed = capsys.readouterr().out.splitlines()
    cells = 2 * len(groups_of(runs[0])) * len(groups_of(runs[0])[0].cells)
    assert (
        printed[-1] == f"2 suites: {cells} cells to run, {cells} of them without an earlier run: no estimate"
    )


def config_cell(layers: int) -> Cell:
    """Return the baseline of a model whose layers have 33 M parameters each."""
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 2048, "vocab_size": 64}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": layers}
    workload = {"operation": "training_step", "seq_len": 8, "hf_config": config}
    return cell(suite="kernels")._replace(config={"workload": workload, "settings": {}})


def test_a_model_too_large_for_this_machine_is_refused_before_the_sweep_in_one_line(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    small = config_cell(1)
    one = own_model([small], "suites")
    layer = 4 * 2048**2 + 3 * 2048**2 + 64 * 2048  # and the output layer
    assert one["too_large"] == ""
    assert one["own_FLOP"] == pytest.approx(6 * layer * 8, rel=1e-3)
    timed = group(small)._replace(sampling=Sampling(rounds=6))
    seconds = own_model_seconds([timed], FAST._replace(own_FLOP=one["own_FLOP"]), cores=2)
    assert seconds == {small.id: pytest.approx(13 * one["own_FLOP"] / (0.5 * 100e9))}
    found = own_model([config_cell(1_000)], "suites")["too_large"]
    assert re.fullmatch(r"a step of .* suite\.hf_defaults\.num_hidden_layers=\d+ would fit", found)
    stub(monkeypatch, FAST._replace(too_large=found))
    words = [
        "suite=kernels",
        "suite.workload_from=tests/data/small_configs/llama.json",
        f"out={tmp_path / 'out'}",
    ]
    with pytest.raises(ConfigError, match="would fit"):
        run_command([*words, "suite.hf_defaults.seq_len=16"])
    assert not (tmp_path / "out" / "records.jsonl").exists()
