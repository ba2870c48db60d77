"""Write traces in the formats that Kineto has had, from a list of events with times in nanoseconds."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

MAIN, AUTOGRAD, GLOO = 100, 101, 102  # threads
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass
class Writer:
    """The events of one rank; times are whole nanoseconds."""

    rank: int = 0
    world_size: int = 1
    format: str = "2.4"  # 2.1: microseconds since the epoch; later a base time; rocm: AMD's names
    host: str = ""
    shift_ns: int = 0  # of this rank's clock
    groups: list = field(default_factory=list)
    events: list = field(default_factory=list)
    correlation: int = 0

    def host_event(self, name, start, end, *, category="cpu_op", thread=MAIN, **args):
        self._add(category, name, 7, thread, start, end, args)

    def annotation(self, name, start, end, *, thread=MAIN):
        self.host_event(name, start, end, category="user_annotation", thread=thread)

    def step(self, number, start, end):
        self.annotation(f"ProfilerStep#{number}", start, end)

    def kernel(self, name, start, end, *, called=None, stream=7, category="kernel", thread=MAIN, **args):
        """Write a kernel, and its launch where `called` is when it was called."""
        self.correlation += 1
        linked = {} if called is None else {"correlation": self.correlation}
        if called is not None:
            vendor = "hip" if self.format == "rocm" else "cuda"
            launch = vendor + ("LaunchKernel" if category == "kernel" else "MemcpyAsync")
            self._add("cuda_runtime", launch, 7, thread, called, called + 2, dict(linked))
        self._add(category, name, 0, stream, start, end, {"device": 0, "stream": stream, **linked, **args})

    def gloo(self, operation, start, end, *, thread=GLOO):
        self.annotation(f"gloo:{operation}", start, end, thread=thread)

    def _add(self, category, name, process, thread, start, end, args):
        event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "args": args}
        self.events.append((event, start, end))

    def document(self):
        base = EPOCH_NS if self.format == "2.1" else 0
        written = [
            {**event, "ts": self._micros(start + self.shift_ns + base), "dur": self._micros(end - start)}
            for event, start, end in self.events
        ]
        at = {"pid": 7, "tid": MAIN, "ts": self._micros(base)}
        others = [
            {"ph": "M", "name": "thread_name", **at, "args": {"name": "thread 100 (python)"}},
            {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", **at},
            {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "s": "g", **at},
        ]
        header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a device"}]}
        header["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
        if base == 0:
            header |= {"baseTimeNanoseconds": EPOCH_NS, "displayTimeUnit": "ms"}
        if self.groups:
            header["distributedInfo"]["pg_config"] = self.groups
        if self.host:
            header["host_name"] = self.host
        return {**header, "traceEvents": [*others, *written]}

    def _micros(self, time_ns):
        """Return a mark that `text` turns into a number of microseconds."""
        return f"@{Decimal(time_ns) / 1000:.3f}@"

    def text(self):
        return re.sub(r'"@(-?[\d.]+)@"', r"\1", json.dumps(self.document()))

    def write(self, folder: Path, *, gz=False, name="") -> Path:
        path = folder / (name or f"rank{self.rank}.json" + (".gz" if gz else ""))
        content = self.text().encode()
        path.write_bytes(gzip.compress(content) if gz else content)
        return path
