"""Identical code against itself, and a slowdown of 5 %, by pytest-benchmark and by pyperf, on a busy machine.

    python -m tests.benchmarks.trust.peers pytest_benchmark [--out results/trust]
    python -m tests.benchmarks.trust.peers pyperf

As their users do it: every op is timed and saved, with 20 units of work three times over and then with 21
units, one run after another; then runs are compared. Identical: the second with the first, the third with the
second. Slower: the run of 21 units with each of the three. Each variant of each op has the time that the
harness gives it by default, five seconds of sampling: pytest-benchmark in one process
(`--benchmark-max-time=5`), pyperf in five (`-p 5 -w 1 -n 9`, values of 0.1 s).

Called different: by pytest-benchmark, what `--benchmark-compare-fail=mean:2%` does, the mean grown by over
2 %; the same for `min:2%`; by pyperf, whatever `compare_to` does not list as not significant. Another process
makes the machine busy (`load.py`). Each comparison is a line of <out>/<tool>.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import ROOT
from tests.benchmarks.trust.load import busy

HERE = Path(__file__).parent
RUNS = (20, 20, 20, 21)
PAIRS = ((0, 1), (1, 2), (0, 3), (1, 3), (2, 3))

Line = dict[str, Any]


def call(*words: object, units: int = 0, may_fail: bool = False) -> str:
    """Run Python with these words; what it printed."""
    environment = {**os.environ, "UNITS": str(units), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def pytest_benchmark(folder: Path) -> Iterator[Line]:
    """Save each run, then hold them against one another by the rule of --benchmark-compare-fail."""
    bench = HERE / "peer_pytest_benchmark.py"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        f"--benchmark-storage=file://{folder}",
        "--benchmark-max-time=5",
    ]
    saved = []
    for at, units in enumerate(RUNS):
        call("-m", "pytest", bench, *options, f"--benchmark-save=run{at}", units=units)
        (path,) = folder.glob(f"*/*_run{at}.json")
        saved.append({one["params"]["op"]: one["stats"] for one in read_benchmarks(path)})
    for base, ours in PAIRS:
        for op, stats in saved[base].items():
            values = {key: [stats[key], saved[ours][op][key]] for key in ("mean", "min")}
            called = {key: bool(b > 1.02 * a) for key, (a, b) in values.items()}
            yield {
                "op": op,
                "runs": [base, ours],
                "units": [RUNS[base], RUNS[ours]],
                **values,
                "called": called,
            }


def read_benchmarks(path: Path) -> list[Line]:
    """Return the benchmarks of a saved run, their op by name."""
    found: list[Line] = json.loads(path.read_text())["benchmarks"]
    return [{**one, "params": {"op": one["param"]}} for one in found]


def pyperf(folder: Path) -> Iterator[Line]:
    """Save each run, then ask `pyperf compare_to`."""
    bench = HERE / "peer_pyperf.py"
    options = ["-p", 5, "-w", 1, "-n", 9, "--inherit-environ", "UNITS,PYTHONPATH,OMP_NUM_THREADS", "--quiet"]
    for at, units in enumerate(RUNS):
        call(bench, *options, "-o", folder / f"run{at}.json", units=units)
    means = [means_of(folder / f"run{at}.json") for at in range(len(RUNS))]
    for base, ours in PAIRS:
        said = call("-m", "pyperf", "compare_to", folder / f"run{base}.json", folder / f"run{ours}.json")
        hidden = [line for line in said.splitlines() if "not significant" in line]
        unsure = {name.strip() for line in hidden for name in line.split(":", 1)[1].split(",")}
        for op, mean in means[base].items():
            units = [RUNS[base], RUNS[ours]]
            line = {"op": op, "runs": [base, ours], "units": units, "mean": [mean, means[ours][op]]}
            yield {**line, "called": {"significant": op not in unsure}}


def means_of(path: Path) -> dict[str, float]:
    """Return the mean of each benchmark of a saved run, in seconds."""
    import pyperf

    return {one.get_name(): one.mean() for one in pyperf.BenchmarkSuite.load(str(path)).get_benchmarks()}


TOOLS: dict[str, Callable[[Path], Iterator[Line]]] = {"pytest_benchmark": pytest_benchmark, "pyperf": pyperf}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--out", type=Path, default=ROOT / "results/trust")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    with busy(), tempfile.TemporaryDirectory() as folder:
        lines = list(TOOLS[words.tool](Path(folder)))
    with (words.out / f"{words.tool}.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
