"""The last arrow: a judged run -> report.md, figures, report.html, and the data beside them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.claim_model import Claim, Verdict
from harness.report import markdown
from harness.report.benchmark_json import benchmark_json
from harness.report.findings import Findings
from harness.report.svg import Picture
from harness.report.verdicts import judged


def write_suite(folder: Path, found: Findings) -> Path:
    """Write the report of one suite into `folder`, beside its records.jsonl; the page's path.

    The same findings give the same bytes.
    """
    from harness.report import page
    from harness.report.tidy import tidy

    pictures: dict[str, Picture] = {}
    text = markdown.report(found, pictures)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for path in (folder / "figures").glob("*.svg"):
        if path.name not in pictures:  # drawn by an earlier report
            path.unlink()
    for name, picture in pictures.items():
        _write(folder / "figures" / name, picture.file())
    _write(folder / "report.md", text)
    _write(folder / "verdicts.json", verdicts_json(found.claims, found.verdicts))
    _write(folder / "measurements.csv", tidy(found.records).to_csv(index=False, lineterminator="\n"))
    timed = benchmark_json(found.suite, found.frame, found.environment)
    if timed:
        _write(folder / "benchmark.json", timed)
    else:  # an earlier report's
        (folder / "benchmark.json").unlink(missing_ok=True)
    _write(folder / "report.html", page.suite_page(found, pictures))
    return folder / "report.html"


def write_every(folder: Path, suites: Sequence[tuple[Findings, Path]]) -> Path:
    """Write one page with every suite's verdicts into `folder`, with links to the suites' own; its path."""
    from harness.report import page

    folder.mkdir(parents=True, exist_ok=True)
    ways = [(found, Path(os.path.relpath(own.parent, folder)).as_posix()) for found, own in suites]
    _write(folder / "report.md", markdown.every_report(ways))
    _write(folder / "report.html", page.every_page(ways))
    return folder / "report.html"


def verdicts_json(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> str:
    """Every verdict with what its claim quotes, what the source says, and its sentence."""
    rows = []
    for one in judged(claims, verdicts):
        claim = one.claim
        quoted = {
            "quoted": claim.quoted,
            "quoted_by": claim.quoted_by,
            "quoted_value": claim.value,
            "quoted_upper": claim.upper,
            "relation": claim.relation,
            "accepted": [end if math.isfinite(end) else None for end in claim.accepted],
            "source_says": claim.source_says,
            "source": claim.source,
            "provenance": claim.provenance,
            "caveats": claim.caveats,
        }
        for verdict in one.verdicts:
            fields = asdict(verdict)
            fields["differs"] = [difference._asdict() for difference in verdict.differs]
            fields["steps"] = [step._asdict() for step in verdict.steps]
            rows.append(fields | quoted | {"sentence": one.sentence(verdict)})
    return json.dumps({"schema": 2, "verdicts": rows}, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
