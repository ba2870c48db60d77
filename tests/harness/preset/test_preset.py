"""preset=gpu: what it plans on GPUs that are made up here, in which order, and how it keeps its budget.

No suite runs on a GPU in these tests: names, memory and the number of GPUs are invented.
"""

import ast
import json
import time
from dataclasses import replace

import pytest

from harness.claims.load import load_claims
from harness.claims.values import REFERENCE
from harness.commands.main import main
from harness.config.code_fingerprint import ROOT
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.config.variants.optimizations import CONF
from harness.preset.claim_coverage import ClaimTarget, claims_about
from harness.preset.programme import Programme, planned_programme
from harness.preset.programme_view import programme_lines
from harness.preset.request import Preset, PresetRequest, SuitePreset, load_preset, requested
from harness.preset.run import PROGRAMME, ended_within, run_programme
from harness.preset.work_order import Task, TimeBudget, ordered, steps_of, within
from harness.sweep.environment import Gpu, describe
from harness.sweep.runner import Interrupted

H100, A100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
SIZES_B = {H100: 85_520_809_984, A100: 85_520_809_984, H200: 150_754_820_096}


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Return a function that plans the preset on GPUs that it makes up."""

    def planned(name=H100, count=1, budget_min=60.0, host_memory_B=256e9):
        gpus = (Gpu(name, SIZES_B[name]),) * count
        here = describe()._replace(gpus=gpus, driver="made up", memory_B=int(host_memory_B))
        monkeypatch.setattr("harness.preset.programme.describe", lambda: here)
        monkeypatch.setattr("harness.sweep.executors.local.describe", lambda ranks="": here)
        monkeypatch.setattr("harness.preset.programme.visible_gpus", lambda: gpus)
        monkeypatch.setattr("harness.sweep.estimate.history.RESULTS", tmp_path / "none")
        return planned_programme(PresetRequest("gpu", budget_min, tmp_path / "gpu", False))

    return planned


def text_of(programme):
    return " ".join(" ".join(programme_lines(programme)).split())


def settled_by(programme):
    return {claim for step in programme.steps for claim in step.settles}


def test_each_suite_with_claims_about_gpus_is_run_or_named_with_the_reason():
    preset = load_preset("gpu")
    about = {suite for suite in names("suite") if claims_about(load_claims(suite), preset.device)}
    assert about == preset.suites.keys() | preset.unavailable_suites.keys()
    assert not preset.suites.keys() & preset.unavailable_suites.keys()


@pytest.mark.parametrize("suite", load_preset("gpu").suites)
def test_what_the_preset_names_is_in_the_suite_and_its_records(suite):
    given = load_preset("gpu").suites[suite]
    run = load([f"suite={suite}", *given.overrides])[0]
    fields = next(iter(run.workloads.values()))
    assert {*given.condition_fields.values(), *filter(None, [given.gpus_field])} <= fields.keys()
    named = [given.assumed_cell_s_by_workload, given.least_device_memory_B, given.least_host_memory_B]
    assert {workload for one in named for workload in one} <= run.workloads.keys()
    assert given.unavailable_variants.keys() <= {variant.name for variant in run.variants}
    tree = ast.parse((ROOT / "suites" / suite / "__init__.py").read_text())
    conditions = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "conditions")
    keys = {n.value for n in ast.walk(conditions) if isinstance(n, ast.Constant)}
    stated = {*given.condition_fields, *given.read_when_run}
    assert {one.removeprefix(REFERENCE) for one in stated} <= keys


def test_an_h100_settles_its_own_curves_and_an_a100_others(on):
    h100, a100 = settled_by(on(H100, budget_min=1e4)), settled_by(on(A100, budget_min=1e4))
    curve = "flash_2_{}_causal_128_4k"
    assert curve.format("h100") in h100 - a100
    assert curve.format("a100") in a100 - h100
    assert "torch_compile_training_geomean" in a100 - h100
    assert "flash_2_h100_causal_64_1k" not in h100  # its workload has another batch than the claim


def test_what_needs_several_gpus_is_left_out_on_one_by_name(on):
    one, eight = on(count=1, budget_min=1e4), on(count=8, budget_min=1e4)
    ranks = {"llama_39m", "llama_5m_1k_tokens", "llama_14m_4_ranks", "budget_192m"}
    works = [{work.workload for work in programme.order} for programme in (one, eight)]
    assert not ranks & works[0]
    assert ranks <= works[1]
    assert "needs 2 GPUs: offload" in text_of(one)
    assert "offload llama_14m_4_ranks (savings_rise)" in text_of(one)
    assert "needs 2 GPUs" not in text_of(eight)
    assert "larger_models" in settled_by(eight) - settled_by(one)


def test_what_needs_more_memory_is_left_out_by_name(on):
    h100, h200 = on(H100, budget_min=1e4), on(H200, budget_min=1e4)
    assert "left out, needs 135 GB of memory per GPU: memory llama_7b" in text_of(h100)
    assert {"seven_billion_needs_280_GB", "seven_billion_more_than_one_141_GB"} <= settled_by(h200)
    assert "of host memory: offload gpu_32gb" in text_of(h200)
    assert "gpu_32gb" in {work.workload for work in on(H200, budget_min=1e4, host_memory_B=1e12).order}


def test_only_what_a_claim_compares_is_planned(on):
    run = on(budget_min=1e4).runs["kernels"]
    assert run.variants_by_workload["attention_causal_128_4k_gpu"] == {"baseline", "sdpa", "triton"}
    assert "jax_xla" not in {variant.name for variant in run.variants}
    assert "attention_full_128_4k_gpu" not in run.workloads  # no claim has it


def test_the_plan_shows_minutes_claims_and_what_is_left_out(on):
    programme = on(budget_min=60)
    text = text_of(programme)
    assert f"1 × {H100} (80 GiB), budget 60 min" in text
    assert "* assumed: no run on such a GPU is known" in text
    assert "left out, no time, with minutes: kernels" in text
    assert "not settled here, it is about A100" in text
    assert "not settled here, suite kernels records no gpus" in text
    assert "no run on a GPU, dataloader (3 claims): its ranks train on the CPU" in text
    assert programme.seconds <= 3600
    assert settled_by(programme) < settled_by(on(budget_min=1e4))


def test_a_budget_too_small_for_anything_is_one_line(on):
    with pytest.raises(
        ConfigError, match=r"^budget_min=1: too small for anything; the shortest, (kernels|stack) \w+"
    ):
        on(budget_min=1)


def test_without_a_gpu_one_line_states_what_was_looked_for(monkeypatch, capsys):
    monkeypatch.setattr("harness.preset.programme.describe", lambda: describe()._replace(gpus=()))
    assert main(["preset=gpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no GPU here; looked for NVIDIA GPUs by the driver's NVML" in said.err


def test_a_torch_that_sees_no_gpu_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(
        "harness.preset.programme.describe", lambda: describe()._replace(gpus=(Gpu(H100, 1),))
    )
    monkeypatch.setattr("harness.preset.programme.visible_gpus", tuple)
    assert main(["preset=gpu"]) == 2
    assert f"no GPU for torch; NVML lists {H100}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["preset=cpu"], "preset=cpu: no such name; did you mean gpu? allowed: gpu"),
        (["preset=gpu", "suite=memory"], "suite=memory: preset chooses what is run; allowed with it: preset"),
        (["preset=gpu", "budget_min=0"], "budget_min=0: expected a number above 0"),
        (["preset=gpu", "budget_min=an hour"], "budget_min='an hour': expected a number above 0"),
        (["preset=gpu", "memory"], "memory: preset chooses what is run"),
    ],
)
def test_words_that_will_not_do_are_one_line(words, said, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"harness: {said}"), err
    assert err.count("\n") == 1


def test_the_words_of_a_preset():
    assert requested(["preset=gpu"])[1:] == (60.0, type(ROOT)("results/gpu"), False)
    assert requested(["preset=gpu", "budget_min=90", "out=there", "plan=true"])[1:] == (
        90.0, type(ROOT)("there"), True,
    )  # fmt: skip


def work(name, seconds=60.0, suite="one"):
    return Task(suite, name, seconds, assumed=True)


def target(claim, *workloads, group="", suite="one"):
    return ClaimTarget(suite, claim, group, dict.fromkeys(workloads, frozenset({"v"})), len(workloads))


def test_what_settles_most_claims_per_minute_comes_first():
    works = [work("slow", 600), work("shared", 60), work("short", 30)]
    targets = [target("a", "slow"), target("b", "shared"), target("c", "shared"), target("d", "short")]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)] == ["shared", "short", "slow"]


def test_a_claim_needs_three_workloads_of_each_group_and_more_come_last():
    five = [f"w{i}" for i in range(5)]
    targets = [target("a", *five), target("b", "other")]
    order = ordered([*map(work, five), work("other", 61)], targets, {}, 1e9)
    assert [one.workload for one in order] == ["other", "w0", "w1", "w2", "w3", "w4"]
    settles = [step.settles for step in steps_of(order, targets)]
    assert settles == [("b",), (), (), ("a",), (), ()]
    groups = [target("a", "w0", group="x"), target("a", "w1", group="y")]
    assert [step.settles for step in steps_of([work("w0"), work("w1")], groups)] == [(), ("a",)]


def test_a_claim_that_cannot_be_settled_in_time_takes_no_time_from_another():
    works = [work("a0", 40), work("a1", 40), work("b0", 10), work("b1", 10), work("b2", 90)]
    targets = [target("a", "a0", "a1"), target("b", "b0", "b1", "b2")]
    order = ordered(works, targets, {}, budget_s=100.0)
    assert [one.workload for one in order] == ["a0", "a1", "b0", "b1", "b2"]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)][:2] == ["a0", "a1"]


def test_a_work_that_other_claims_share_is_preferred():
    works = [work("own"), work("shared")]
    targets = [target("a", "own", "shared", "x", "y"), target("b", "shared", "z")]
    assert [one.workload for one in ordered(works, targets, {}, 1e9)] == ["shared", "own"]


def test_what_is_sized_for_a_gpu_is_needed_too():
    made = target("a", "small", "smaller", "smallest", "large", "larger")._replace(
        sized=frozenset({"large", "larger"})
    )
    works = [work("small"), work("smaller"), work("smallest"), work("large", 70), work("larger", 80)]
    order = ordered(works, [made], {}, 1e9)
    assert {one.workload for one in order[:3]} == {"large", "larger", "small"}
    assert [step.settles for step in steps_of(order, [made])] == [(), (), ("a",), (), ()]
    assert [step.settles for step in steps_of(works, [made])] == [(), (), (), (), ("a",)]


def test_a_suites_fixed_seconds_count_until_it_has_begun():
    works = [work("cheap", 30, "two"), work("first", 60), work("second", 60)]
    targets = [target("a", "cheap", suite="two"), target("b", "first"), target("c", "second")]
    order = ordered(works, targets, {"two": 100.0}, 1e9)
    assert [one.workload for one in order] == ["first", "second", "cheap"]
    fit, late, seconds = within(works, TimeBudget(165.0, {"two": 100.0}, report_s=10.0))
    assert [one.workload for one in fit] == ["cheap"]
    assert [one.workload for one in late] == ["first", "second"]
    assert seconds == 140.0


def test_a_shorter_work_takes_the_place_of_one_that_does_not_fit():
    fit, late, _ = within([work("a", 50), work("long", 100), work("b", 40)], TimeBudget(100.0, {}, 5.0))
    assert [one.workload for one in fit] == ["a", "b"]
    assert [one.workload for one in late] == ["long"]


class Clock:
    """A clock that only sweeps move."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


FORMULA = ["suite=interconnect_formula", "workloads=[gemma_12b,dense_7b]", "only=[baseline]"]
GIVEN = SuitePreset(1.0, {}, "", {}, [], [], {}, {}, {}, [])


def programme_of(tmp_path, works, budget_min, run=None):
    runs = {"one": run or load(["suite=memory", f"out={tmp_path / 'one'}"])[0]}
    pairs = {work.workload: frozenset({"baseline"}) for work in works}
    runs = {"one": replace(runs["one"], variants_by_workload=pairs)}
    request = PresetRequest("gpu", budget_min, tmp_path, False)
    preset = Preset("gpu", "cuda", 0.0, {"one": GIVEN}, {})
    host = load_host()
    fit, late, seconds = within(works, TimeBudget(60 * budget_min, {}, 0.0))
    return Programme(request, preset, host, runs, {}, tuple(works), tuple(fit), tuple(late), seconds, {})


def load_host():
    from harness.preset.claim_coverage import GpuHost

    return GpuHost(H100, 1, SIZES_B[H100], 10**12)


def test_a_suite_that_takes_longer_makes_later_works_fall_out_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("harness.preset.run.state_left_out", lambda *given: None)
    monkeypatch.setattr("harness.preset.run.recorded", lambda run: {"a cell": "its record"})
    caplog.set_level("INFO", "harness.sweep.progress")
    clock, swept = Clock(), []

    def slow(run):
        swept.append(list(run.workloads))
        clock.now_s += 150.0

    works = [work("llama_1b", 60), work("llama_7b", 60), work("llama_13b", 60), work("gpt_5m", 20)]
    folders = run_programme(programme_of(tmp_path, works, budget_min=4.0), slow, clock)
    assert swept == [["llama_1b"], ["llama_1b", "gpt_5m"]]  # what has ended stays in the folder's plan
    assert folders == [tmp_path / "one"]
    assert (
        "left out: one llama_7b would take 2 min, since its suite takes 2.5 times as long as estimated; "
        "90 s are left"
    ).replace("90 s", "2 min") in caplog.text
    written = json.loads((tmp_path / PROGRAMME).read_text())
    assert [one["ended"] for one in written["works"]] == [
        "done", "left out: no time", "left out: no time", "done",
    ]  # fmt: skip
    assert written["works"][0]["took_s"] == 150.0


def test_a_work_that_is_running_when_time_is_up_is_ended():
    finished = []

    def long(run):
        time.sleep(30)
        finished.append(run)

    assert not ended_within(0.05, long, None)
    assert not finished
    assert ended_within(30, lambda run: None, None)


def test_where_no_cell_has_ended_there_is_nothing_to_send(tmp_path):
    with pytest.raises(ConfigError, match=r"^budget_min=4: time was up before any cell had ended"):
        run_programme(programme_of(tmp_path, [work("llama_1b")], 4.0), lambda run: None, Clock())


def test_another_signal_ends_the_programme():
    def end(run):
        raise Interrupted(130)

    with pytest.raises(Interrupted):
        ended_within(30, end, None)


def test_what_has_run_is_stated_after_an_interruption(tmp_path):
    clock, swept = Clock(), []

    def interrupted_at_the_second(run):
        swept.append(run)
        clock.now_s += 10.0
        if len(swept) == 2:
            raise Interrupted(130)

    works = [work("llama_1b", 10), work("llama_7b", 10)]
    with pytest.raises(Interrupted):
        run_programme(programme_of(tmp_path, works, 4.0), interrupted_at_the_second, clock)
    written = json.loads((tmp_path / PROGRAMME).read_text())
    assert [(one["workload"], one["ended"]) for one in written["works"]] == [("llama_1b", "done")]


@pytest.mark.slow
def test_the_folder_is_judged_elsewhere_with_what_was_left_out(tmp_path, capsys):
    """The sweep is real, of a suite that calculates; the GPU of the programme is made up."""
    out = tmp_path / "sent"
    run = load([*FORMULA, f"out={out / 'interconnect_formula'}"])[0]
    first, second = (name for name in run.workloads)
    works = [work(first, 1.0), work(second, 1e9)]
    programme = programme_of(out, works, budget_min=2.0, run=run)
    assert run_programme(programme) == [out / "interconnect_formula"]
    assert main([f"from_results={out}", f"out={tmp_path / 'judged'}"]) == 0
    assert "Answers on the paper's claims: " in capsys.readouterr().out
    assert (tmp_path / "judged/answers.csv").exists()
    assert main([f"from_results={out / 'interconnect_formula'}", f"out={tmp_path / 'again'}"]) == 0
    report = (tmp_path / "again/report.md").read_text()
    assert f"preset=gpu had time for 1 of 2 workloads that settle claims here; left out: {second}" in report


def test_a_mistake_in_the_file_names_the_key(tmp_path):
    (tmp_path / "preset").mkdir()
    text = (CONF / "preset/gpu.yaml").read_text()
    (tmp_path / "preset/gpu.yaml").write_text(text.replace("gpus_field:", "gpu_field:"))
    with pytest.raises(ConfigError, match=r"conf/preset/gpu.yaml.suites.offload.gpu_field: no such name"):
        load_preset("gpu", tmp_path)
