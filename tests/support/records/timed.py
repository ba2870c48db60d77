"""A timed run made by hand, whose speed-ups, noise and bounds are known: of no machine."""

from __future__ import annotations

from pathlib import Path

from synthetic import made

from harness.claims.judge import judge
from harness.claims.model import Claim
from harness.records import Record
from harness.report.report_data import ReportData
from harness.report.spec import load_spec

DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to all variants of a round
PROCESSES = 4
LUCK = (1.003, 0.998, 1.001, 0.998)  # by how much a process favours one of two equal variants: the noise
BASE_S = {"small": 1e-3, "large": 8e-3, "copying": 2e-3, "multiplying": 4e-3, "step": 1e-1}
LENGTHS = {"small": 512, "large": 4096, "copying": 1, "multiplying": 1, "step": 512}
BYTES = {"small": 1e6, "large": 4e7, "copying": 4e7, "multiplying": 1e6, "step": 1e9}
FLOPS = {"small": 1e9, "large": 4e9, "copying": 1.0, "multiplying": 4e9, "step": 1e9}
SHARES = {"baseline": 1.0, "fast": 0.5, "slow": 1.25, "same": 1.0}
"""A variant's time over the baseline's, in every round."""


def timed_record(workload: str, variant: str, repeat: int, share: float, method: str = "warm") -> Record:
    """Return one process of one variant: each round's drift times its speed and the variant's share."""
    speed = BASE_S[workload] * (1 + 0.1 * repeat)
    samples = tuple(speed * drift * share for drift in DRIFT)
    figures = {
        ("bytes_moved", ""): ("B", "calculated", (BYTES[workload],)),
        ("flops", ""): ("1", "calculated", (FLOPS[workload],)),
        ("peak_memory", ""): ("B", "measured", (1e6 * LENGTHS[workload] * share,)),
        ("time/warm_up", method): ("s", "measured", (99.0, 98.0)),
        ("time", method): ("s", "measured", samples),
    }
    fields = {"seq_len": LENGTHS[workload], "part": "all"}
    conditions = {"device": "cpu", "precision": "bf16" if variant == "fast" else "fp32"}
    return made(workload, variant, figures, repeat=repeat, fields=fields, conditions=conditions)._replace(
        started_at=f"2031-01-0{repeat + 1}T00:00:00+00:00"
    )


def timed_records(workloads: tuple[str, ...] = tuple(BASE_S)) -> list[Record]:
    """Return every variant on every workload; `untimed` was only checked, `absent` cannot run."""
    records = []
    for workload in workloads:
        for repeat in range(PROCESSES):
            records += [timed_record(workload, variant, repeat, share) for variant, share in SHARES.items()]
            records.append(timed_record(workload, "baseline_again", repeat, LUCK[repeat]))
            untimed = timed_record(workload, "untimed", repeat, 1.0)
            kept = tuple(m for m in untimed.measurements if not m.metric.startswith("time"))
            records.append(untimed._replace(measurements=kept, notes=("time: never timed here",)))
            records.append(
                made(workload, "absent", status="unavailable", reason="needs a GPU", repeat=repeat)
            )
    return records


def timed_findings(
    folder: Path,
    blocks: str,
    records: list[Record] | None = None,
    claims: tuple[Claim, ...] = (),
    suite: str = "invented",
) -> ReportData:
    """Return the run with a report of these blocks; `suite`: whose own tables and figures they name."""
    spec = f"title: Invented\nquestion: what pays?\nblocks:\n{blocks}"
    (folder / "invented.yaml").write_text(spec)
    records = timed_records() if records is None else records
    kept = {"system": "Linux 6.1 x86_64", "cpu": "a CPU", "cores": 2, "python": "3.11.7", "commit": "abc"}
    verdicts = judge(claims, records)
    return ReportData(
        suite, load_spec("invented", folder=folder), records, verdicts, {"synthetic": kept}, claims
    )
