"""Compare the breakdown of traces with an independent count of their events.

python tests/benchmarks/trace_agreement.py [--communication=REGEX] [--record=FILE] [--source=WHERE] TRACE...

The count knows communication only by REGEX (by default NCCL's names), and takes each trace as one step.
Each row has milliseconds of the breakdown and, in parentheses, its difference from the count in percent of
the span. FILE gets a line of JSON for each trace, with WHERE the traces after it come from. What has no
device is left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "traces")]

from counted_trace import counted  # noqa: E402

from harness.instruments.traces import TraceError  # noqa: E402
from harness.instruments.traces.activity import Activity  # noqa: E402
from harness.instruments.traces.kineto import read_trace  # noqa: E402
from harness.instruments.traces.segments import State, segments  # noqa: E402
from harness.instruments.traces.trace import intersection  # noqa: E402

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
    """Print a row for each trace, and the largest difference; write the record."""
    given = {"--communication": "nccl", "--source": "", "--record": ""}
    worst = 0.0
    print(f"{'trace':40}  {'span ms':>10}" + "".join(f"  {kind:>24}" for kind in KINDS))
    for word in words:
        key, _, value = word.partition("=")
        if key in given:
            given[key] = value
        else:
            try:
                ours, count = broken_down(Path(word)), counted(Path(word), given["--communication"])
            except TraceError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            if not any(count[kind] for kind in KINDS[:-1]):
                print(f"left out: {word}: has no device", file=sys.stderr)
                continue
            worst = max(worst, shown(Path(word), ours, count))
            if given["--record"]:
                kept(Path(given["--record"]), given["--source"], Path(word), ours, count)
    print(f"largest difference: {worst:.4f} % of a span")


def shown(file: Path, ours: dict[str, int], count: dict[str, int]) -> float:
    """Print a trace's row; return its largest difference in percent of the span."""
    differences = {kind: 100 * (ours[kind] - count[kind]) / count["span"] for kind in KINDS}
    cells = [f"{ours[kind] / 1e6:.3f} ({differences[kind]:+.3f})" for kind in KINDS]
    print(f"{file.name[-40:]:40}  {count['span'] / 1e6:10.3f}", *(f" {cell:>24}" for cell in cells))
    return max(map(abs, differences.values()))


def kept(record: Path, source: str, file: Path, ours: dict[str, int], count: dict[str, int]) -> None:
    """Append what was found to the record: nanoseconds, and the file's source and SHA-256."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    line = {"source": source, "file": file.name, "sha256": digest, "breakdown_ns": ours, "count_ns": count}
    with record.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
