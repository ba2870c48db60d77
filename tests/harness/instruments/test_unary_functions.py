"""The first call of each function of one argument is as accurate as later ones, on two threads too."""

import subprocess
import sys

import pytest

from harness.config.code_fingerprint import ROOT

FIRST_CALLS = """
import torch
from harness.instruments import unary_functions
torch.set_num_threads(2)
unary_functions.choose()
x = torch.linspace(0.01, 0.99, 1 << 17)
for name in unary_functions.FUNCTIONS:
    function = getattr(torch, name)
    error = (function(x) - function(x.double())).abs().max() / function(x.double()).abs().max()
    assert error < 1e-6, f"{name}: {error:.1e}"
"""
WITHOUT_TORCH = """
import sys
from harness.instruments import unary_functions
unary_functions.choose()
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("code", [FIRST_CALLS, WITHOUT_TORCH], ids=["two threads", "without torch"])
def test_of_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
