"""Record what Holistic Trace Analysis (HTA) makes of traces, to compare with `trace_agreement.py`'s record.

python tests/benchmarks/trace_hta.py --record=FILE [--source=WHERE] TRACE...

Runs in an environment with HolisticTraceAnalysis, which need not have this project; under pandas 3, release
0.5.0 ends with a TypeError for some traces. FILE gets a line of JSON for each trace, with WHERE the traces
after it come from: microseconds of HTA's temporal breakdown and the percentage of communication that it
finds hidden, or the error that it ends with. A trace is given to HTA by itself, as rank 0, with all of its
steps and no rounding.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"


def analysed(path: Path) -> dict[str, Any]:
    """Return HTA's values, or its error."""
    from hta.trace_analysis import TraceAnalysis

    try:
        analysis = TraceAnalysis({0: str(path)}, str(path.parent), include_last_profiler_step=True)
        times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    except Exception as error:  # of any kind: it is what is recorded
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {
        "computing_us": float(times["compute_time(us)"]),
        "exposed_and_copies_us": float(times["non_compute_time(us)"]),
        "idle_us": float(times["idle_time(us)"]),
        "hidden_percent": hidden_percent(analysis),
    }


def hidden_percent(analysis: Any) -> float | None:
    """Return how much of communication HTA finds hidden; None where it finds none."""
    try:
        value = float(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    except Exception:
        return None
    return None if math.isnan(value) else value


def main(words: list[str]) -> None:
    """Write a line for each trace."""
    source, lines = "", []
    record = Path(next(word for word in words if word.startswith("--record=")).partition("=")[2])
    for word in words:
        key, _, value = word.partition("=")
        if key == "--source":
            source = value
        elif key != "--record":
            path = Path(word).resolve()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            named = {"source": source, "file": path.name, "sha256": digest}
            lines.append(json.dumps({**named, "hta": version("HolisticTraceAnalysis"), **analysed(path)}))
    record.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
