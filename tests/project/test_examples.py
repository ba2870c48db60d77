"""The guide's suite and README's optimization work as they are printed."""

import json
import re
import shutil

import pytest
from example_project import assert_checked, project_with, python

from harness.config.code_fingerprint import ROOT
from harness.config.protocols import OPTIMIZATION, SUITE

EXAMPLE = ROOT / "tests" / "examples" / "adding_a_suite"
GUIDE = (ROOT / "docs" / "adding-a-suite.md").read_text()

OF_EVERY_SUITE = [
    "tests/harness/config/test_dataclass_fields.py",
    "tests/harness/config/test_protocols.py",
    "tests/project/test_every_optimization.py",
    "tests/project/test_layers.py",
    "tests/project/test_layout.py",
]
"""Files of tests that look at each suite."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return project_with(EXAMPLE, tmp_path_factory.mktemp("project"))


def test_the_suite_of_the_guide_runs_and_its_report_shows_its_numbers(project):
    done = python(project, "-m", "harness", "suite=packing", "repeats=2", "suite.sampling.budget_s=0.05")
    assert done.returncode == 0, done.stderr
    records = [
        json.loads(line) for line in (project / "results/packing/records.jsonl").read_text().splitlines()
    ]
    assert {one["status"] for one in records} == {"ok"}
    assert {one["cell"]["optimization"] for one in records} == {
        "baseline",
        "baseline_again",
        "first_fit.open_1",
        "first_fit.open_16",
    }
    report = (project / "results/packing/report.md").read_text()
    assert report.startswith("# How much padding does packing save, and how long does it take?\n")
    assert "\nTime (warm): no variant pays.\n" in report
    assert re.search(r"^Padding: up to −[\d.]+ % \(First fit of 16\), not judged", report, re.M)
    assert "Others cpu share" not in report
    for shown in ("One document per sequence", "First fit of 16", "padding", "time"):
        assert shown in report


def test_a_wrong_packing_is_a_wrong_result(project):
    """The check of the guide's suite catches a document that is lost."""
    wrong = (
        "from dataclasses import replace\nfrom suites.packing import Subject, one_each\n"
        "def apply(subject: Subject) -> Subject:\n"
        "    return replace(subject, pack=lambda lengths, seq_len: one_each(lengths, seq_len)[1:])\n"
    )
    (project / "suites" / "packing" / "lossy.py").write_text(wrong)
    words = [
        "suite=packing",
        "only=[lossy]",
        "repeats=1",
        "suite.sampling.budget_s=0.05",
        "out=results/lossy",
    ]
    done = python(project, "-m", "harness", *words)
    (project / "suites" / "packing" / "lossy.py").unlink()
    assert done.returncode == 0, done.stderr
    lines = (project / "results/lossy/records.jsonl").read_text().splitlines()
    (record,) = [one for one in map(json.loads, lines) if one["cell"]["optimization"] == "lossy"]
    assert record["status"] == "wrong_result"
    assert "499 documents are packed, expected each of 500 once" in record["reason"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_suite_of_the_guide_passes_the_projects_own_checks(project):
    assert_checked(project, ["suites/packing"], ["-p", "suites.packing"])


@pytest.mark.timeout(600)
def test_the_suite_of_the_guide_passes_the_tests_that_look_at_every_suite(tmp_path):
    """In a copy of the project in which few other suites are composed; offload_ranks.py needs one."""
    folder = project_with(EXAMPLE, tmp_path, own=["offload"])
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    done = python(folder, "-m", "pytest", "-rA", "-k", "packing", *OF_EVERY_SUITE)
    assert done.returncode == 0, done.stdout
    ended = re.findall(r"^([A-Z]+) (tests/[\w/]+\.py)::", done.stdout, re.M)
    assert set(ended) == {("PASSED", file) for file in OF_EVERY_SUITE}, done.stdout


def test_the_suite_of_the_guide_is_short():
    lines = (EXAMPLE / "suites/packing/__init__.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 70


def test_the_guide_names_every_function_of_the_protocols_and_the_class():
    for name, function in SUITE.items():
        assert f"`{name}({', '.join(function.parameters)})`" in GUIDE
    assert "| `Workload` |" in GUIDE
    for name in OPTIMIZATION:
        assert f"`{name}(" in GUIDE


@pytest.mark.timeout(600)
def test_the_optimization_of_readme_runs(project):
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (project / "conf/suite/memory/of_readme.yaml").write_text(block)
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 67,
        "seq_len": 16,
    }
    fields = {**sizes, "measurable": False}
    words = [f"suite.workloads.gpt_5m.{name}={value}" for name, value in fields.items()]
    done = python(project, "-m", "harness", "suite=memory", "workloads=[gpt_5m]", "only=[of_readme]", *words)
    assert done.returncode == 0, done.stderr
    lines = (project / "results/memory/records.jsonl").read_text().splitlines()
    baseline, ours = sorted(map(json.loads, lines), key=lambda one: one["cell"]["optimization"])
    assert (baseline["status"], ours["status"]) == ("ok", "ok"), ours["reason"]
    assert ours["cell"]["config"]["techniques"] == [
        ["fsdp2", {}],
        ["mixed_precision", {"gradients": "bf16"}],
        ["attention", {"kernel": "flash"}],
    ]
    assert "FSDP2 + bf16 + flash attention" in (project / "results/memory/report.md").read_text()
