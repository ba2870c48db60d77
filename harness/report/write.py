"""Write a judged run as report.md, figures, report.html, and the data next to them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.claims.answers import AnsweredClaim
from harness.claims.model import Claim, Verdict
from harness.claims.paper import PaperClaims
from harness.report import markdown
from harness.report.exports import benchmark_json, effects_csv
from harness.report.markdown import arrange
from harness.report.report_data import ReportData
from harness.report.results import measurements_csv
from harness.report.verdicts import judged


def write_suite(folder: Path, data: ReportData) -> Path:
    """Write the report of one suite into `folder`, next to its records.jsonl; return the page's path.

    The same data give the same bytes, figures under the same version of matplotlib.
    """
    from harness.report import page

    layout = arrange(data)
    figures = layout.figures
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for path in (folder / "figures").glob("*.svg"):
        if path.name not in figures:  # drawn by an earlier report
            path.unlink()
    for name, figure in figures.items():
        _write(folder / "figures" / name, figure.file())
    _write(folder / "report.md", markdown.report(data, layout))
    _write(folder / "verdicts.json", verdicts_json(data.claims, data.verdicts))
    _write(folder / "measurements.csv", measurements_csv(data.records))
    _write_or_remove(folder / "effects.csv", effects_csv(data))
    _write_or_remove(folder / "benchmark.json", benchmark_json(data.suite, data.index, data.environment))
    _write(folder / "report.html", page.suite_page(data, layout))
    return folder / "report.html"


def write_index(
    folder: Path, asked: PaperClaims, rows: Sequence[AnsweredClaim], folders: Sequence[tuple[ReportData, str]]
) -> Path:
    """Write index.html, index.md, tables.*, answers.csv and figures/answers.svg; return the page's path.

    `folders`: results folders, given by name. Without `rows` there is the list of these alone.
    """
    from harness.report.exports import answers_csv
    from harness.report.index.answers_page import Answers, index_markdown, index_page
    from harness.report.index.forest import forest
    from harness.report.index.paper_tables import paper_tables, tables_markdown, tables_page
    from harness.report.index.suite_index import index_rows

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figure = forest(rows)
    answers = Answers(asked, rows, figure, index_rows(folders))
    _write(folder / "index.md", index_markdown(answers))
    _write(folder / "index.html", index_page(answers))
    tables = paper_tables(asked, rows) if rows else []
    _write_or_remove(folder / "tables.md", tables_markdown(tables) if tables else "")
    _write_or_remove(folder / "tables.html", tables_page(tables) if tables else "")
    _write_or_remove(folder / "answers.csv", answers_csv(rows) if rows else "")
    _write_or_remove(folder / "figures/answers.svg", figure.file() if figure else "")
    return folder / "index.html"


def verdicts_json(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> str:
    """Return every verdict with what its claim quotes, what the source says, and its sentence."""
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


def _write_or_remove(path: Path, text: str) -> None:
    """Write the file, or remove an earlier report's where there is nothing to write."""
    if text:
        _write(path, text)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
