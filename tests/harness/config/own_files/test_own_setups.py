"""Set-ups: layouts that follow from what a file says, and what does not divide."""

import subprocess
import sys
from dataclasses import replace

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.own_files.setup import OwnSetup


def test_a_layout_that_does_not_divide_says_what_would():
    setup = OwnSetup(format="megatron", framework="", tp=8, pp=4, global_batch_size=30)
    with pytest.raises(ValueError, match="tp 8 × pp 4 × cp 1 = 32"):
        setup.layout(48)
    with pytest.raises(ValueError, match="devices is missing"):
        setup.layout()
    with pytest.raises(ValueError, match="global batch of 30"):
        setup.layout(128)


def test_the_parent_reads_files_without_torch():
    code = (
        "import sys; from harness.config.own_files.read import read_own_text; "
        "read_own_text('--num-layers 2 --micro-batch-size 1', suffix='.sh') if 0 else None; "
        "from harness.config.own_files.logs.read import read_log; from "
        "harness.config.own_files.oom.explain import read_oom; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'suites', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("per_stage", "stages"), [(None, 2), (4, 1), (2, 2), (1, 4)])
def test_stages_follow_from_layers_per_stage(per_stage, stages):
    """14 layers, the embedding and the output layer are 16, on 4 ranks."""
    setup = OwnSetup(
        format="torchtitan", framework="", pp=4, dp=1, virtual_stages=2, layers_per_stage=per_stage
    )
    setup = replace(setup, model={"num_hidden_layers": 14})
    assert setup.layout()["virtual_stages"] == stages
    with pytest.raises(ValueError, match="6 stages, no multiple of pp 4"):
        replace(setup, layers_per_stage=3).layout()
