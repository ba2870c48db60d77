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

ROOT = Path(__file__).parents[2]

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a copy of this tree, in which a build may leave what it wants."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("harness", "suites", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def program(source, tmp_path_factory):
    """Return the console script of an installation with this environment's libraries, in one of its own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    own = next((folder / "venv/lib").glob("python*/site-packages"))
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    install = ["install", "--no-deps", "--no-build-isolation", str(source)]
    _run([*PIP, "--python", str(folder / "venv"), *install], folder)
    return folder / "venv/bin/throughput-harness"


@pytest.fixture(scope="module")
def light(source, tmp_path_factory):
    """Return the console script of `pip install .` alone, with its libraries from the package index."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder / "venv", with_pip=False)
    constraints = ["-c", str(ROOT / "constraints.txt"), "--retries", "0", "--timeout", "20"]
    install = [*PIP, "--python", str(folder / "venv"), "install", *constraints, str(source)]
    try:
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index is too slow here")
    if done.returncode:
        pytest.skip(f"the package index is out of reach: {done.stderr.strip().splitlines()[-1][:200]}")
    return folder / "venv/bin/throughput-harness"


def _run(command, folder):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_lists_what_conf_has_runs_a_suite_and_reports_it(program, tmp_path):
    listed = _run([str(program), "list", "suites"], tmp_path).splitlines()
    suites = (ROOT / "conf/suite").glob("*.yaml")
    assert [line.split()[0] for line in listed] == sorted(path.stem for path in suites)
    words = ["suite=interconnect_formula", "workloads=[dense_7b]", "only=[hybrid_shard]"]
    _run([str(program), *words], tmp_path)
    folder = tmp_path / "results/interconnect_formula"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    statuses = {record["cell"]["optimization"]: record["status"] for record in records}
    assert statuses == {"baseline": "ok", "hybrid_shard": "ok"}
    assert "7 B" in (folder / "report.html").read_text()


MODEL = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json"
KERNELS = str(ROOT / "results/reference/kernels")


@pytest.mark.long
@pytest.mark.timeout(900)  # the first one installs
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan suite=layouts", "cell"),
        ("cost MODEL gpus=64 tokens=1e12 rate=2.5", "GPU-hours"),
        ("fit MODEL devices=64 layout=tp:2,pp:2", "GB per GPU"),
        ("from_results=KERNELS out=copy", "report"),
        ("fit MODEL", None),  # which needs torch, and names the extra
    ],
)
def test_what_asks_and_reports_needs_no_torch(light, tmp_path, words, expected):
    assert not list((light.parents[1] / "lib").glob("python*/site-packages/torch"))
    command = [str(light), *words.replace("MODEL", MODEL).replace("KERNELS", KERNELS).split()]
    if expected is not None:
        assert expected in _run(command, tmp_path)
        return
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "throughput-harness[train]" in done.stderr
