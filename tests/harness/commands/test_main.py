"""The command, as a person types it: in a copy of the tree where files are added or changed."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from harness.commands.entry import BROKEN_CELL, FAILED
from harness.commands.main import main
from harness.config.code_fingerprint import ROOT

WORDS = [
    "suite=memory",
    "workloads=[gpt_5m]",
    "suite.workloads.gpt_5m.num_hidden_layers=2",
    "suite.workloads.gpt_5m.micro_batch_size=16",
    "only=[baseline,twice_the_loss,half_batch]",
    "out=out",
    "executor.workers=1",
]

FORMULA = ["suite=interconnect_formula", "workloads=[gemma_12b]", "only=[baseline]"]

HALF_BATCH = """
from dataclasses import dataclass, replace


@dataclass
class Settings:
    parts: int = 2


def apply(subject, settings):
    workload = subject.step.workload
    size = workload.micro_batch_size // settings.parts
    changed = replace(workload, micro_batch_size=size, gradient_accumulation_steps=settings.parts)
    return replace(subject, step=replace(subject.step, workload=changed))
"""
TWICE = """
from dataclasses import replace


def apply(subject):
    def spoil(model, resources):
        model.register_forward_hook(lambda module, inputs, loss: loss * 2)
        return model

    return replace(subject, step=replace(subject.step, wraps=(spoil,)))
"""


def harness(*words, cwd):
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return the sources with an optimization that is added and one that is wrong, and a sweep of both."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("harness", "suites", "conf"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "conf/suite/memory/half_batch.yaml").write_text("settings: {parts: 2}\n")
    (tree / "suites/memory/half_batch.py").write_text(HALF_BATCH)
    (tree / "conf/suite/memory/twice_the_loss.yaml").write_text("title: Twice the loss\n")
    (tree / "suites/memory/twice_the_loss.py").write_text(TWICE)
    done = harness(*WORDS, cwd=tree)
    assert done.returncode == BROKEN_CELL, done.stderr
    return tree


def test_an_optimization_is_one_module_and_one_yaml_and_a_wrong_one_is_recorded_as_wrong(swept):
    records = [json.loads(line) for line in (swept / "out/records.jsonl").read_text().splitlines()]
    found = {record["cell"]["optimization"]: record for record in records}
    statuses = {"baseline": "ok", "half_batch": "ok", "twice_the_loss": "wrong_result"}
    assert {name: record["status"] for name, record in found.items()} == statuses

    def peak(record, method):
        return max(m[4][-1] for m in record["measurements"] if m[0] == "peak_memory" and m[3] == method)

    assert peak(found["half_batch"], "measured") < peak(found["baseline"], "measured")
    assert peak(found["half_batch"], "fake_step") == pytest.approx(
        peak(found["half_batch"], "measured"), rel=5e-4
    )
    assert "loss of update 0" in found["twice_the_loss"]["reason"]
    assert found["twice_the_loss"]["measurements"] == []


def test_finished_cells_are_not_run_again_and_results_can_be_read_elsewhere(swept, monkeypatch):
    before = {path: path.read_bytes() for path in (swept / "out").glob("*.*")}
    done = harness(*WORDS, "plan=true", cwd=swept)
    assert done.returncode == 0, done.stderr
    assert "3 cells, 3 done already: nothing to run" in done.stdout
    assert {path: path.read_bytes() for path in (swept / "out").glob("*.*")} == before
    monkeypatch.chdir(swept)
    assert main(["from_results=out", "out=again"]) == 0
    assert (swept / "again/report.md").read_bytes() == before[swept / "out/report.md"]
    assert (swept / "out/records.jsonl").read_bytes() == before[swept / "out/records.jsonl"]


def test_several_folders_of_results_have_an_index_and_answers_unless_they_conflict(
    swept, monkeypatch, capsys
):
    monkeypatch.chdir(swept)
    assert main([*FORMULA, "out=several/one"]) == 0
    assert main(["from_results=[out, several/one]", "out=index"]) == 0
    index = (swept / "index/index.md").read_text()
    assert all(f"(../{folder}/report.md)" in index for folder in ("out", "several/one"))
    assert (swept / "index/answers.csv").exists()
    assert main(["from_results=several/one", "out=several/two"]) == 0
    capsys.readouterr()
    assert main(["from_results=several", "out=refused"]) == 2
    assert capsys.readouterr().err.startswith("harness: ../several/one, ../several/two: all have results of")
    assert not (swept / "refused").exists()


def test_a_plan_is_printed_and_nothing_is_run_or_written(tmp_path, capsys):
    words = ["plan", "suite=memory", "workloads=[gpt_5m]", "only=[baseline,mixed_flash]", "repeats=2"]
    assert main([*words, f"out={tmp_path}/none"]) == 0
    printed = capsys.readouterr().out
    assert "1 workload × 2 variants × 2 repeats" in printed
    assert "4 cells, 4 to run" in printed
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_one_line(capsys):
    assert main([*FORMULA, f"out={__file__}/x"]) == FAILED
    assert re.fullmatch(r"harness: cannot write into .*\n", capsys.readouterr().err)


def test_another_suites_results_are_not_replaced(swept, monkeypatch, capsys):
    monkeypatch.chdir(swept)
    before = (swept / "out/plan.json").read_bytes()
    assert main(["suite=congestion", "out=out"]) == 2
    assert capsys.readouterr().err.startswith("harness: out=out: has results of suite memory; ")
    assert (swept / "out/plan.json").read_bytes() == before


def test_a_run_whose_every_cell_is_unavailable_for_one_reason_ends_with_it_and_with_2(tmp_path, capsys):
    words = ["suite=interconnect_formula", "hardware=gpu_80gb", "+suite.workloads.mine={parameters: 7e9}"]
    words += ["workloads=[mine]", "only=[baseline,hybrid_shard]", f"out={tmp_path / 'out'}"]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("harness: nothing was run: all 2 cells are unavailable: ")
