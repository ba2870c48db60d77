"""What all the watching costs: the part of a round that would not be there without the harness.

    python -m tests.benchmarks.trust.watching [--out results/trust]

Eight variants of identical work go through `harness.sweep.interleaved.run_together` as in a
worker, for `--budget-s` each: their windows, the clock and what it asks the kernel, clocks and throttling
where the host shows them, the events that each turn and reading sends (as JSON, written to /dev/null),
whether rounds are steady and ratios narrow. The processor time of the thread over all rounds that count, less
the seconds that the windows report, is the cost, and is given as a share of the latter. Warming up,
calibrating and setting up are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.config.code_fingerprint import ROOT
from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Cell, Reading, Sampling, Status
from harness.statistics import is_narrow
from harness.sweep.executors import CellEvent, CellReading, event_to_json
from harness.sweep.interleaved import WorkerHooks, run_together
from tests.benchmarks.trust.work import OPS, Op, work

ARMS = 8


class Account:
    """Adds up what the windows of rounds that count report; knows the processor time around these rounds."""

    def __init__(self, watches: dict[str, Stopwatch]) -> None:
        self._watches = watches
        self._out = os.open(os.devnull, os.O_WRONLY)
        self.windows = 0
        self.work_s = self.begin_s = self.end_s = 0.0

    def emit(self, event: CellEvent) -> None:
        os.write(self._out, event_to_json(event).encode() + b"\n")

    def emit_output(self, cell: Cell, output: Any) -> None:
        self.emit(CellReading(cell.id, output)) if isinstance(output, Reading) else None
        if not isinstance(output, Reading) or "/" in output.metric:
            self.begin_s = time.thread_time() if not self.windows else self.begin_s
        elif output.metric == "time":
            self.windows += 1
            self.work_s += output.value * self._watches[cell.id].calls
            self.end_s = time.thread_time()


def cost(op: Op, sampling: Sampling) -> dict[str, Any]:
    cells = [Cell(f"{i:016x}", "trust", op.name, f"variant{i}", "variant", 0, i, {}) for i in range(ARMS)]
    watches = {cell.id: stopwatch(work(op, 20), torch.device("cpu")) for cell in cells}
    account = Account(watches)
    suite = SimpleNamespace(
        prepare=lambda watch: (), timed=lambda watch: True, sample=Stopwatch.window, close=lambda watch: None
    )
    tools = WorkerHooks(suite, lambda cell: watches[cell.id], fault, account.emit_output, account.emit)
    run_together(cells, sampling, tools)
    total_s = account.end_s - account.begin_s
    return {
        "op": op.name,
        "windows": account.windows,
        "window_s": round(account.work_s / account.windows, 6),
        "total_s": round(total_s, 4),
        "work_s": round(account.work_s, 4),
        "share": round((total_s - account.work_s) / account.work_s, 5),
    }


def fault(error: BaseException) -> tuple[Status, str]:
    raise error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results/trust")
    parser.add_argument("--budget-s", type=float, default=1.0, help="of rounds, a variant")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print("| op | windows | a window, ms | watching, % of the time measured |\n|---|---|---|---|")
    with (words.out / "watching.jsonl").open("w") as file:
        is_narrow([1.0, 2.0], [1.0, 2.0], 0.01)  # which loads scipy
        for op in OPS:
            line = cost(op, Sampling(target_ci_half_width=1e-9, budget_s=words.budget_s))
            file.write(json.dumps(line) + "\n")
            window_ms, percent = 1e3 * line["window_s"], 100 * line["share"]
            print(f"| {line['op']} | {line['windows']} | {window_ms:.1f} | {percent:.2f} |")


if __name__ == "__main__":
    main()
