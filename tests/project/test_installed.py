"""`pip install .` into a fresh virtual environment gives a program that works from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the console script of an installation in a new virtual environment.

    The libraries come from this environment, the harness from its wheel alone.
    """
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    copied = ("harness", "suites", "conf", "pyproject.toml", "README.md", "LICENSE")
    for name in copied:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    options = ["--no-deps", "--no-build-isolation"]
    _run([*PIP, "wheel", *options, "--wheel-dir", str(folder), str(source)], folder)
    shutil.rmtree(source)
    venv.create(folder / "venv", with_pip=False)
    own = next((folder / "venv/lib").glob("python*/site-packages"))
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    wheel = next(folder.glob("*.whl"))
    _run([*PIP, "--python", str(folder / "venv"), "install", "--no-deps", str(wheel)], folder)
    return folder / "venv/bin/throughput-harness"


def _run(command: list[str], folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_lists_what_conf_has(program: Path, tmp_path: Path) -> None:
    listed = _run([str(program), "list", "suites"], tmp_path)
    assert [line.split()[0] for line in listed.splitlines()] == sorted(
        path.stem for path in (ROOT / "conf/suite").glob("*.yaml")
    )
    sheet = yaml.safe_load(_run([str(program), "suite=memory", "--cfg", "job"], tmp_path))["hardware"]
    assert sheet["source"] == yaml.safe_load((ROOT / "conf/hardware/gpu_80gb.yaml").read_text())["source"]


def test_it_runs_a_suite_and_reports_it(program: Path, tmp_path: Path) -> None:
    words = ["suite=interconnect_formula", "workloads=[dense_7b]", "only=[hybrid_shard]"]
    _run([str(program), *words], tmp_path)
    folder = tmp_path / "results/interconnect_formula"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {record["cell"]["optimization"]: record["status"] for record in records} == {
        "baseline": "ok",
        "hybrid_shard": "ok",
    }
    assert "7 B" in (folder / "report.html").read_text()
