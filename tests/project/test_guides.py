"""The guides' suite and technique, and README's optimization, work as they are printed."""

import json
import re
import shutil
from contextlib import suppress

import pytest
from example_project import assert_checked, project_with, python

from harness.config.code_fingerprint import ROOT
from harness.config.protocols import OPTIMIZATION, SUITE
from harness.instruments.network.emulated_network import privileges
from harness.records import Unavailable

SUITE_EXAMPLE = ROOT / "tests" / "examples" / "adding_a_suite"
TECHNIQUE_EXAMPLE = ROOT / "tests" / "examples" / "adding_a_technique"
SUITE_GUIDE = (ROOT / "docs/extend/adding-a-suite.md").read_text()
TECHNIQUE_GUIDE = (ROOT / "docs/extend/adding-a-technique.md").read_text()

WORKLOADS = {"memory": "llama_12m", "kernels": "step_5m_128", "offload": "llama_5m", "interconnect": "ddp"}
"""The suites that the technique's guide adds it to."""

OF_EVERY_SUITE = [
    "tests/harness/config/test_declarations.py",
    "tests/harness/config/test_protocols.py",
    "tests/project/test_every_optimization.py",
    "tests/project/test_layers.py",
    "tests/project/test_layout.py",
]
"""Files of tests that look at each suite."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with both guides' examples, in which few other suites are composed."""
    examples = (SUITE_EXAMPLE, TECHNIQUE_EXAMPLE)
    folder = project_with(examples, tmp_path_factory.mktemp("project"), own=tuple(WORKLOADS))
    declaration = (folder / "declaration.txt").read_text()
    (folder / "declaration.txt").unlink()
    with (folder / "suites/training/declared.py").open("a") as declared:
        declared.write(declaration)
    block = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]
    (folder / "conf/suite/memory/of_readme.yaml").write_text(block)
    return folder


def run(project, suite, *words):
    """Run the suite; return its records by optimization and its report."""
    done = python(project, "-m", "harness", f"suite={suite}", *words)
    assert done.returncode == 0, done.stderr
    folder = project / "results" / suite
    records = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return {one["cell"]["optimization"]: one for one in records}, (folder / "report.md").read_text()


def test_the_suite_runs_and_its_report_shows_its_numbers(project):
    records, report = run(project, "packing", "repeats=2", "suite.sampling.budget_s=0.05")
    assert {one["status"] for one in records.values()} == {"ok"}
    assert set(records) == {"baseline", "baseline_again", "first_fit.open_1", "first_fit.open_16"}
    assert re.search(r"^Padding: up to −[\d.]+ % \(First fit of 16\), not judged", report, re.M)


@pytest.mark.timeout(600)
def test_the_technique_and_the_optimization_of_readme_run(project):
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 67}
    fields = {**sizes, "seq_len": 16, "measurable": False}
    words = [f"suite.workloads.gpt_5m.{name}={value}" for name, value in fields.items()]
    words += ["workloads=[gpt_5m]", "only=[of_readme,chunked_loss]"]
    records, _ = run(project, "memory", *words)
    assert set(records) == {"baseline", "chunked_loss", "of_readme"}
    assert {one["status"] for one in records.values()} == {"ok"}
    assert records["chunked_loss"]["cell"]["config"]["techniques"] == [["chunked_loss", {}]]
    assert records["chunked_loss"]["measurements"]
    assert records["of_readme"]["cell"]["config"]["techniques"] == [
        ["fsdp2", {}],
        ["mixed_precision", {"gradients": "bf16"}],
        ["attention", {"kernel": "flash"}],
    ]


@pytest.mark.timeout(900)
def test_both_pass_the_projects_own_checks(project):
    file = "suites/training/techniques/chunked_loss.py"
    modules = ["-p", "suites.packing", "-m", "suites.training.techniques.chunked_loss"]
    assert_checked(project, ["suites/packing", file], modules)


@pytest.mark.timeout(900)
def test_both_pass_the_tests_that_look_at_every_suite(project):
    """The technique is found in every suite that trains, and is right in each."""
    shutil.copytree(ROOT / "tests", project / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", project)
    chosen = f"packing or (chunked_loss and ({' or '.join({**WORKLOADS, 'interconnect': 'ddp'})}))"
    done = python(project, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-k", chosen, *OF_EVERY_SUITE)
    assert done.returncode == 0, done.stdout
    ended = re.findall(r"^([A-Z]+) (tests/[\w/]+\.py)::(.*)", done.stdout, re.M)
    assert {(how, file) for how, file, _ in ended} >= {("PASSED", file) for file in OF_EVERY_SUITE}
    passed = "\n".join(test for how, _, test in ended if how == "PASSED")
    expected = WORKLOADS.keys() - {"interconnect"}
    with suppress(Unavailable):
        privileges()
        expected |= {"interconnect"}
    assert set(re.findall(r"\[(\w+)\|.*-chunked_loss\]", passed)) >= expected


def test_the_guides_name_every_function_of_the_protocols_and_have_the_examples_yaml():
    for name, function in SUITE.items():
        assert f"`{name}({', '.join(function.parameters)})`" in SUITE_GUIDE
    for name in OPTIMIZATION:
        assert f"`{name}(" in SUITE_GUIDE
    (block,) = re.findall(r"```yaml\n(.*?)```", TECHNIQUE_GUIDE, re.S)
    for suite, workload in WORKLOADS.items():
        assert f"`suite={suite} workloads=[{workload}]" in TECHNIQUE_GUIDE
        assert (TECHNIQUE_EXAMPLE / f"conf/suite/{suite}/chunked_loss.yaml").read_text() == block
