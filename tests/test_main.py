"""The command, as a person types it: in a copy of the tree where files are added or changed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.source_digest import ROOT

SMALL = [
    "suite=memory",
    "workloads=[gpt_5m]",
    "suite.workloads.gpt_5m.layers=2",
    "suite.workloads.gpt_5m.batch=16",
]


def harness(*words, cwd=ROOT):
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path):
    """The sources alone, to be changed at will."""
    for name in ("harness", "suites", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def records(folder: Path):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_help_names_every_suite_and_optimization():
    done = harness("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("memory", "fsdp2", "llama_7b", "from_results", "gpu_80gb"))


def test_an_optimization_is_one_module_and_one_yaml(tree):
    (tree / "conf/suite/memory/half_batch.yaml").write_text("settings: {parts: 2}\n")
    (tree / "suites/memory/half_batch.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "@dataclass\n"
        "class Settings:\n"
        "    parts: int = 2\n"
        "def unavailable(host):\n"
        "    return None\n"
        "def apply(subject, settings):\n"
        "    w = subject.workload\n"
        "    n = settings.parts\n"
        "    return replace(subject, workload=replace(w, batch=w.batch // n, micro_batches=n))\n"
    )
    done = harness(*SMALL, "only=[baseline,half_batch]", "out=out", cwd=tree)
    assert done.returncode == 0, done.stderr
    found = {record["cell"]["optimization"]: record for record in records(tree / "out")}
    assert {name: record["status"] for name, record in found.items()} == {
        "baseline": "ok",
        "half_batch": "ok",
    }
    assert "half_batch" in (tree / "out/report.md").read_text()

    def peak(record, method):
        return max(m[4][-1] for m in record["measurements"] if m[0] == "peak_memory" and m[3] == method)

    assert peak(found["half_batch"], "measured") < peak(found["baseline"], "measured")
    assert peak(found["half_batch"], "fake_step") == pytest.approx(
        peak(found["half_batch"], "measured"), rel=5e-4
    )


def test_a_wrong_optimization_is_recorded_as_wrong_and_the_sweep_goes_on(tree):
    module = tree / "suites/memory/flash_attention.py"
    module.write_text(
        module.read_text() + "\n\n_right = apply\n\n\ndef apply(subject, settings):\n"
        "    def spoil(model):\n        model.register_forward_hook(lambda m, a, loss: loss * 2)\n"
        "        return model\n\n"
        "    return replace(_right(subject, settings), wrap=(spoil,))\n"
    )
    done = harness(*SMALL, "only=[baseline,flash_attention]", "out=out", cwd=tree)
    found = {r["cell"]["optimization"]: r for r in records(tree / "out")}
    assert found["baseline"]["status"] == "ok"
    assert found["flash_attention"]["status"] == "wrong_result"
    assert "loss of step 0" in found["flash_attention"]["reason"]
    assert found["flash_attention"]["measurements"] == []
    assert "wrong result" in (tree / "out/report.md").read_text()
    assert done.returncode == 0


def test_finished_cells_are_not_run_again_and_results_can_be_read_elsewhere(tree):
    words = [*SMALL, "only=[baseline]", "out=out"]
    assert harness(*words, cwd=tree).returncode == 0
    before = (tree / "out/records.jsonl").read_bytes()
    report = (tree / "out/report.md").read_bytes()
    assert harness(*words, cwd=tree).returncode == 0
    assert (tree / "out/records.jsonl").read_bytes() == before
    assert harness("from_results=out", "out=again", cwd=tree).returncode == 0
    assert (tree / "again/report.md").read_bytes() == report
    assert (tree / "out/records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["from_results=nowhere"], "nowhere"),
        (["suite=memory", "from_results=conf"], "no such results folder"),
        (["suite=memory", "out=pyproject.toml/x", "workloads=[gpt_5m]", "only=[baseline]"], "pyproject.toml"),
    ],
)
def test_a_folder_that_will_not_do_is_one_line(words, said):
    done = harness(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
