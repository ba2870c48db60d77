"""Tables, pictures and verdicts -> report.md."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.findings import Findings, picture, table
from harness.report.glance import glance
from harness.report.svg import Picture
from harness.report.tables import Table
from harness.report.verdict_sentences import difference_text
from harness.report.verdicts import MARKS, Judged, judged, outcome_text, tally
from harness.units import LEGEND

EVERY = "Every claim of the paper that was tried"
HOW_TO_READ = (
    "`holds`: within what counts as the same figure. `falls short`, `exceeds`: below or above it. "
    "`undecided`: the samples lie on both sides. `unavailable`: no figure, never a pass. "
    "`as stated`: under the claim's own conditions; `elsewhere`: under others, which are listed."
)


def report(found: Findings, pictures: dict[str, Picture]) -> str:
    """The suite's report; `pictures` gets each picture by its file name under figures/."""
    frame = found.frame
    parts = [
        f"# {found.spec.title}",
        found.spec.question,
        counted(found),
        answers(found),
        f"Origins: {LEGEND}.",
    ]
    for block in found.blocks(frame):
        made = table(block, found, frame)
        if made is not None:
            parts.append(table_text(made))
            if block.kind == "verdicts" and made.rows:
                parts.append(HOW_TO_READ)
                parts += [claim_text(one) for one in judged(found.claims, found.verdicts)]
            continue
        drawn = picture(block, found, frame)
        parts += [f"## {block.title}", block.text]
        if drawn is None:
            parts.append("Nothing was recorded for this figure.")
        else:
            pictures[f"{block.id}.svg"] = drawn
            parts.append(f"![{escape(drawn.alt)}](figures/{block.id}.svg)")
    parts += ["## Where this comes from", origin(found)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def every_report(suites: Sequence[tuple[Findings, str]]) -> str:
    """All suites' verdicts on one page, each with the way to its own report."""
    parts = [f"# {EVERY}", f"Origins: {LEGEND}.", HOW_TO_READ]
    for found, way in suites:
        parts += [f"## [{found.spec.title}]({way}/report.md)", found.spec.question, counted(found)]
        block = next((b for b in found.spec.blocks if b.kind == "verdicts"), None)
        made = table(block, found, found.frame) if block else None
        if made is not None:
            parts.append(table_text(made._replace(title="", text="")))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def answers(found: Findings) -> str:
    """The three answers at the top, a line each."""
    lines = []
    for card in glance(found, found.frame):
        lines.append(f"- **{card.question}** {card.answer}")
    return "\n".join(lines)


def counted(found: Findings) -> str:
    """How many cells ended well, how many verdicts of each outcome."""
    well = sum(record.status == "ok" for record in found.records)
    counts = tally(found.verdicts)
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"
    return f"**{well} of {len(found.records)} cells ended well. Verdicts: {verdicts}.**"


def table_text(table: Table) -> str:
    """A table with its heading, its paragraph and its footnotes."""
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


def claim_text(one: Judged) -> str:
    """A claim in full: its words, what its source says, each verdict in a sentence."""
    claim = one.claim
    lines = [
        f"### {claim.quoted_by}: {claim.quoted}",
        f"What the source says: {claim.source_says} — {claim.source} ({MARKS[claim.provenance]})",
    ]
    verdicts = []
    for verdict in one.verdicts:
        differs = (
            f" *Differs: {'; '.join(map(difference_text, verdict.differs))}.*" if verdict.differs else ""
        )
        record = f" Record `{verdict.cell}`." if verdict.cell else ""
        verdicts.append(f"- **{outcome_text(verdict)}** — {one.sentence(verdict)}{differs}{record}")
    lines.append("\n".join(verdicts))
    lines.append("\n".join(f"- Caveat: {caveat}" for caveat in claim.caveats))
    return "\n\n".join(line for line in lines if line)


def origin(found: Findings) -> str:
    """The environment, line by line, and where the raw records are."""
    lines = ["Raw records, one cell a line: [records.jsonl](records.jsonl). [verdicts.json](verdicts.json)."]
    lines += ["", *(f"- {escape(name)}: {escape(value)}" for name, value in flat(found.environment))]
    return "\n".join(lines)


def flat(data: object, name: str = "") -> list[tuple[str, str]]:
    """Nested mappings as (dotted name, text) lines, in their order."""
    if isinstance(data, dict):
        return [
            line for key, value in data.items() for line in flat(value, f"{name}.{key}" if name else str(key))
        ]
    if isinstance(data, list | tuple):
        return [(name, ", ".join(str(value) for value in data))]
    return [(name, str(data))]


def escape(text: str) -> str:
    """`text` so that Markdown shows it as it is, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
