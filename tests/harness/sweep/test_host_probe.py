"""What a sweep knows of its host before it starts, and what that makes of cells in bf16."""

import re
import sys
from dataclasses import replace

import pytest
from planned import RUN
from toy.sweep import LIMITS, cell, group

from harness.commands.suites import run_command
from harness.config.optimizations import AGAIN, BASELINE, Variant
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import SET_UP_SAMPLES, Cell, Group, Limits, Sampling, Status
from harness.sweep import preflight, sweep
from harness.sweep.environment import Gpu, describe
from harness.sweep.executors.local import create
from harness.sweep.in_child import in_child
from harness.sweep.plan import plan
from harness.sweep.preflight import HostProbe, fit_to_host, keep, probe, survey, too_slow
from harness.sweep.runner import NOT_TRIED, pending, run
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

    def in_child(module, function, group, timeout_s):
        asked.append(group)
        return found._asdict()

    monkeypatch.setattr(preflight, "in_child", in_child)
    return asked


def flop_of(monkeypatch, cells):
    """Return the FLOP of bf16 products by cell, as the child finds them where they are slow."""
    from harness.instruments.memory import bf16_products

    monkeypatch.setattr(bf16_products, "bf16_is_slow", lambda: True)
    return survey(Group(tuple(cells)))["bf16_FLOP"]


def test_a_cpu_that_is_slow_is_reported_and_another_is_not():
    assert SLOW._replace(bf16_FLOP={"one": 1e9}).sentence == (
        "bf16: matrix products run 100 times slower than in fp32 on this CPU; "
        "bf16 rows measure that, not a GPU's gain"
    )
    assert SLOW.sentence == FAST.sentence == ""


def test_only_suites_with_bf16_products_are_probed(monkeypatch, tmp_path):
    asked = stub(monkeypatch, FAST)
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


def test_the_child_measures():
    found = HostProbe(**in_child("harness.sweep.preflight", "survey", [[], "suites", None], 120.0))
    assert found.bf16_FLOP == {}
    assert all(rate > 0 for rate in found.matmul_FLOP_per_s.values())


def test_the_kernels_suite_reports_its_bf16_products_and_no_others(monkeypatch):
    """By hand: a product of M, N and K is 2 M N K; a step is counted by its own formula. Two workloads are
    there as the smaller ones of others."""
    from suites.kernels import training_step
    from suites.kernels.workload import Workload

    words = [
        "suite=kernels",
        "workloads=[step_5m_128,softmax_small,matmul_bf16]",
        "only=[autocast_bf16,sdpa]",
    ]
    suite_run = load([*words, "repeats=1", "suite.workloads.matmul_bf16.seq_len=100"])[0]
    cells = [one for group in groups_of(suite_run) for one in group.cells]
    flop = flop_of(monkeypatch, cells)
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
    flop = flop_of(monkeypatch, [one for group in groups for one in group.cells])
    host = HostProbe({"fp32": 25e9, "bf16": 0.25e9}, True, flop)
    kept, said = fit_to_host(suite_run, groups, host)
    small = {one.id: one for group in kept for one in group.cells if one.id in flop}
    assert {one.workload for one in small.values()} == suite_run.slow_bf16_workloads.keys()
    assert too_slow(kept, host, 2, suite_run.limits._replace(timeout_s=suite_run.limits.timeout_s / 2)) == {}
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


def test_a_cell_that_cannot_be_built_here_is_left_to_its_run(monkeypatch):
    nowhere = Cell("x", "no_suite", "w", "baseline", "baseline", 0, 0, {"workload": {}})
    assert flop_of(monkeypatch, [nowhere]) == {}


def test_more_than_the_limit_is_not_tried_and_the_reason_says_why():
    """A turn of interleaved cells has five samples, and all cores compute."""
    long, short = cell("nothing"), cell("nothing", repeat=1)
    host = SLOW._replace(bf16_FLOP={long.id: 700e9, short.id: 599e9})
    assert too_slow([group(long, short)], host, 2, Limits(600.0)) == {
        long.id: f"{NOT_TRIED}: bf16 products run at 0.5 GFLOP/s per thread of this CPU, and "
        "the cell's would take 700 s, more than limits.timeout_s=600"
    }
    timed = group(long, short)._replace(sampling=Sampling(rounds=6))
    assert too_slow([timed], host, 2, Limits(5 * 650.0)).keys() == {long.id}


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
    assert lines[0].startswith("bf16: matrix products run 100 times slower")
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
    monkeypatch.setattr("harness.sweep.plan.RESULTS", ())
    run_command(["suite=all", "plan=true"])
    printed = capsys.readouterr().out.splitlines()
    cells = 2 * len(groups_of(runs[0])) * len(groups_of(runs[0])[0].cells)
    assert re.fullmatch(
        rf"2 suites: {cells} cells to run, {cells} of them without an earlier run: about \d+ \w+", printed[-1]
    )


def config_cell(layers: int) -> Cell:
    """Return the baseline of a model whose layers have 29 M parameters each."""
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 2048, "vocab_size": 64}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": layers}
    workload = {"operation": "training_step", "seq_len": 8, "hf_config": config}
    return cell(suite="kernels")._replace(config={"workload": workload, "settings": {}})


def test_a_model_too_large_for_this_machine_is_refused_before_the_sweep_in_one_line(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    small = config_cell(1)
    assert survey(group(small)._replace(package="suites"))["too_large"] == ""
    found = survey(group(config_cell(1_000))._replace(package="suites"))["too_large"]
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


def fitted(run=NARROW, variants=("bf16",), slow=True):
    """What is left by workload where the cells of `variants` have slow bf16 products, and the sentence."""
    groups = groups_of(run)
    flop = {one.id: 1e9 for group in groups for one in group.cells if one.optimization in variants}
    kept, said = fit_to_host(run, groups, SLOW._replace(bf16_FLOP=flop) if slow else None)
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
    everything = ["baseline", "baseline_again", "fp32", "bf16"]
    assert fitted(variants=(), slow=slow) == ({"large": everything, "other": everything}, ())


def test_a_baseline_that_is_left_with_nothing_to_compare_is_not_run():
    kept, _ = fitted(replace(NARROW, variants=tuple(one for one in VARIANTS if one.name != "fp32")))
    assert kept.keys() == {"other", "small"}


def test_a_baseline_in_bf16_moves_as_a_whole():
    kept, said = fitted(replace(NARROW, variants=VARIANTS[:2]), variants=(BASELINE, AGAIN))
    assert kept.keys() == {"other", "small"}
    assert said == ("slow bf16 leaves out 2 cells, replaced by smaller workloads: small",)
