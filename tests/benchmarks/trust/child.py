"""One fresh process of an experiment: takes the rounds of several comparisons, one after another.

Reads one line of JSON, {"comparisons": [{"kind", "size", "units": [...], "shared"}], "sampling", "seed"};
writes one line for each comparison: the times of each variant, seconds per call, round by round, and how
they went.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.instruments.timing.stopwatch import Stopwatch, stopwatch
from harness.records import Sampling
from harness.sweep.interleaved import Rounds
from tests.benchmarks.trust.ops import Op
from tests.benchmarks.trust.units import KINDS, repeated, work


def taker(watch: Stopwatch) -> Callable[[], float]:
    """Return a function that times one window: seconds per call."""
    return lambda: next(one.value for one in watch.window() if one.metric == "time")


def compare(one: Mapping[str, Any], sampling: Sampling, seed: int) -> dict[str, Any]:
    """Run the rounds of one comparison; its first variant is the base."""
    begin_s = time.monotonic()
    op = Op(one["kind"], one["size"])
    unit = KINDS[op.kind](op.size)
    pieces = [repeated(unit, units) if one["shared"] else work(op, units) for units in one["units"]]
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


def main() -> None:
    torch.set_num_threads(1)
    told = json.loads(sys.stdin.readline())
    torch.manual_seed(told["seed"])
    for at, one in enumerate(told["comparisons"]):
        print(json.dumps(compare(one, Sampling(**told["sampling"]), told["seed"] + at)), flush=True)


if __name__ == "__main__":
    main()
