"""Presets on GPUs that are made up here, their order, and what they repeat. No suite runs in these tests."""

import ast

import pytest

from harness.claims.load import load_claims
from harness.claims.paper import load_answers
from harness.claims.values import REFERENCE
from harness.commands.main import main
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import CONF
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.preset.programme import (
    ClaimTarget,
    PresetRequest,
    Task,
    claims_about,
    claims_of,
    done_by,
    load_preset,
    ordered,
    planned_programme,
    requested,
    settled,
)
from harness.preset.run import programme_lines
from harness.sweep.environment import Gpu, describe

H100, A100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
SIZES_B = {H100: 85_520_809_984, A100: 85_520_809_984, H200: 150_754_820_096}


@pytest.fixture
def on(monkeypatch, tmp_path):
    def planned(name=H100, count=1, budget_min=60.0, host_memory_B=256e9):
        gpus = (Gpu(name, SIZES_B[name]),) * count
        here = describe()._replace(gpus=gpus, driver="made up", memory_B=int(host_memory_B))
        monkeypatch.setattr("harness.preset.programme.describe", lambda: here)
        monkeypatch.setattr("harness.sweep.executors.local.describe", lambda ranks="": here)
        monkeypatch.setattr("harness.preset.programme.visible_gpus", lambda: gpus)
        monkeypatch.setattr("harness.sweep.plan.RESULTS", ())
        return planned_programme(PresetRequest("gpu", budget_min, str(tmp_path / "gpu")))

    return planned


def text_of(programme):
    return " ".join(" ".join(programme_lines(programme)).split())


def settled_by(programme):
    ends = settled(programme.targets, done_by(programme.fit))
    return {claim for (_, claim), is_settled in ends.items() if is_settled}


def test_each_suite_with_claims_about_gpus_is_run_or_named_with_the_reason():
    preset = load_preset("gpu")
    about = {suite for suite in names("suite") if claims_about(load_claims(suite), preset.device)}
    assert about == preset.suites.keys() | preset.unavailable_suites.keys()
    assert not preset.suites.keys() & preset.unavailable_suites.keys()


def test_what_one_host_lacks_is_left_out_by_name(on):
    """Several GPUs, memory per GPU and memory of the host; only what a claim compares is planned."""
    one, eight = on(H100), on(H200, count=8, budget_min=1e4, host_memory_B=1e12)
    ranks = {"llama_39m", "llama_5m_1k_tokens", "llama_14m_4_ranks", "budget_192m"}
    works = [{work.workload for work in programme.fit} for programme in (one, eight)]
    assert not ranks & works[0]
    assert ranks | {"gpu_32gb"} <= works[1]
    assert "needs 2 GPUs: offload" in text_of(one)
    assert "offload llama_14m_4_ranks (savings_rise)" in text_of(one)
    assert "of host memory: offload gpu_32gb" in text_of(one)
    assert "left out, needs 135 GB of memory per GPU: memory llama_7b" in text_of(one)
    assert "needs 2 GPUs" not in text_of(eight)
    more = {"larger_models", "seven_billion_needs_280_GB", "seven_billion_more_than_one_141_GB"}
    assert more <= settled_by(eight) - settled_by(one)
    run = one.runs["kernels"]
    assert run.variants_by_workload["attention_causal_128_4k_gpu"] == {"baseline", "sdpa", "triton"}
    assert "jax_xla" not in {variant.name for variant in run.variants}
    assert "attention_full_128_4k_gpu" not in run.workloads  # no claim has it
    assert one.seconds <= 3600


def test_without_a_gpu_for_torch_one_line_states_what_was_looked_for(monkeypatch, capsys):
    for gpus, said in (
        ((), "no GPU here; looked for NVIDIA GPUs by the driver's NVML"),
        ((Gpu(H100, 1),), f"no GPU for torch; NVML lists {H100}"),
    ):
        here = describe()._replace(gpus=gpus)
        monkeypatch.setattr("harness.preset.programme.describe", lambda here=here: here)
        monkeypatch.setattr("harness.preset.programme.visible_gpus", tuple)
        assert main(["preset=gpu"]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert said in printed.err


def test_the_words_of_a_preset_and_a_mistake_in_its_file(tmp_path):
    assert requested(["preset=gpu"]) == PresetRequest("gpu", 60.0)
    assert str(requested(["preset=gpu"]).folder) == "results/gpu"
    words = ["preset=gpu", "budget_min=90", "out=there", "plan=true"]
    assert requested(words) == PresetRequest("gpu", 90.0, "there", True)
    (tmp_path / "preset").mkdir()
    text = (CONF / "preset/gpu.yaml").read_text()
    (tmp_path / "preset/gpu.yaml").write_text(text.replace("gpus_field:", "gpu_field:"))
    with pytest.raises(ConfigError, match=r"conf/preset/gpu.yaml.suites.offload.gpu_field: no such name"):
        load_preset("gpu", tmp_path)


@pytest.mark.parametrize("suite", load_preset("gpu").suites)
def test_what_the_preset_names_is_in_the_suite_and_its_records(suite):
    given = load_preset("gpu").suites[suite]
    run = load([f"suite={suite}", *given.overrides])[0]
    fields = next(iter(run.workloads.values()))
    assert {*given.condition_fields.values(), *filter(None, [given.gpus_field])} <= fields.keys()
    named = [given.least_device_memory_B, given.least_host_memory_B]
    assert {workload for one in named for workload in one} <= run.workloads.keys()
    assert given.unavailable_variants.keys() <= {variant.name for variant in run.variants}
    tree = ast.parse((ROOT / "suites" / suite / "suite.py").read_text())
    conditions = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "conditions")
    keys = {n.value for n in ast.walk(conditions) if isinstance(n, ast.Constant)}
    stated = {*given.condition_fields, *given.read_when_run}
    assert {one.removeprefix(REFERENCE) for one in stated} <= keys


def task(workload, seconds=60.0, suite="one"):
    return Task(suite, workload, seconds, assumed=True)


def target(claim, *workloads, group="", suite="one", sized=(), first=True):
    pairs = dict.fromkeys(workloads, frozenset({"v"}))
    return ClaimTarget(suite, claim, group, pairs, frozenset(sized), first)


def order_of(tasks, targets, fixed_s=None, budget_s=1e9):
    return [[one.workload for one in part] for part in ordered(tasks, targets, fixed_s or {}, budget_s)]


def test_what_serves_most_claims_per_minute_comes_first():
    """A first value is worth more than a further one, the first group than another, a fitting size most."""
    tasks = [task("slow", 600), task("shared", 60), task("short", 30)]
    targets = [target("a", "slow"), target("b", "shared"), target("c", "shared"), target("d", "short")]
    assert order_of(tasks, targets) == [["shared", "short", "slow"], []]
    tasks = [task("a0", 20), task("a1", 20), task("a2", 20), task("b0", 60), task("b1", 120)]
    groups = [target("b", "b0", group="nearest"), target("b", "b1", group="other", first=False)]
    assert order_of(tasks, [target("a", "a0", "a1", "a2"), *groups])[0] == ["a0", "a1", "b0", "a2", "b1"]
    tasks = [task("small"), task("large", 70), task("larger", 80)]
    targets = [target("a", "small", "large", "larger", sized=("large", "larger"))]
    assert order_of(tasks, targets)[0] == ["large", "larger", "small"]


def test_a_claim_is_settled_with_three_values_of_each_group_or_all_where_there_are_fewer():
    five = [f"w{number}" for number in range(5)]
    targets = [target("a", *five), target("b", "w0", group="x"), target("b", "w1", group="y", first=False)]

    def ends(*workloads):
        done = {"one": set(workloads)}
        return [claim for (_, claim), is_settled in settled(targets, done).items() if is_settled]

    assert ends("w0") == ends("w1", "w2") == []
    assert ends("w0", "w1") == ["b"]
    assert ends("w2", "w3", "w4") == ["a"]
    assert done_by([task("w0"), task("w1")]) == {"one": {"w0", "w1"}}


ASKED = claims_of(load_preset("host"))


def test_every_judged_claim_of_the_answers_is_asked_for() -> None:
    named = {name for claim in load_answers().claims for name in claim.judged}
    suites = {name.partition("/")[0] for name in named}
    unjudged = {f"{suite}/{one.id}" for suite in suites for one in load_claims(suite) if one.not_judged}
    assert {f"{suite}/{one.id}" for suite, own in ASKED.items() for one in own} == named - unjudged
    assert set(ASKED) <= set(load_preset("host").suites)


def test_a_suites_fixed_seconds_count_until_it_has_begun_and_a_shorter_task_takes_the_place_of_a_longer():
    tasks = [task("cheap", 30, "two"), task("first"), task("second", 61)]
    targets = [target("a", "cheap", suite="two"), target("b", "first"), target("c", "second")]
    assert order_of(tasks, targets, {"two": 100.0, "one": 0.0})[0] == ["first", "second", "cheap"]
    assert order_of(tasks, targets, {"two": 20.0, "one": 30.0}, 140.0) == [["cheap", "first"], ["second"]]
    assert order_of(tasks, targets, {"two": 0.0, "one": 0.0}, 95.0) == [["cheap", "first"], ["second"]]
    first = ordered(tasks, targets, {"two": 0.0, "one": 0.0}, 95.0, [("one", "second")])
    assert [one.workload for one in first[0]] == ["second", "cheap"]
