"""Compare the breakdown of traces with an independent count of their events.

python tests/benchmarks/trace_agreement.py TRACE... [--communication=REGEX]

The count knows communication only by REGEX (by default NCCL's names), and takes each trace as one step.
Each row has milliseconds of the breakdown and, in parentheses, its difference from the count in percent of
the span.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "traces")]

from counted_trace import counted  # noqa: E402

from harness.instruments.traces.activity import Activity  # noqa: E402
from harness.instruments.traces.intervals import intersection  # noqa: E402
from harness.instruments.traces.reading.kineto import read_trace  # noqa: E402
from harness.instruments.traces.segments import State, segments  # noqa: E402

KINDS = ("computing", "communication", "exposed", "copies", "idle")
ON_DEVICE = (State.COMPUTING, State.COMMUNICATION, State.COPYING)


def broken_down(path: Path) -> dict[str, int]:
    """Return nanoseconds of each kind of work in a trace that is taken as one step."""
    activity = Activity(read_trace(path), whole=True)
    cut = segments(activity)
    of = {state: int(cut.duration_ns[cut.state == state].sum()) for state in State}
    hidden = intersection(activity.pieces(activity.computing), activity.pieces(activity.communication))
    return {
        "computing": of[State.COMPUTING],
        "communication": of[State.COMMUNICATION] + hidden.total_ns,
        "exposed": of[State.COMMUNICATION],
        "copies": of[State.COPYING],
        "idle": sum(time for state, time in of.items() if state not in ON_DEVICE),
    }


def main(words: list[str]) -> None:
    """Print a row for each trace, and the largest difference."""
    patterns = [word.removeprefix("--communication=") for word in words if word.startswith("--")]
    worst = 0.0
    print(f"{'trace':40}  {'span ms':>10}" + "".join(f"  {kind:>24}" for kind in KINDS))
    for word in words:
        if word.startswith("--"):
            continue
        ours, count = broken_down(Path(word)), counted(Path(word), *(patterns or ["nccl"]))
        differences = {kind: 100 * (ours[kind] - count[kind]) / count["span"] for kind in KINDS}
        worst = max(worst, *map(abs, differences.values()))
        cells = [f"{ours[kind] / 1e6:.3f} ({differences[kind]:+.3f})" for kind in KINDS]
        print(
            f"{Path(word).name[-40:]:40}  {count['span'] / 1e6:10.3f}" + "".join(f"  {c:>24}" for c in cells)
        )
    print(f"largest difference: {worst:.4f} % of a span")


if __name__ == "__main__":
    main(sys.argv[1:])
