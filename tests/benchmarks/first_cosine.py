"""Is a process's first fp32 cosine on two threads as accurate as its second? See process.py.

python tests/benchmarks/first_cosine.py 40

Starts so many processes one after another, in which each function was not called before, then as many in
which it was, and prints in how many of each two rotary tables of one process differ. On an idle machine:
with its cores busy, threads rarely make the first call together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEFORE = {
    "not called before": "",
    "called before": "from harness.instruments.process import call_unary_functions; call_unary_functions()",
}
TABLES = """
import torch
from suites.portability import problem
from suites.training.models.model import rotary_tables
torch.set_num_threads(2)
{before}
first, second = rotary_tables(256, 64), rotary_tables(256, 64)
print(max(float((one - other).abs().max()) for one, other in zip(first, second, strict=True)))
"""


def main(count: int) -> None:
    for name, before in BEFORE.items():
        command = [sys.executable, "-c", TABLES.format(before=before)]
        differences = [float(subprocess.check_output(command, cwd=ROOT)) for _ in range(count)]
        differing = sum(one > 0 for one in differences)
        print(f"{name}: {differing} of {count} differ, at most by {max(differences):.1e}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
