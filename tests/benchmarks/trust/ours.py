"""Identical code against itself, and slowdowns put in by hand, timed by this harness on a busy machine.

    python -m tests.benchmarks.trust.ours five --minutes 20 [--out results/trust]
    python -m tests.benchmarks.trust.ours two --minutes 20

- `five`: variants of 20 units of work (the base, the base again, five more that are identical) and two of 21
  units: 5 % slower. Five processes, the default budget.
- `five_own`: the same, where each variant has tensors of its own. Where they lie in memory is drawn by the
  allocator in each process, and alone makes identical code differ by several percent for some ops.
- `two`: variants of 50 units (the base, the base again) and six of 51: 2 % slower. Twenty processes, which is
  four times the default budget.

As in a suite, variants share the rounds of one base and one `baseline_again`. Several ops are compared one
after another in the same five (or twenty) fresh processes; the next ones get fresh processes again. Another
process makes the machine busy (`load.py`). Each finished comparison is a line of
<out>/ours_<experiment>.jsonl; run again to add more. `python -m tests.benchmarks.trust.table` reads the
lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.config.code_fingerprint import ROOT
from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Sampling
from harness.sweep.environment import describe
from harness.sweep.interleaved import Rounds
from tests.benchmarks.trust.load import WORDS, busy
from tests.benchmarks.trust.work import KINDS, OPS, Op, repeated, work


class Experiment(NamedTuple):
    """Units of work of each variant, the base and the base again first; and how many fresh processes."""

    units: tuple[int, ...]
    processes: int
    ops_a_set: int = 3  # compared one after another in the same processes
    shared: bool = True  # the variants' tensors: the same, or each variant its own


EXPERIMENTS = {
    "five": Experiment((20, 20, 20, 20, 20, 20, 20, 21, 21), 5),
    "five_own": Experiment((20, 20, 20, 20, 20, 20, 20, 21, 21), 5, shared=False),
    "two": Experiment((50, 50, 51, 51, 51, 51, 51, 51), 20, ops_a_set=1),
}


def one_process(
    ops: Sequence[Op], experiment: Experiment, sampling: Sampling, seed: int
) -> list[dict[str, Any]]:
    of_all = {"units": experiment.units, "shared": experiment.shared}
    comparisons = [{"kind": op.kind, "size": op.size, **of_all} for op in ops]
    told = {"comparisons": comparisons, "sampling": sampling._asdict(), "seed": seed}
    command = [sys.executable, "-m", "tests.benchmarks.trust.ours"]
    done = subprocess.run(
        command, input=json.dumps(told) + "\n", stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def one_set(ops: Sequence[Op], experiment: Experiment, sampling: Sampling) -> list[dict[str, Any]]:
    """Return a line for each op: the times, (process, variant, round), and how each process went."""
    seeds = [random.randrange(1 << 30) for _ in range(experiment.processes)]
    found = [one_process(ops, experiment, sampling, seed) for seed in seeds]
    return [
        {
            "op": op.name,
            "units": experiment.units,
            "sampling": sampling._asdict(),
            **{key: [process[at][key] for process in found] for key in found[0][at]},
        }
        for at, op in enumerate(ops)
    ]


def run(name: str, out: Path, minutes: float, load: bool) -> None:
    end_s = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    environment = {**describe()._asdict(), "load": WORDS, "command": sys.argv[1:]}
    (out / f"environment_{name}.json").write_text(json.dumps(environment, default=str, indent=1) + "\n")
    with busy() if load else nullcontext(), (out / f"ours_{name}.jsonl").open("a") as file:
        while time.monotonic() < end_s:
            ops = random.sample(OPS, EXPERIMENTS[name].ops_a_set)
            load_average = os.getloadavg()[0]
            for line in one_set(ops, EXPERIMENTS[name], Sampling()):
                line["load_average"] = round(load_average, 1)
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()


def compare(one: Mapping[str, Any], sampling: Sampling, seed: int) -> dict[str, Any]:
    """Run the rounds of one comparison; its first variant is the base."""
    begin_s = time.monotonic()
    op = Op(one["kind"], one["size"])
    unit = KINDS[op.kind](op.size)
    pieces = [repeated(unit, units) if one["shared"] else work(op, units) for units in one["units"]]

    def taker(watch: Stopwatch) -> Callable[[], float]:
        return lambda: next(one.value for one in watch.window() if one.metric == "time")

    takers = [taker(stopwatch(piece, torch.device("cpu"))) for piece in pieces]
    times: list[list[float]] = [[] for _ in takers]
    rounds = Rounds(takers, sampling, time.monotonic, random.Random(seed))
    for sample in rounds:
        if not sample.warm_up:
            times[sample.taker].append(float(f"{sample.value:.5g}"))
    return {
        "times": times,
        "warm_ups": rounds.warm_ups,
        "settled": rounds.settled,
        "narrow": rounds.narrow,
        "took_s": round(time.monotonic() - begin_s, 2),
    }


def child() -> None:
    torch.set_num_threads(1)
    told = json.loads(sys.stdin.readline())
    torch.manual_seed(told["seed"])
    for at, one in enumerate(told["comparisons"]):
        print(json.dumps(compare(one, Sampling(**told["sampling"]), told["seed"] + at)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=ROOT / "results/trust")
    parser.add_argument("--no-load", action="store_true", help="another experiment's load is there already")
    words = parser.parse_args()
    run(words.experiment, words.out, words.minutes, not words.no_load)


if __name__ == "__main__":
    main() if sys.argv[1:] else child()
