"""Time the steps of document_seconds.jsonl, on an idle host, and print them as its new content."""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime

import torch

from suites.dataloader_balance.document_seconds import LONGEST, MODEL, REPETITIONS, SHORTEST, timed_steps

host = {
    "processor": platform.machine(),
    "threads": torch.get_num_threads(),
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "torch": torch.__version__,
    "date": datetime.now(UTC).date().isoformat(),
}
lengths = [SHORTEST << power for power in range((LONGEST // SHORTEST).bit_length())]
sys.stdout.write(json.dumps({"model": dict(MODEL), "host": host}) + "\n")
for step in timed_steps(MODEL, LONGEST, lengths, REPETITIONS):
    sys.stdout.write(json.dumps(step._asdict() | {"seconds": round(step.seconds, 4)}) + "\n")
