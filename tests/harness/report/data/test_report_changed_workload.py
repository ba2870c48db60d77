"""A workload whose fields a command changed is not reported under the unchanged one's name alone."""

import pytest
from synthetic import made

from harness.config.optimizations import workloads_of
from harness.config.run import load
from harness.report import gather

SUITES = ("interconnect_formula", "memory", "cost")


def names_of(run, tmp_path):
    records = [made(name, fields=fields, suite=run.suite) for name, fields in run.workloads.items()]
    return gather(run.suite, records, [], tmp_path).spec.names["workload"]


def test_a_suites_workloads_are_known_without_composing_and_unchanged_ones_keep_their_names(tmp_path):
    for suite in SUITES:
        (run,) = load([f"suite={suite}"])
        assert workloads_of(suite).keys() == run.workloads.keys(), suite
        assert not [name for name in names_of(run, tmp_path).values() if "=" in name]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["links_7b_100g.link_B_per_s=3e9"], "7 B, 2 nodes, faster link (link_B_per_s=3e+09)"),
        (["llama_7b.micro_batch_size=4", "hardware=h200"], "7B (Llama-2) (micro_batch_size=4)"),
        (["gpt_5m.measurable=false", "suite.workloads.gpt_5m.simulated_device=cuda"], "GPT 5M"),
        (["dense_7b.latency_s=0.001"], "7 B, 2 nodes (latency_s=0.001)"),
        (["owner.prices.rented_2026_07.kind=owned"], "One owner, inputs at their values (prices changed)"),
    ],
)
def test_a_changed_one_is_named_with_its_changes(words, shown, tmp_path):
    """How a value was obtained is left out; a default of the YAML and a table of values are not."""
    name = words[0].partition(".")[0]
    (suite,) = (one for one in SUITES if name in workloads_of(one))
    run = load([f"suite={suite}", f"workloads={name}", f"suite.workloads.{words[0]}", *words[1:]])[0]
    assert shown in names_of(run, tmp_path).values()
