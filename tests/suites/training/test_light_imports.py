"""What questions need loads neither torch nor transformers, and a dry run no compiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

HEAVY = ("torch", "transformers", "deepspeed", "pandas", "scipy", "matplotlib", "omegaconf", "hydra")

USES_SCIPY = ("calibrate",)
"""Modules that no question needs: they fit constants."""

CODE = """
import sys
from importlib import import_module
for name in {names!r}:
    import_module(name)
print(*(name for name in {heavy!r} if name in sys.modules))
sys.modules["transformers"] = sys.modules["torch"] = None
from harness.question import question_of
from suites.training import account_engine, seconds_engine
from suites.training.layouts.shape_of_config import shape_of_config
question = question_of(config={{"model_type": "llama"}}, devices=16, seq_len=4096, tp=2, global_batch_size=64)
for engine in (account_engine, seconds_engine):
    engine.answer(question)
seconds_engine.timeline_of(question)
print(shape_of_config({{"model_type": "llama"}}).parameters)
"""


def test_neither_importing_nor_an_answer_needs_a_heavy_package():
    names = []
    for package in ("layouts", "step_time"):
        folder = Path(ROOT, "suites/training", package)
        files = [file.relative_to(ROOT).with_suffix("") for file in sorted(folder.rglob("*.py"))]
        own = [".".join(file.parts) for file in files if file.stem not in ("__main__", *USES_SCIPY)]
        assert len(own) > 10
        names += [name.removesuffix(".__init__") for name in own]
    code = CODE.format(names=names, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "6738415616"]


def light_start(how):
    script = ROOT / "tests/support/processes/light_start.py"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, str(script), how], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    return json.loads(done.stdout)


def test_a_dry_run_shows_the_same_bytes_with_few_modules_and_with_all():
    """With no compiler and few of transformers' modules."""
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    light, whole = light_start("lightly"), light_start("wholly")
    assert light["shown"] == whole["shown"]
    assert (light["deferred"], light["loaded"]) == (True, [])
    assert not whole["deferred"]
