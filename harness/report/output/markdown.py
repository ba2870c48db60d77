"""Set tables, figures and verdicts as report.md, which GitHub shows: what is long is folded."""

from __future__ import annotations

from collections.abc import Mapping

from harness.report.answer.answer import what_pays
from harness.report.answer.summary import PAYS, cells_line, claims_line, summary
from harness.report.language.spec import Spec
from harness.report.output.layout import Layout, Part
from harness.report.output.run_line import run_line, wrong_results
from harness.report.report_data import ReportData
from harness.report.tables.tables import Table, TableCell
from harness.report.tables.tidy import TidyTable, split
from harness.report.tables.verdict_sentences import difference_text
from harness.report.tables.verdicts import (
    MARKS,
    ClaimWithVerdicts,
    accepted,
    judged,
    orders,
    outcomes_line,
    quoted,
)

FEW_NOTES = 2
"""More footnotes than these are folded."""

NO_BREAK = "\u00a0"

CAVEATS = "Conditions and caveats"
HOW_TO_READ = (
    "`holds`: within the accepted band. `falls short`, `exceeds`: below or above it. "
    "`undecided`: the samples lie on both sides. `context`: under other conditions than the claim's, which "
    "are listed: no verdict. `unavailable`: no value."
)


def report(data: ReportData, layout: Layout) -> str:
    """Return the suite's report, its figures as files under figures/."""
    parts = [f"# {data.spec.title}", run_line(data.records, data.environment), *answers(data)]
    wrong = wrong_results(data.records, data.spec.name)
    parts += ["**Wrong results**\n\n" + "\n".join(f"- {escape(one)}" for one in wrong)] if wrong else []
    parts += [part_text(layout.top, 2)] if layout.top else []
    parts += [f"Origins: {data.legend}."]
    parts += [part_text(part, 2) for part in layout.shown]
    if layout.more:
        parts += ["## More tables and figures", *(folded(part) for part in layout.more)]
    if layout.empty:
        parts.append(f"Without a value in this run: {'; '.join(layout.empty)}.")
    if layout.claims:
        texts = [layout.claims.block.text, HOW_TO_READ]
        texts += [claim_text(one, data.spec) for one in judged(data.claims, data.verdicts)]
        line = outcomes_line(data.claims, data.verdicts)
        parts += [f"## {layout.claims.block.title}", details(line, "\n\n".join(filter(None, texts)))]
    parts += ["## About this run", counted(data)]
    parts += [folded(layout.failures)] if layout.failures else []
    caveats = "\n".join(f"- {escape(one)}" for one in data.spec.caveats)
    conditions = f"{data.spec.question}\n\n{caveats}".strip()
    parts += [details(CAVEATS, conditions)] if conditions else []
    parts.append(details("The machine, its libraries and the commit", environment_lines(data)))
    parts.append("Raw records: [records.jsonl](records.jsonl). Verdicts: [verdicts.json](verdicts.json).")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def details(summary: str, text: str) -> str:
    """Return a text that GitHub folds below its summary."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n\n{text.strip()}\n\n</details>"


def folded(part: Part) -> str:
    """Return a part folded below its title."""
    return details(part.block.title, part_text(part, 0))


def part_text(part: Part, level: int) -> str:
    """Return a part with its paragraph, below a heading of this level; 0 for none."""
    head = [f"{'#' * level} {part.block.title}"] if level else []
    if part.table is not None:
        return "\n\n".join([*head, table_text(part.table)])
    assert part.figure is not None
    image = f"![{escape(part.figure.alt)}](figures/{part.block.id}.svg)"
    return "\n\n".join(one for one in (*head, part.figure.text, image) if one)


def answers(data: ReportData) -> list[str]:
    """Return the answer to the suite's question, then whether claims hold and how far to trust it."""
    return [*what_pays(data), *(card.answer for card in summary(data) if card.question != PAYS)]


def counted(data: ReportData) -> str:
    """Return how many cells and interpretations have a value, what the rest needs, and what was left out."""
    claims = f" {claims_line(data.verdicts, data.records)}" if data.verdicts else ""
    left_out = f" Not run: {'; '.join(data.left_out)}." if data.left_out else ""
    apart = "".join(f" {sentence}." for sentence in data.apart)
    return f"{cells_line(data.records)}{claims}{left_out}{apart}"


def table_text(made: TidyTable) -> str:
    """Return a table with its paragraph and its footnotes; what is wider than seven columns is folded."""
    table = made.table
    first, *more = split(made) if table.rows else [table]
    parts = [table.text, grid(first) if table.rows else ""]
    parts += [details("More columns", "\n\n".join(map(grid, more)))] if more else []
    parts.append(made.left_out)
    notes = "\n".join(f"- [{i}] {escape(note)}" for i, note in enumerate(table.notes, 1))
    parts.append(details(f"{len(table.notes)} notes", notes) if len(table.notes) > FEW_NOTES else notes)
    return "\n\n".join(part for part in parts if part)


def grid(table: Table) -> str:
    """Return the rows of a table; a value and its interval stay on one line."""
    words = [bool(cell.look == "word") for cell in table.rows[0]]
    lines = [
        "| " + " | ".join(escape(head) for head in table.header) + " |",
        "|" + "|".join("---" if word else "---:" for word in words) + "|",
    ]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join(lines)


def _cell(cell: TableCell) -> str:
    text = escape(cell.text + cell.note)
    return text if cell.look == "word" else text.replace(" ", NO_BREAK)


def claim_text(one: ClaimWithVerdicts, spec: Spec) -> str:
    """Return a claim in full: its words, what its source supports, each verdict in a sentence."""
    claim = one.claim
    lines = [
        f"### {claim.quoted_by}: {claim.quoted}",
        f"Quoted: {quoted(claim)}. Accepted: {accepted(claim)}.",
        *orders(claim, spec),
        f"What its source says: {claim.source_says}"
        + (f" — {claim.source} ({MARKS[claim.provenance]})" if claim.source else ""),
    ]
    if claim.misquoted:
        lines.append(f"Misquoted: {claim.misquoted}")
    verdicts = []
    for verdict in one.verdicts:
        different = "; ".join(map(difference_text, verdict.differs))
        differs = f" *Differs: {different}.*" if different else ""
        record = f" Record `{verdict.cell}`." if verdict.cell else ""
        verdicts.append(f"- **{verdict.shown}** — {one.sentence(verdict)}{differs}{record}")
    lines.append("\n".join(verdicts))
    lines.append("\n".join(f"- Caveat: {caveat}" for caveat in claim.caveats))
    return "\n\n".join(line for line in lines if line)


def environment_lines(data: ReportData) -> str:
    """Return the environment, line by line."""
    return "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in hosts(data.environment))


def hosts(environment: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return what is known of the hosts as (name, text) lines; of several, each line names its host."""
    known = flat(next(iter(environment.values())) if len(environment) == 1 else dict(environment))
    return [(name, text) for name, text in known if text]


def flat(data: object, name: str = "") -> list[tuple[str, str]]:
    """Return nested mappings as (dotted name, text) lines, in their order."""
    if isinstance(data, dict):
        return [
            line for key, value in data.items() for line in flat(value, f"{name}.{key}" if name else str(key))
        ]
    if isinstance(data, list | tuple):
        return [(name, ", ".join(str(value) for value in data))]
    return [(name, str(data))]


def escape(text: str) -> str:
    """Return `text` so that Markdown shows it as it is, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
