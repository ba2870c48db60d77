"""Set tables, figures and verdicts as report.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report.figure import Figure
from harness.report.report_data import ReportData
from harness.report.summary import cells_line, claims_line, summary
from harness.report.tables import Table
from harness.report.verdict_sentences import difference_text
from harness.report.verdicts import MARKS, ClaimWithVerdicts, accepted, judged, outcome_text, quoted
from harness.units import LEGEND

EVERY = "Every claim that was tried"
CAVEATS = "Conditions and caveats"
HOW_TO_READ = (
    "`holds`: within the accepted band. `falls short`, `exceeds`: below or above it. "
    "`undecided`: the samples lie on both sides. `unavailable`: no value, never a pass. "
    "`as stated`: under the claim's own conditions; `elsewhere`: under others, which are listed."
)


def report(data: ReportData, figures: dict[str, Figure]) -> str:
    """Return the suite's report; `figures` gets each figure by its file name under figures/."""
    parts = [f"# {data.spec.title}", answers(data), f"Origins: {data.legend}."]
    for block in data.blocks:
        made = data.table(block)
        if made is not None:
            parts.append(table_text(made))
            if block.kind == "verdicts" and made.rows:
                parts.append(HOW_TO_READ)
                parts += [claim_text(one) for one in judged(data.claims, data.verdicts)]
            continue
        drawn = data.figure(block)
        parts += [f"## {block.title}", block.text if drawn is None else drawn.text]
        if drawn is None:
            parts.append("Nothing was recorded for this figure.")
        else:
            figures[f"{block.id}.svg"] = drawn
            parts.append(f"![{escape(drawn.alt)}](figures/{block.id}.svg)")
    parts += [f"## {CAVEATS}", data.spec.question, counted(data)]
    parts += ["\n".join(f"- {escape(one)}" for one in data.spec.caveats), environment_lines(data)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def every_report(suites: Sequence[tuple[ReportData, str]]) -> str:
    """Return all suites' verdicts as one page, each with the path to its own report."""
    parts = [f"# {EVERY}", f"Origins: {LEGEND}.", HOW_TO_READ]
    for data, path in suites:
        parts += [f"## [{data.spec.title}]({path}/report.md)", data.spec.question, counted(data)]
        block = next((b for b in data.spec.blocks if b.kind == "verdicts"), None)
        made = data.table(block) if block else None
        if made is not None:
            parts.append(table_text(made._replace(title="", text="")))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def answers(data: ReportData) -> str:
    """Return the answers at the top, a line each."""
    return "\n".join(f"- **{card.question}** {escape(card.answer)}" for card in summary(data))


def counted(data: ReportData) -> str:
    """Return how many cells and interpretations have a value, what the rest needs, and what was left out."""
    claims = f" {claims_line(data.verdicts, data.records)}" if data.verdicts else ""
    left_out = f" Not run: {'; '.join(data.left_out)}." if data.left_out else ""
    return f"{cells_line(data.records)}{claims}{left_out}"


def table_text(table: Table) -> str:
    """Return a table with its heading, its paragraph and its footnotes."""
    parts = [f"## {table.title}"] if table.title else []
    parts += [table.text] if table.text else []
    if table.rows:
        words = [bool(cell.look == "word") for cell in table.rows[0]]
        lines = [
            "| " + " | ".join(escape(head) for head in table.header) + " |",
            "|" + "|".join("---" if word else "---:" for word in words) + "|",
        ]
        lines += [
            "| " + " | ".join(escape(cell.text + cell.note) for cell in row) + " |" for row in table.rows
        ]
        parts.append("\n".join(lines))
    if table.notes:
        parts.append("\n".join(f"- [{i}] {escape(note)}" for i, note in enumerate(table.notes, 1)))
    return "\n\n".join(parts)


def claim_text(one: ClaimWithVerdicts) -> str:
    """Return a claim in full: its words, what its source supports, each verdict in a sentence."""
    claim = one.claim
    lines = [
        f"### {claim.quoted_by}: {claim.quoted}",
        f"Quoted: {quoted(claim)}. Accepted: {accepted(claim)}.",
        f"What its source says: {claim.source_says} — {claim.source} ({MARKS[claim.provenance]})",
    ]
    if claim.misquoted:
        lines.append(f"Misquoted: {claim.misquoted}")
    verdicts = []
    for verdict in one.verdicts:
        different = "; ".join(map(difference_text, verdict.differs))
        differs = f" *Differs: {different}.*" if different else ""
        record = f" Record `{verdict.cell}`." if verdict.cell else ""
        verdicts.append(f"- **{outcome_text(verdict)}** — {one.sentence(verdict)}{differs}{record}")
    lines.append("\n".join(verdicts))
    lines.append("\n".join(f"- Caveat: {caveat}" for caveat in claim.caveats))
    return "\n\n".join(line for line in lines if line)


def environment_lines(data: ReportData) -> str:
    """Return the environment, line by line, and where the raw records are."""
    lines = ["Raw records: [records.jsonl](records.jsonl). Verdicts: [verdicts.json](verdicts.json)."]
    lines += ["", *(f"- {escape(name)}: {escape(value)}" for name, value in hosts(data.environment))]
    return "\n".join(lines)


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
