"""A workload whose fields a command changed is not reported under the unchanged one's name alone."""

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import workloads_of
from harness.config.run import load, names
from harness.records import Cell, Record
from harness.report import gather


def names_of(run, tmp_path):
    records = [
        Record(
            Cell(
                "c", run.suite, name, "baseline", "baseline", 0, 0, {"workload": dict(fields), "settings": {}}
            ),
            "ok",
        )
        for name, fields in run.workloads.items()
    ]
    return gather(run.suite, records, [], tmp_path).spec.names["workload"]


@pytest.mark.parametrize("suite", names("suite"))
def test_unchanged_ones_keep_their_names(suite, tmp_path):
    assert not [name for name in names_of(load([f"suite={suite}"])[0], tmp_path).values() if "=" in name]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            [
                "suite=interconnect_formula",
                "workloads=links_7b_100g",
                "suite.workloads.links_7b_100g.link_B_per_s=3e9",
            ],
            "7 B, 2 nodes, faster link (link_B_per_s=3e+09)",
        ),
        (
            [
                "suite=memory",
                "workloads=llama_7b",
                "suite.workloads.llama_7b.micro_batch_size=4",
                "hardware=h200",
            ],
            "7B (Llama-2) (micro_batch_size=4)",
        ),
        (  # how the value was obtained, which its origin mark shows
            [
                "suite=memory",
                "workloads=gpt_5m",
                "suite.workloads.gpt_5m.measurable=false",
                "suite.workloads.gpt_5m.simulated_device=cuda",
            ],
            "GPT 5M",
        ),
        (  # a field that the YAML leaves to its default
            ["suite=interconnect_formula", "workloads=dense_7b", "suite.workloads.dense_7b.latency_s=0.001"],
            "7 B, 2 nodes (latency_s=0.001)",
        ),
        (  # a table of values
            ["suite=cost", "workloads=owner", "suite.workloads.owner.prices.rented_2026_07.kind=owned"],
            "One owner, inputs at their values (prices changed)",
        ),
    ],
)
def test_a_changed_one_is_named_with_its_changes(words, shown, tmp_path):
    assert shown in names_of(load(words)[0], tmp_path).values()


def test_every_suites_workloads_are_known_without_composing():
    for suite in names("suite"):
        assert workloads_of(suite).keys() == load([f"suite={suite}"])[0].workloads.keys(), (suite, ROOT)
