"""How often the 95 % interval of `harness.statistics.ratio` holds the true ratio, where that is known.

    python tests/benchmarks/coverage.py [--repetitions 2000] [--seed 0]

Prints two Markdown tables: the interval in use on every kind of sample, and next to it the percentile
interval of a hierarchical bootstrap. Half widths are means, in percent.

A sample is log times of two variants, (variant, repetition, process, round). Their spread in a round is 2 %,
and the true ratio is 1 (a ratio only shifts them). Kinds:

- noise: normal;
- drift: both variants ride on one random walk of 2 % per call, on a slope of its own in each process
  (standard deviation 20 % over the full process), and which variant goes first is drawn in each round;
- outliers: 1-5 % of a variant's rounds (drawn in each repetition) take 2-10 times as long;
- modes: each variant jumps between two levels 10 % apart, with probability 0.2 from round to round;
- all: the three together.

Processes differ by a normal amount: its standard deviation is `between` times what the noise leaves in the
mean of a process's rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]
Interval = Callable[[Array, np.random.Generator], tuple[Array, Array]]

NOISE = 0.02
KINDS = ("noise", "drift", "outliers", "modes", "all")
PROCESSES = (3, 5, 8, 20)
ROUNDS = (8, 15, 40)
BETWEEN = (0.0, 1.0, 4.0)
RESAMPLES = 1000


def log_ratios(
    kind: str, repetitions: int, processes: int, rounds: int, between: float, rng: np.random.Generator
) -> Array:
    """Log ratios of the variants' times in a round, (repetition, process, round); their true value is 0."""
    times = rng.normal(0, NOISE, (2, repetitions, processes, rounds))
    if kind in ("drift", "all"):
        times += _drift(repetitions, processes, rounds, rng)
    if kind in ("outliers", "all"):
        hit = rng.random(times.shape) < rng.uniform(0.01, 0.05, (repetitions, 1, 1))
        times += hit * np.log(rng.uniform(2, 10, times.shape))
    if kind in ("modes", "all"):
        jumps = rng.random(times.shape) < 0.2
        jumps[..., 0] = rng.random(times.shape[:-1]) < 0.5
        times += (np.cumsum(jumps, axis=-1) % 2) * math.log(1.1)
    spread = between * NOISE * math.sqrt(2 / rounds)
    return times[0] - times[1] + rng.normal(0, 1, (repetitions, processes, 1)) * spread


def _drift(repetitions: int, processes: int, rounds: int, rng: np.random.Generator) -> Array:
    calls = 2 * rounds
    walk = rng.normal(0, 0.02, (repetitions, processes, calls)).cumsum(-1)
    walk += np.linspace(0, 1, calls) * rng.normal(0, 0.2, (repetitions, processes, 1))
    early, late = walk[..., ::2], walk[..., 1::2]
    first = rng.random(early.shape) < 0.5
    return np.stack([np.where(first, early, late), np.where(first, late, early)])


def interquartile_mean(logs: Array) -> Array:
    """Return the interquartile mean over the last axis, as `harness.statistics`; a test compares them."""
    cut = (logs.shape[-1] + 1) // 4
    return np.sort(logs, axis=-1)[..., cut : logs.shape[-1] - cut].mean(-1)


def in_use(logs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the interval of `harness.statistics.ratio` for many samples: logarithms of low and high."""
    locations = interquartile_mean(logs)
    processes = locations.shape[-1]
    half = stdtrit(processes - 1, 0.975) * locations.std(-1, ddof=1) / math.sqrt(processes)
    return locations.mean(-1) - half, locations.mean(-1) + half


def percentile(logs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the textbook hierarchical bootstrap: process, then round; 2.5 and 97.5 percentiles.

    A process's location under resampled rounds is drawn from a pool of 100 of them, which makes it bearable.
    """
    repetitions, processes, rounds = logs.shape
    drawn = rng.integers(0, rounds, (repetitions, processes, 100, rounds))
    pool = interquartile_mean(np.take_along_axis(logs[:, :, None, :], drawn, axis=-1))
    process = rng.integers(0, processes, (repetitions, RESAMPLES, processes))
    member = rng.integers(0, pool.shape[-1], process.shape)
    resampled = pool[np.arange(repetitions)[:, None, None], process, member]
    low, high = np.quantile(resampled.mean(-1), [0.025, 0.975], axis=-1)
    return low, high


def coverage(interval: Interval, logs: Array, rng: np.random.Generator) -> tuple[float, float]:
    low, high = interval(logs, rng)
    return 100 * float(((low <= 0) & (high >= 0)).mean()), 100 * float((high - low).mean() / 2)


def of_the_interval_in_use(repetitions: int, seed: int) -> list[str]:
    """Return the first table: every kind, number of processes, rounds and spread between processes."""
    rng = np.random.default_rng(seed)
    heads = " | ".join(f"covered, between {b:g}" for b in BETWEEN)
    lines = [f"| samples | processes | rounds | {heads} | half widths, % |"]
    lines.append("|---|---|---|" + "---|" * (len(BETWEEN) + 1))
    for kind, processes, rounds in product(KINDS, PROCESSES, ROUNDS):
        logs = (log_ratios(kind, repetitions, processes, rounds, between, rng) for between in BETWEEN)
        found = [coverage(in_use, one, rng) for one in logs]
        shares = " | ".join(f"{covered:.1f} %" for covered, _ in found)
        widths = " / ".join(f"{width:.2f}" for _, width in found)
        lines.append(f"| {kind} | {processes} | {rounds} | {shares} | {widths} |")
    return lines


def of_the_bootstrap(repetitions: int, seed: int) -> list[str]:
    """Return the second table: the interval in use next to the bootstrap's, in 15 rounds."""
    rng = np.random.default_rng(seed)
    intervals = (in_use, percentile)
    lines = [f"| samples | processes | between | {' | '.join(one.__name__ for one in intervals)} |"]
    lines.append("|---|---|---|" + "---|" * len(intervals))
    for kind, processes, between in product(("noise", "outliers", "all"), (3, 5, 8), (0.0, 4.0)):
        logs = log_ratios(kind, repetitions, processes, 15, between, rng)
        found = [coverage(one, logs, rng) for one in intervals]
        shares = " | ".join(f"{covered:.1f} % ±{width:.2f}" for covered, width in found)
        lines.append(f"| {kind} | {processes} | {between:g} | {shares} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    print(f"Seed {words.seed}, {words.repetitions} repetitions per row.\n")
    print(*of_the_interval_in_use(words.repetitions, words.seed), sep="\n")
    fewer = min(words.repetitions, 1000)
    print(f"\nNext to the bootstrap, {fewer} repetitions per row, {RESAMPLES} resamples each.\n")
    print(*of_the_bootstrap(fewer, words.seed), sep="\n")


if __name__ == "__main__":
    main()
