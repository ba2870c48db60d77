"""Tables, pictures, verdicts and records -> one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.records import Record
from harness.report.findings import Findings, table
from harness.report.glance import glance
from harness.report.markdown import EVERY, HOW_TO_READ, flat
from harness.report.svg import COLOURS, Picture
from harness.report.verdict_sentences import difference_text
from harness.report.verdicts import LOOKS, MARKS, judged, ours, outcome_text, quoted, tally
from harness.units import LEGEND, ORIGIN_MARKS, human

TEMPLATES = Path(__file__).resolve().parent
LIGHT = "; ".join(f"--{role}: {colour}" for role, colour in COLOURS.items())


def suite_page(found: Findings, pictures: Mapping[str, Picture]) -> str:
    """The page of one suite."""
    frame = found.frame
    parts = [
        {
            "block": block,
            "table": table(block, found, frame),
            "picture": pictures.get(f"{block.id}.svg"),
            "claims": judged(found.claims, found.verdicts) if block.kind == "verdicts" else [],
        }
        for block in found.blocks(frame)
    ]
    return _render(
        "page.html.j2",
        found=found,
        cards=glance(found, frame),
        parts=parts,
        records=[_record_lines(found, record) for record in frame.records],
        environment=flat(found.environment),
    )


def every_page(suites: Sequence[tuple[Findings, str]]) -> str:
    """The page of all suites' verdicts, each with the way to its own page."""
    found = [
        {
            "found": one,
            "way": way,
            "cards": glance(one, one.frame),
            "claims": judged(one.claims, one.verdicts),
            "tally": tally(one.verdicts),
        }
        for one, way in suites
    ]
    return _render("every.html.j2", suites=found, title=EVERY)


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["difference_text"] = difference_text
    tools = {
        "colours": LIGHT,
        "legend": LEGEND,
        "how_to_read": HOW_TO_READ.replace("`", ""),
        "looks": LOOKS,
        "marks": MARKS,
        "ours": ours,
        "outcome_text": outcome_text,
        "quoted": quoted,
    }
    return environment.get_template(template).render(**tools, **values)


def _record_lines(found: Findings, record: Record) -> dict[str, str]:
    """A record for the list at the page's end: its head, and all it holds as lines of text."""
    cell = record.cell
    lines = [f"cell {cell.id}  repeat {cell.repeat}  seed {cell.seed}"]
    lines += [
        f"{one.metric}  {one.method or '-'}  {_samples(one.samples, one.unit)} {ORIGIN_MARKS[one.origin]}"
        for one in record.measurements
    ]
    lines += [f"note: {' '.join(remark.split())}" for remark in record.notes]
    lines += [f"{name}: {value}" for name, value in sorted(record.conditions.items())]
    if record.reason:
        lines.append(f"reason: {record.reason}")
    return {
        "id": cell.id,
        "status": record.status.replace("_", " "),
        "look": "good" if record.status == "ok" else "bad",
        "workload": found.spec.name("workload", cell.workload),
        "optimization": found.spec.name("optimization", cell.optimization),
        "repeat": f" · repeat {cell.repeat}" if cell.repeat else "",
        "lines": "\n".join(lines),
    }


def _samples(samples: Sequence[float], unit: str) -> str:
    """Each value exactly once, as recorded, and for bytes and seconds as people read it."""
    values = list(dict.fromkeys(samples))
    text = ", ".join(repr(value) for value in values[:8]) + (", …" if len(values) > 8 else "")
    count = f" × {len(samples)}" if len(samples) > 1 else ""
    read = f" = {human(values[0], unit)}" if len(values) == 1 and unit != "1" else ""
    return f"{text} {unit}{count}{read}"
