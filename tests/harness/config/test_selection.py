"""The quick selection: what it runs, what it says that it leaves out, how it is refused."""

import os
from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from harness.claims.load import load_claims
from harness.config.code_fingerprint import ROOT
from harness.config.run import checked, compose_run, left_out, load, names, select, workers_of
from harness.config.validation import ConfigError
from harness.report.markdown import counted
from harness.report.report_data import ReportData
from harness.report.terminal import show
from harness.sweep.plan import read_plan, write_plan
from harness.sweep.sweep import stages

SUITE = {
    "quick": {"first": ["b"], "workloads": ["a"], "only": ["fast"]},
    "workloads": {"a": {}, "b": {}, "c": {}},
    "workload_from": None,
    "trace": None,
}


def config(selection="quick", suite=SUITE, **words):
    return {"selection": selection, "suite": suite, "workloads": [], "only": [], **words}


def test_a_full_selection_is_what_the_command_names():
    chosen = select("toy", config("full", workloads=["c"], only=["slow"]))
    assert (chosen.workloads, chosen.only, chosen.first, chosen.quick) == (("c",), ("slow",), (), False)


def test_a_quick_selection_is_what_the_suite_names():
    chosen = select("toy", config())
    assert (chosen.workloads, chosen.only, chosen.first) == (("b", "a"), ("fast",), ("b",))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"selection": "quik"}, "did you mean quick"),
        ({"suite": SUITE | {"quick": {}}}, "suite toy has no quick selection; allowed: full"),
        ({"suite": SUITE | {"workload_from": "config.json"}}, "names the only workload"),
        (
            {"selection": "full", "workloads": ["a"], "suite": SUITE | {"workload_from": "config.json"}},
            "workloads: suite.workload_from names the only workload",
        ),
        ({"workloads": ["a"]}, "workloads: selection=quick chooses"),
        ({"only": ["fast"]}, "only: selection=quick chooses"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        select("toy", config(**changed))


@pytest.mark.parametrize(
    ("quick", "message"),
    [
        ({"workloads": ["d"]}, r"suite.quick.workloads=\[d\]: no such name"),
        ({"first": ["d"]}, r"suite.quick.first=\[d\]: no such name"),
        ({"worloads": ["a"]}, "did you mean workloads"),
        ({"workloads": "a"}, "expected a list of names"),
        ({"workloads": []}, "expected a list of names"),
        ({"only": ["fast"]}, "suite.quick: expected workloads"),
    ],
)
def test_names_that_the_suite_does_not_have_are_refused(quick, message):
    with pytest.raises(ConfigError, match=message):
        select("toy", config(suite=SUITE | {"quick": quick}))


@pytest.mark.parametrize(
    ("quick", "message"),
    [
        ({"workloads": ["gpt_5m"], "only": ["fsdp3"]}, "did you mean fsdp2"),
        ({"workloads": ["gpt_6m"]}, "did you mean gpt_5m"),
    ],
)
def test_a_quick_selection_is_checked_with_the_run(quick, message):
    composed = OmegaConf.to_container(compose_run("memory", {}, []), resolve=True)
    composed["selection"], composed["suite"]["quick"] = "quick", quick
    with pytest.raises(ConfigError, match=message):
        checked(composed, "memory", "local")


def test_a_workload_that_is_left_out_leaves_the_full_selection_alone():
    assert "llama_7b" not in load(["suite=memory", "~suite.workloads.llama_7b"])[0].workloads
    with pytest.raises(ConfigError, match=r"suite.quick.first=\[llama_7b\]"):
        load(["suite=memory", "~suite.workloads.llama_7b", "selection=quick"])


def test_what_is_left_out_is_reported_with_the_command_that_runs_it():
    chosen = select("toy", config())
    variants, taken = ["baseline", "fast", "slow"], ["a", "b", "baseline", "fast"]
    said = left_out("toy", chosen, ["a", "b", "c"], variants, taken, "x")
    assert said == (
        "selection=quick leaves out 1 of 3 workloads: c",
        "selection=quick leaves out 1 of 3 variants: slow",
        "the rest: python -m harness suite=toy out=x",
    )
    assert left_out("toy", chosen, ["a"], ["fast"], ["a", "fast"], "") == ()
    assert left_out("toy", select("toy", config("full")), ["a", "b"], [], ["a"], "") == ()


def test_the_quick_run_of_memory_reports_the_papers_table_first():
    run = load(["suite=memory", "selection=quick"])[0]
    first, whole = stages(run)
    claimed = ["llama_1b", "llama_7b", "llama_13b", "llama_70b", "gpt3_175b"]
    assert list(first.workloads) == claimed
    assert list(whole.workloads)[:5] == claimed
    assert whole == run
    assert first.left_out[-1] == "still to be run: gpt_5m, llama_12m, gpt_25m_sgd"
    assert "gpt_60m_wide" in run.left_out[0]
    assert run.left_out[-1] == "the rest: python -m harness suite=memory"
    table_1 = [claim for claim in load_claims("memory") if claim.id.startswith("table_1")]
    claimed_variants = {name for c in table_1 for one in c.interpretations for name in one.variants}
    assert claimed_variants
    assert claimed_variants <= {variant.name for variant in first.variants}


def test_a_full_run_is_one_stage_and_leaves_nothing_out():
    for run in load(["suite=all"]):
        assert list(stages(run)) == [run]
        assert run.left_out == ()


def test_every_suite_that_has_a_quick_selection_can_run_it():
    for suite in names("suite"):
        words = [f"suite={suite}", "selection=quick"]
        if compose_run(suite, {}, []).suite.quick:
            run = load(words)[0]
            assert run.workloads
            assert run.variants
            assert run.left_out
        else:
            with pytest.raises(ConfigError, match=f"suite {suite} has no quick selection; allowed: full"):
                load(words)


def test_the_plan_keeps_what_was_left_out_and_every_report_says_it(tmp_path, capsys):
    said = ("selection=quick leaves out 1 of 2 workloads: c", "the rest: python -m harness suite=memory")
    write_plan(tmp_path, "memory", [], {}, said)
    assert read_plan(tmp_path).left_out == said
    from harness.report import gather, write_report

    data = gather("memory", [], [], tmp_path, {}, said)
    assert isinstance(data, ReportData)
    assert all(sentence in counted(data) for sentence in said)
    assert "Not run" not in counted(replace(data, left_out=()))
    page = write_report(tmp_path / "report", data)
    assert all(sentence in page.read_text() for sentence in said)
    show(data, page, everything=True)
    printed = capsys.readouterr().out
    assert all(sentence in printed for sentence in said)


def test_make_reproduce_runs_the_quick_selection():
    assert "suite=memory selection=quick" in (ROOT / "Makefile").read_text()


def test_only_suites_that_time_nothing_run_several_cells_at_once_by_default():
    suite = {"interleave": False, "parallel": False}
    assert workers_of(suite, None) == 1
    assert workers_of(suite, 3) == 3
    assert workers_of(suite | {"parallel": True}, 3) == 3
    assert 1 <= workers_of(suite | {"parallel": True}, None) <= len(os.sched_getaffinity(0))
    assert workers_of(suite | {"interleave": True}, 3) == 1
    several = {run.suite for run in load(["suite=all"]) if compose_run(run.suite, {}, []).suite.parallel}
    assert several == {
        "memory", "memory_published", "congestion", "interconnect_formula", "cost", "limits",
        "layouts", "stack_published", "step_gains", "step_time",
    }  # fmt: skip
