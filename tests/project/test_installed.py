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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
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
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the console script of an installation in a new virtual environment.

    The libraries come from this environment, the harness from its wheel alone.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    own = next((folder / "venv/lib").glob("python*/site-packages"))
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    _run([*PIP, "--python", str(folder / "venv"), "install", "--no-deps", str(wheel)], folder)
    return folder / "venv/bin/throughput-harness"


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the console script of `pip install .` alone, with its libraries from the package index."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder / "venv", with_pip=False)
    constraints = ["-c", str(ROOT / "constraints.txt"), "--retries", "0", "--timeout", "20"]
    install = [*PIP, "--python", str(folder / "venv"), "install", *constraints, str(wheel)]
    try:
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index is too slow here")
    if done.returncode:
        pytest.skip(f"the package index is out of reach: {done.stderr.strip().splitlines()[-1][:200]}")
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


MODEL = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # fmt: skip

KERNELS = ROOT / "results/reference/kernels"


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first one installs
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("list suites", "memory"),
        ("plan suite=layouts", "cell"),
        ("advise model=model.json gpus=64 seq_len=4096 global_batch_size=256", "s per step"),
        ("cost model=model.json gpus=64 tokens=1e12 rate=2.5", "GPU-hours"),
        ("fit model=model.json devices=64 layout=tp:2,pp:2", "GB per GPU"),
        ("compare KERNELS KERNELS", ""),
        ("from_results=KERNELS out=copy", "report"),
    ],
)
def test_what_asks_and_reports_needs_no_torch(light: Path, tmp_path: Path, words: str, expected: str) -> None:
    assert not list((light.parents[1] / "lib").glob("python*/site-packages/torch"))
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    said = _run([str(light), *words.replace("KERNELS", str(KERNELS)).split()], tmp_path)
    assert expected in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_needs_torch_names_the_extra(light: Path, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    done = subprocess.run(
        [str(light), "fit", "model=model.json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "throughput-harness[train]" in done.stderr
