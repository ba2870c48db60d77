"""The GPUs that torch sees, found out by a child process: the parent never imports torch."""

from __future__ import annotations

import json
import subprocess
import sys

from harness.sweep.environment import Gpu

TIMEOUT_S = 120.0
"""Importing torch takes seconds, and starting CUDA some more."""

CODE = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[one.name, one.total_memory] for one in found]))
"""


def visible_gpus() -> tuple[Gpu, ...]:
    """Return what CUDA_VISIBLE_DEVICES leaves; none where torch sees none, or cannot be imported."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return tuple(Gpu(*one) for one in json.loads(done.stdout.strip().rpartition("\n")[2]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return ()
