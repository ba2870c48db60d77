"""The quick selection: what it runs, what it says that it leaves out, how it is refused."""

import pytest

from harness.claims.load import load_claims
from harness.config.run import left_out, load, select
from harness.config.validation import ConfigError
from harness.report import gather
from harness.report.markdown import counted
from harness.sweep.plan import Plan, read_plan, write_plan
from harness.sweep.sweep import stages

QUICK = {"first": ["b"], "workloads": ["a"], "only": ["fast"]}


def chosen(quick=QUICK, file=None, **words):
    suite = {"quick": quick, "workloads": {"a": {}, "b": {}, "c": {}}, "workload_from": file, "trace": None}
    return select("toy", {"selection": "quick", "suite": suite, "workloads": [], "only": [], **words})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"selection": "quik"}, "did you mean quick"),
        ({"file": "config.json"}, "selection=quick: suite.workload_from names the only workload"),
        ({"workloads": ["a"]}, "workloads: selection=quick chooses"),
        ({"quick": {}}, "suite toy has no quick selection; allowed: full"),
        ({"quick": {"first": ["d"]}}, r"suite.quick.first=\[d\]: no such name"),
        ({"quick": {"workloads": "a"}}, "expected a list of names"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        chosen(**changed)


def test_what_is_left_out_is_reported_with_the_command_that_runs_it(tmp_path):
    variants, taken = ["baseline", "fast", "slow"], ["a", "b", "baseline", "fast"]
    said = left_out("toy", chosen(), ["a", "b", "c"], variants, taken, "x")
    assert said == (
        "selection=quick leaves out 1 of 3 workloads: c",
        "selection=quick leaves out 1 of 3 variants: slow",
        "the rest: python -m harness suite=toy out=x",
    )
    write_plan(tmp_path, Plan("memory", (), {"a.b": "A, b"}, said))
    assert read_plan(tmp_path) == ("memory", (), {"a.b": "A, b"}, said)
    report = counted(gather("memory", [], [], tmp_path, {}, said))
    assert all(sentence in report for sentence in said)


def test_the_quick_run_of_memory_reports_the_papers_table_first():
    run = load(["suite=memory", "selection=quick"])[0]
    first, whole = stages(run)
    assert list(first.workloads) == list(whole.workloads)[:5]
    assert whole == run
    assert first.left_out[-1] == "still to be run: gpt_5m, llama_12m, gpt_25m_sgd"
    table_1 = [claim for claim in load_claims("memory") if claim.id.startswith("table_1")]
    claimed = {name for claim in table_1 for one in claim.interpretations for name in one.variants}
    assert set() != claimed <= {variant.name for variant in first.variants}
    (full,) = load(["suite=memory"])
    assert list(stages(full)) == [full]
