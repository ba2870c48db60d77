"""A copy of the project with the guides' examples added, and its commands."""

import shutil
import subprocess
import sys

from toy.sweep import environ

from harness.config.code_fingerprint import ROOT

CACHE = ".mypy_cache"


def project_with(examples, folder, own):
    """Return `folder`, now a copy of the project with only its `own` suites, and the examples' files."""
    for name in ("harness", "conf", "suites"):
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in (folder / "conf/suite").glob("*.yaml"):
        if file.stem not in own:
            file.unlink()
    for example, file in ((one, file) for one in examples for file in one.rglob("*.*")):
        if "__pycache__" not in file.parts:
            target = folder / file.relative_to(example)
            assert not target.exists(), f"{target} exists already"
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)
    return folder


def python(folder, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environ(), "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def assert_checked(folder, files, mypy):
    """Run the project's own ruff on `files` and mypy with the arguments `mypy`."""
    if (ROOT / CACHE).exists():  # what mypy has found about the project's own files
        shutil.copytree(ROOT / CACHE, folder / CACHE, dirs_exist_ok=True)
    config = str(ROOT / "pyproject.toml")
    for words in (
        ["ruff", "check", "--config", config, *files],
        ["ruff", "format", "--check", "--config", config, *files],
        ["mypy", "--config-file", config, *mypy],
    ):
        done = python(folder, "-m", *words)
        assert done.returncode == 0, done.stdout + done.stderr
