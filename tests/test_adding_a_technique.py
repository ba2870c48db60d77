"""A technique that is added as one file, with one YAML per suite, runs in every suite that trains."""

import json
import re

import pytest
import yaml
from example_project import assert_checked, project_with, python

from harness.code_fingerprint import ROOT
from harness.instruments.network.emulated_network import privileges
from harness.records import Unavailable

EXAMPLE = ROOT / "tests" / "examples" / "adding_a_technique"
GUIDE = (ROOT / "docs" / "adding-a-technique.md").read_text()

SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 24, "vocab_size": 32, "seq_len": 16}
WORKLOADS = {
    "memory": ("llama_12m", {}),
    "kernels": ("step_5m_128", {"head_size": 8}),
    "offload": ("llama_5m", {"loss_steps": 8, "dp_size": 1}),
    "interconnect": ("ddp", {"loss_steps": 8}),
}
SHORT = [
    "suite.sampling.budget_s=0.02",
    "suite.sampling.rounds=2",
    "repeats=1",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return project_with(EXAMPLE, tmp_path_factory.mktemp("project"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", WORKLOADS)
def test_the_technique_of_the_guide_runs_in_every_suite_that_trains(project, suite):
    if suite == "interconnect":
        try:
            privileges()
        except Unavailable as reason:
            pytest.skip(str(reason))
    workload, own = WORKLOADS[suite]
    sizes = [f"suite.workloads.{workload}.{name}={value}" for name, value in {**SIZES, **own}.items()]
    words = [f"suite={suite}", "only=[chunked_loss]", f"workloads=[{workload}]", *SHORT, *sizes]
    done = python(project, "-m", "harness", *words)
    assert done.returncode == 0, done.stderr
    lines = (project / "results" / suite / "records.jsonl").read_text().splitlines()
    (record,) = [one for one in map(json.loads, lines) if one["cell"]["optimization"] == "chunked_loss"]
    assert record["status"] == "ok", record["reason"]
    assert record["cell"]["config"]["techniques"] == [["chunked_loss", {}]]
    assert record["measurements"]


@pytest.mark.timeout(900)
def test_the_technique_of_the_guide_passes_the_projects_own_checks(project):
    file = "suites/training/techniques/chunked_loss.py"
    (project / "uses.py").write_text(
        "from suites.training.techniques import Technique, chunked_loss\n"
        "checked: Technique[chunked_loss.Settings] = chunked_loss\n"
    )
    assert_checked(project, [file], ["uses.py", file])


def test_the_guide_names_each_suite_with_a_workload():
    for suite, (workload, _) in WORKLOADS.items():
        assert f"`suite={suite} workloads=[{workload}]" in GUIDE


def test_the_yaml_of_the_guide_is_that_of_the_example():
    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    for suite in WORKLOADS:
        assert (EXAMPLE / f"conf/suite/{suite}/chunked_loss.yaml").read_text() == block
    assert set(yaml.safe_load(block)) == {"title", "techniques"}
