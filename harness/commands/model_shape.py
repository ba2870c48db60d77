"""The shape of a config.json's model, from a child process: only transformers knows its classes' defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from harness.config.code_fingerprint import ROOT
from harness.instruments.transformer.shape import TransformerShape

TIMEOUT_S = 120.0


def shape_of(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a Hugging Face config; raises ValueError with one line where it has none.

    The child imports transformers, which takes seconds.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "suites.training.layouts"],
            env={**os.environ, "PYTHONPATH": path},
            input=json.dumps(dict(config)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"the model's sizes were not read within {TIMEOUT_S:g} s") from None
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        raise ValueError(last[0] if last else f"the model's sizes: exit status {done.returncode}")
    fields = json.loads(done.stdout)
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return TransformerShape(**{**fields, **lists})
