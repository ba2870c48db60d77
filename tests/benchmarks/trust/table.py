"""The trust experiments' results from their kept samples, as Markdown; nothing is timed here.

    python -m tests.benchmarks.trust.table [FOLDER]      (default results/reference/trust)

What is called different follows `harness.statistics.effect`, held against the noise of the same comparison.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.code_fingerprint import ROOT
from harness.statistics import Ratio, effect, ratio

REFERENCE = ROOT / "results/reference/trust"


class Comparison(NamedTuple):
    """One variant held against the base: how much slower it was made, and what was found."""

    op: str
    base_s: float  # seconds per call, the shortest seen
    slowdown: float
    found: Ratio
    noise: Ratio

    @property
    def called(self) -> str:
        return effect(self.found, self.noise)


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    packed = folder / f"{name}.jsonl.gz"
    if packed.exists():
        return [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def comparisons(lines: Sequence[dict[str, Any]]) -> Iterator[Comparison]:
    for line in lines:
        units = line["units"]
        variants = [[process[at] for process in line["times"]] for at in range(len(units))]
        noise = ratio(variants[1], variants[0])
        for at in range(2, len(units)):
            found = ratio(variants[at], variants[0])
            yield Comparison(line["op"], min(map(min, variants[0])), units[at] / units[0] - 1, found, noise)


def ours(folder: Path) -> Iterator[str]:
    yield "| experiment | comparisons | pays | costs | no difference | undecided | interval covers truth |"
    yield "|---|---|---|---|---|---|---|"
    for name in ("five", "five_busier", "five_own", "two"):
        found = list(comparisons(lines_of(folder, f"ours_{name}")))
        for slowdown in sorted({one.slowdown for one in found}):
            some = [one for one in found if one.slowdown == slowdown]
            label = f"{name}: {100 * slowdown:.0f} % slower" if slowdown else f"{name}: identical"
            yield row(label, some)


def row(label: str, some: Sequence[Comparison]) -> str:
    counts = Counter(one.called for one in some)
    held = sum(one.found.low <= 1 + one.slowdown <= one.found.high for one in some)
    kinds = ("pays", "costs", "no difference", "undecided")
    cells = [f"{counts[kind]} ({percent(counts[kind], len(some))})" for kind in kinds]
    return f"| {label} | {len(some)} | {' | '.join(cells)} | {percent(held, len(some))} |"


def by_duration(folder: Path) -> Iterator[str]:
    """Return how slowdowns were called, by the length of the operation."""
    yield "| time per call | slowdown | comparisons | costs | interval half-width, median |"
    yield "|---|---|---|---|---|"
    found = [one for name in ("five", "two") for one in comparisons(lines_of(folder, f"ours_{name}"))]
    for slowdown in sorted({one.slowdown for one in found if one.slowdown}):
        for low_s, high_s in ((0, 3e-4), (3e-4, 2e-3), (2e-3, 2e-2), (2e-2, 1)):
            some = [one for one in found if one.slowdown == slowdown and low_s <= one.base_s < high_s]
            if some:
                widths = sorted(one.found.high / one.found.value - 1 for one in some)
                costs = sum(one.called == "costs" for one in some)
                yield (
                    f"| {1e3 * low_s:g}-{1e3 * high_s:g} ms | {100 * slowdown:.0f} % | {len(some)} "
                    f"| {percent(costs, len(some))} | {100 * widths[len(widths) // 2]:.1f} % |"
                )


def peers(folder: Path) -> Iterator[str]:
    yield "| tool | rule | work | comparisons | called slower | called faster | not called different |"
    yield "|---|---|---|---|---|---|---|"
    for tool in ("pytest_benchmark", "pyperf"):
        lines = lines_of(folder, tool)
        for rule in sorted({rule for line in lines for rule in line["called"]}):
            for slowdown in (0, 1):
                some = [line for line in lines if (line["units"][0] != line["units"][1]) == slowdown]
                if some:
                    yield peer_row(tool, rule, "5 % slower" if slowdown else "identical", some)


def peer_row(tool: str, rule: str, work: str, some: Sequence[dict[str, Any]]) -> str:
    """Return a row; pytest-benchmark fails at `slower`, and `faster` is its rule the other way round."""
    slower = faster = 0
    for line in some:
        base, new = line["min" if rule == "min" else "mean"]
        called = line["called"][rule]
        slower += called and new > base
        faster += called and new < base if rule == "significant" else base > 1.02 * new
    rest = len(some) - slower - faster
    shares = " | ".join(f"{count} ({percent(count, len(some))})" for count in (slower, faster, rest))
    words = {"mean": "mean:2%", "min": "min:2%", "significant": "significant"}[rule]
    return f"| {tool.replace('_', '-')} | {words} | {work} | {len(some)} | {shares} |"


def watching(folder: Path) -> Iterator[str]:
    lines = lines_of(folder, "watching")
    if lines:
        shares = sorted(line["share"] for line in lines)
        total = sum(line["total_s"] for line in lines) / sum(line["work_s"] for line in lines) - 1
        yield (
            f"Overhead: {100 * shares[0]:.2f}-{100 * shares[-1]:.2f} % of the measured time, "
            f"median {100 * shares[len(shares) // 2]:.2f} %, overall {100 * total:.2f} % ({len(lines)} ops)."
        )


def percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    for part in (ours, by_duration, peers, watching):
        print("\n".join(part(folder)) + "\n")


if __name__ == "__main__":
    main()
