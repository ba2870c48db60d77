"""Set tables, figures, verdicts and records as one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import Record
from harness.report.axes import LIGHT, PALETTE, dark_rules
from harness.report.markdown import CAVEATS, HOW_TO_READ, Layout, answers, counted, hosts
from harness.report.report_data import ReportData
from harness.report.summary import run_line, wrong_results
from harness.report.tables import ROWS
from harness.report.verdicts import (
    LOOKS,
    MARKS,
    accepted,
    difference_text,
    judged,
    orders,
    ours,
    outcomes_line,
    quoted,
)
from harness.units import LEGEND, ORIGIN_MARKS, human, kept_together

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).resolve().parent / "templates"
COLOURS = "; ".join(f"--{role}: {colour}" for role, colour in LIGHT.items())
DARK = "; ".join(f"--{role}: {dark}" for role, (_, dark) in PALETTE.items())


def suite_page(data: ReportData, layout: Layout) -> str:
    """Return the page of one suite."""
    return render(
        "page.html.j2",
        data=data,
        layout=layout,
        run=run_line(data.records, data.environment),
        answers=[kept_together(one) for one in answers(data)],
        wrong=wrong_results(data.records, data.spec.name),
        claims=judged(data.claims, data.verdicts),
        claims_line=outcomes_line(data.claims, data.verdicts),
        counted=counted(data),
        records=[_record_lines(data, record) for record in data.index.records],
        environment=hosts(data.environment),
    )


def render(template: str, **values: Any) -> str:
    """Return a template of this folder, filled in."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    """Return the templates, each compiled once, with what all of them use."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["accepted"] = accepted
    environment.filters["difference_text"] = difference_text
    environment.globals |= {
        "colours": COLOURS,
        "dark": DARK,
        "figure_rules": dark_rules(),
        "caveats_title": CAVEATS,
        "legend": LEGEND,
        "how_to_read": HOW_TO_READ.replace("`", ""),
        "looks": LOOKS,
        "marks": MARKS,
        "orders": orders,
        "ours": ours,
        "quoted": quoted,
        "rows_shown": ROWS,
    }
    return environment


def _record_lines(data: ReportData, record: Record) -> dict[str, str]:
    """Return a record for the list at the page's end: its head, and everything in it as lines of text."""
    cell = record.cell
    lines = [f"cell {cell.id}  repeat {cell.repeat}  seed {cell.seed}"]
    for one in record.measurements:
        samples = _samples(one.samples, one.unit)
        lines.append(f"{one.metric}  {one.method or '-'}  {samples} {ORIGIN_MARKS[one.origin]}")
    lines += [f"note: {' '.join(remark.split())}" for remark in record.notes]
    lines += [f"{name}: {value}" for name, value in sorted(record.conditions.items())]
    lines += [f"reason: {record.reason}"] if record.reason else []
    return {
        "id": cell.id,
        "status": record.status.replace("_", " "),
        "look": "good" if record.status == "ok" else "bad",
        "workload": data.spec.name("workload", cell.workload),
        "optimization": data.spec.name("optimization", cell.optimization),
        "repeat": f" · repeat {cell.repeat}" if cell.repeat else "",
        "lines": "\n".join(lines),
    }


def _samples(samples: Sequence[float], unit: str) -> str:
    """Return each value once as recorded, and for bytes and seconds as people read it."""
    values = list(dict.fromkeys(samples))
    text = ", ".join(repr(value) for value in values[:8]) + (", …" if len(values) > 8 else "")
    count = f" × {len(samples)}" if len(samples) > 1 else ""
    read = f" = {human(values[0], unit)}" if len(values) == 1 and unit != "1" else ""
    return f"{text} {unit}{count}{read}"
