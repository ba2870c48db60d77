"""How long a trace of many events takes to read and to break down, and the peak of resident memory.

    python tests/benchmarks/trace_size.py [EVENTS]

Writes a trace of one GPU with all of Kineto's arguments to a temporary folder. Prints one line of JSON, with
the environment, for docs/commands/traces.md.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_traces
from harness.sweep.environment import describe

WRITER = Path(__file__).parents[1] / "support" / "traces" / "kineto_traces.py"

if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        # In a process of its own, so that its memory does not count.
        written = subprocess.run([sys.executable, WRITER, file, str(wanted)], check=True, capture_output=True)
        begin_s = time.perf_counter()
        traces = read_traces(file)
        read_s = time.perf_counter() - begin_s
        breakdown(traces)
        total_s = time.perf_counter() - begin_s
        said = {
            "events": int(written.stdout.split()[0]),
            "file_B": file.stat().st_size,
            "origin": "measured",
            "read_s": read_s,
            "breakdown_s": total_s - read_s,
            "peak_resident_B": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "load_average_1_min": os.getloadavg()[0],
        }
    print(json.dumps({**said, "environment": describe().to_dict()}))
