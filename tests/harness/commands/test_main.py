"""The command, as a person types it: in a copy of the tree where files are added or changed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.commands.entry import BROKEN_CELL
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


def harness(*words, cwd=ROOT):
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


@pytest.fixture
def found(swept):
    """Return the sweep's records by optimization."""
    return {record["cell"]["optimization"]: record for record in records(swept / "out")}


def records(folder: Path):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_help_names_what_there_is_and_where_the_rest_is_listed():
    done = harness("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("suite=memory", "from_results=", "plan=true", "list suite="))


def test_an_optimization_is_one_module_and_one_yaml(swept, found):
    assert found["baseline"]["status"] == "ok"
    assert found["half_batch"]["status"] == "ok"
    assert "half_batch" in (swept / "out/report.md").read_text()

    def peak(record, method):
        return max(m[4][-1] for m in record["measurements"] if m[0] == "peak_memory" and m[3] == method)

    assert peak(found["half_batch"], "measured") < peak(found["baseline"], "measured")
    assert peak(found["half_batch"], "fake_step") == pytest.approx(
        peak(found["half_batch"], "measured"), rel=5e-4
    )


def test_a_wrong_optimization_is_recorded_as_wrong_and_the_sweep_goes_on(swept, found):
    assert list(found) == ["baseline", "half_batch", "twice_the_loss"]
    assert found["twice_the_loss"]["status"] == "wrong_result"
    assert "loss of update 0" in found["twice_the_loss"]["reason"]
    assert found["twice_the_loss"]["measurements"] == []
    assert "wrong result" in (swept / "out/report.md").read_text()


def test_finished_cells_are_not_run_again_and_results_can_be_read_elsewhere(swept):
    before = (swept / "out/records.jsonl").read_bytes()
    report = (swept / "out/report.md").read_bytes()
    assert harness(*WORDS, cwd=swept).returncode == BROKEN_CELL
    assert (swept / "out/records.jsonl").read_bytes() == before
    assert harness("from_results=out", "out=again", cwd=swept).returncode == 0
    assert (swept / "again/report.md").read_bytes() == report
    assert (swept / "out/records.jsonl").read_bytes() == before


def test_several_folders_of_results_have_an_index_and_answers(swept):
    assert harness(*FORMULA, "out=formula", cwd=swept).returncode == 0
    done = harness("from_results=[out, formula]", "out=index", cwd=swept)
    assert done.returncode == 0, done.stderr
    index = (swept / "index/index.md").read_text()
    assert all(f"(../{folder}/report.md)" in index for folder in ("out", "formula"))
    assert not (swept / "index/plan.json").exists()
    assert (swept / "index/answers.csv").exists()


def test_folders_that_conflict_are_one_line_before_anything_is_written(swept):
    assert harness(*FORMULA, "out=several/one", cwd=swept).returncode == 0
    assert harness("from_results=several/one", "out=several/two", cwd=swept).returncode == 0
    done = harness("from_results=several", "out=refused", cwd=swept)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "harness: ../several/one, ../several/two: all have results of suite interconnect_formula; "
        "answers need those of one folder\n"
    )
    assert not (swept / "refused").exists()


def test_a_plan_is_printed_and_nothing_is_run_or_written(swept, tmp_path):
    before = sorted(path.name for path in (swept / "out").iterdir())
    done = harness(*WORDS, "plan=true", cwd=swept)
    assert done.returncode == 0, done.stderr
    assert "3 cells, 3 done already: nothing to run" in done.stdout
    assert "(2 ok, 1 wrong_result)" in done.stdout
    assert sorted(path.name for path in (swept / "out").iterdir()) == before
    others = [word for word in WORDS if not word.startswith("out=")]
    fresh = harness(*others, "repeats=2", f"out={tmp_path}/none", "plan=true", cwd=swept)
    assert fresh.returncode == 0, fresh.stderr
    assert "1 workload × 3 variants × 2 repeats" in fresh.stdout
    assert "6 cells, 6 to run" in fresh.stdout
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["from_results=nowhere"], "nowhere"),
        (["from_results=[nowhere,conf]"], "out: missing; from_results=[A,B] writes an index"),
        (["from_results=[nowhere,conf]", "out=/tmp"], "nowhere: no such results folder"),
        (["from_results=[a,]", "out=/tmp"], "expected a folder of results, or several: [A,B]"),
        (["suite=memory", "from_results=conf"], "no such results folder"),
        (["suite=memory", "out=pyproject.toml/x", "workloads=[gpt_5m]", "only=[baseline]"], "pyproject.toml"),
    ],
)
def test_a_folder_that_will_not_do_is_one_line(words, said):
    done = harness(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_another_suites_results_are_not_replaced(swept):
    before = (swept / "out/plan.json").read_bytes()
    done = harness("suite=congestion", "out=out", cwd=swept)
    assert (done.returncode, done.stderr) == (
        2,
        "harness: out=out: has results of suite memory; choose another folder\n",
    )
    assert (swept / "out/plan.json").read_bytes() == before


def test_a_run_whose_every_cell_is_unavailable_for_one_reason_ends_with_it_and_with_2(tmp_path):
    words = ["suite=interconnect_formula", "hardware=gpu_80gb", "+suite.workloads.mine={parameters: 7e9}"]
    words += ["workloads=[mine]", "only=[baseline,hybrid_shard]", f"out={tmp_path / 'out'}"]
    done = harness(*words)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "harness: nothing was run: all 2 cells are unavailable: mfu=0.4: the peak of 80 GB"
    )
