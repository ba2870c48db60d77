"""Run a function in a child process with a time limit, for what imports torch or a suite.

`python -m harness.sweep.in_child MODULE FUNCTION` is the child: the argument as JSON on standard input, the
result as the last line of standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from harness.config.code_fingerprint import ROOT


def python_path() -> str:
    """Return the PYTHONPATH of a process that is to find this harness."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class ChildError(Exception):
    """The child failed, or took too long; the text is one line."""


def in_child(module: str, function: str, argument: Any, timeout_s: float) -> Any:
    """Return what the function returns, of an argument and a result that JSON can express.

    Raises ChildError.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.sweep.in_child", module, function],
            input=json.dumps(argument), capture_output=True, text=True, timeout=timeout_s,
            env={**os.environ, "PYTHONPATH": python_path()}, check=False,
        )  # fmt: skip
        return json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise ChildError(f"it took longer than {timeout_s:g} s") from None
    except OSError as error:
        raise ChildError(str(error)) from None
    except ValueError:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ChildError(lines[-1] if lines else f"exit code {done.returncode}") from None


if __name__ == "__main__":
    answer = getattr(import_module(sys.argv[1]), sys.argv[2])(json.load(sys.stdin))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
