"""A technique that is added as one file, with one YAML per suite, runs in every suite that trains."""

import json
import re
import shutil

import pytest
import yaml
from example_project import assert_checked, project_with, python

from harness.config.code_fingerprint import ROOT
from harness.instruments.network.emulated_network import privileges
from harness.records import Unavailable

EXAMPLE = ROOT / "tests" / "examples" / "adding_a_technique"
GUIDE = (ROOT / "docs" / "adding-a-technique.md").read_text()

WORKLOADS = {"memory": "llama_12m", "kernels": "step_5m_128", "offload": "llama_5m", "interconnect": "ddp"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return project_with(EXAMPLE, tmp_path_factory.mktemp("project"))


@pytest.mark.timeout(600)
def test_the_technique_of_the_guide_runs_by_the_command(project):
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 24, "vocab_size": 32, "seq_len": 16}
    words = [f"suite.workloads.llama_12m.{name}={value}" for name, value in sizes.items()]
    words += ["suite=memory", "only=[chunked_loss]", "workloads=[llama_12m]"]
    done = python(project, "-m", "harness", *words)
    assert done.returncode == 0, done.stderr
    lines = (project / "results/memory/records.jsonl").read_text().splitlines()
    (record,) = [one for one in map(json.loads, lines) if one["cell"]["optimization"] == "chunked_loss"]
    assert record["status"] == "ok", record["reason"]
    assert record["cell"]["config"]["techniques"] == [["chunked_loss", {}]]
    assert record["measurements"]


@pytest.mark.timeout(600)
def test_the_technique_of_the_guide_is_found_in_every_suite_that_trains_and_is_right(project):
    """By the project's own test of every optimization."""
    shutil.copytree(
        ROOT / "tests", project / "tests", ignore=shutil.ignore_patterns("examples", "__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", project)
    file, chosen = (
        "tests/project/test_every_optimization.py",
        "chunked_loss and (kernels or offload or ddp or memory)",
    )
    done = python(project, "-m", "pytest", "-vv", "-rs", "-p", "no:cacheprovider", file, "-k", chosen)
    assert done.returncode == 0, done.stdout
    tried = re.findall(r"\[(\w+)\|.*-chunked_loss\] (\w+)", done.stdout)
    assert {suite for suite, _ in tried} == set(WORKLOADS)
    assert {ended for suite, ended in tried if suite != "interconnect"} == {"PASSED"}
    try:
        privileges()
    except Unavailable:
        return
    assert ("interconnect", "PASSED") in tried


@pytest.mark.timeout(900)
def test_the_technique_of_the_guide_passes_the_projects_own_checks(project):
    file = "suites/training/techniques/chunked_loss.py"
    (project / "uses.py").write_text(
        "from suites.training.techniques import Technique, chunked_loss\n"
        "checked: Technique[chunked_loss.Settings] = chunked_loss\n"
    )
    assert_checked(project, [file], ["uses.py", file])


def test_the_guide_names_each_suite_with_a_workload():
    for suite, workload in WORKLOADS.items():
        assert f"`suite={suite} workloads=[{workload}]" in GUIDE


def test_the_yaml_of_the_guide_is_that_of_the_example():
    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    for suite in WORKLOADS:
        assert (EXAMPLE / f"conf/suite/{suite}/chunked_loss.yaml").read_text() == block
    assert set(yaml.safe_load(block)) == {"title", "techniques"}
