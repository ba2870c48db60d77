"""Set tables, figures and verdicts as report.md, which GitHub shows: what is long is folded.

Decide where each block of a report is: at the top, in view, folded, or left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.config.optimizations import BASELINE
from harness.report.figure import Figure
from harness.report.findings import what_pays
from harness.report.report_data import ReportData
from harness.report.spec import Block, EffectPlotBlock, EffectsBlock, PairedBlock, Spec, TableBlock, plot_of
from harness.report.summary import cells_line, claims_line, run_line, summary, wrong_results
from harness.report.tables import Table, TableCell, TidyTable, failure_table, tidy
from harness.report.verdicts import (
    MARKS,
    ClaimWithVerdicts,
    accepted,
    difference_text,
    judged,
    orders,
    outcomes_line,
    quoted,
)

SHOWN = 3  # blocks in view where conf/report/ marks none


class Part(NamedTuple):
    """A block with its table or its figure."""

    block: Block
    table: TidyTable | None = None
    figure: Figure | None = None

    @property
    def label(self) -> str:
        """Return its title without the workload, for a list of contents."""
        return self.block.title.partition(": ")[0]


class Layout(NamedTuple):
    """The parts of a report, in the order in which they are read."""

    top: Part | None  # the figure that answers the question
    shown: tuple[Part, ...]
    more: tuple[Part, ...]  # folded
    claims: bool  # whether a claim could be compared
    failures: TidyTable | None
    empty: tuple[str, ...]  # titles of blocks without a value

    @property
    def figures(self) -> dict[str, Figure]:
        """Return every figure by the name of its file."""
        parts = (self.top, *self.shown, *self.more)
        return {f"{part.block.id}.svg": part.figure for part in parts if part and part.figure}


def arrange(data: ReportData) -> Layout:
    """Return the parts of a report; draws its figures."""
    parts = [_part(data, block) for block in data.blocks]
    filled = [part for part in parts if _is_filled(data, part)]
    top = _top(data, filled)
    rest = [part for part in filled if top is None or part.block.id != top.block.id]
    marked = [part for part in rest if part.block.shown] or rest[:SHOWN]
    failures = tidy(failure_table(data.spec, data.index))
    return Layout(
        top,
        tuple(marked),
        tuple(part for part in rest if part not in marked),
        any(verdict.outcome != "unavailable" for verdict in data.verdicts),
        failures if failures.table.rows else None,
        tuple(part.block.title for part in parts if part not in filled),
    )


def _part(data: ReportData, block: Block) -> Part:
    table = data.table(block)
    return Part(block, figure=data.figure(block)) if table is None else Part(block, tidy(table))


def _is_filled(data: ReportData, part: Part) -> bool:
    """Return whether a part has a value; a table of variants more than the baseline alone."""
    rows = part.table.table.rows if part.table else ()
    of_variants = isinstance(part.block, TableBlock) and part.block.key == "optimization"
    alone = of_variants and [row[0].text for row in rows] == [data.spec.name("optimization", BASELINE)]
    return part.figure is not None or (bool(rows) and not alone)


def _top(data: ReportData, parts: Iterable[Part]) -> Part | None:
    """Return the figure marked `top`, the first plot of effects, one of the first such table, or any."""
    listed = list(parts)
    drawn = [part for part in listed if part.figure]
    plots = [part for part in drawn if isinstance(part.block, EffectPlotBlock)]
    judged = [
        part for part in plots if isinstance(part.block, PairedBlock) and part.block.better != "neither"
    ]
    if best := [*(part for part in drawn if part.block.top), *judged, *plots]:
        return best[0]
    for part in listed:
        if isinstance(part.block, EffectsBlock):
            block = plot_of(part.block, f"{part.block.id}_drawn", part.block.title)
            if figure := data.figure(block):
                return Part(block, figure=figure)
    return drawn[0] if drawn else None


FEW_NOTES = 2  # more footnotes than these are folded

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
        parts += [
            "## More tables and figures",
            *(details(part.block.title, part_text(part, 0)) for part in layout.more),
        ]
    if layout.empty:
        parts.append(f"Without a value in this run: {'; '.join(layout.empty)}.")
    if layout.claims:
        texts = [data.spec.claims.text, HOW_TO_READ]
        texts += [claim_text(one, data.spec) for one in judged(data.claims, data.verdicts)]
        line = outcomes_line(data.claims, data.verdicts)
        parts += [f"## {data.spec.claims.title}", details(line, "\n\n".join(filter(None, texts)))]
    parts += ["## About this run", counted(data)]
    if layout.failures:
        parts.append(details(data.spec.failures.title, table_text(layout.failures)))
    caveats = "\n".join(f"- {escape(one)}" for one in data.spec.caveats)
    conditions = f"{data.spec.question}\n\n{caveats}".strip()
    parts += [details(CAVEATS, conditions)] if conditions else []
    lines = "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in hosts(data.environment))
    parts.append(details("The machine, its libraries and the commit", lines))
    parts.append("Raw records: [records.jsonl](records.jsonl). Verdicts: [verdicts.json](verdicts.json).")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def details(summary: str, text: str) -> str:
    """Return a text that GitHub folds below its summary."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n\n{text.strip()}\n\n</details>"


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
    return [*what_pays(data), *summary(data)]


def counted(data: ReportData) -> str:
    """Return how many cells and interpretations have a value, what the rest needs, and what was left out."""
    claims = f" {claims_line(data.verdicts, data.records)}" if data.verdicts else ""
    left_out = f" Not run: {'; '.join(data.left_out)}." if data.left_out else ""
    apart = "".join(f" {sentence}." for sentence in data.apart)
    return f"{cells_line(data.records)}{claims}{left_out}{apart}"


def table_text(made: TidyTable) -> str:
    """Return a table with its paragraph and its footnotes; what is wider than seven columns is folded."""
    table, notes = made.table, made.table.notes
    first, *more = made.parts() if table.rows else [table]
    parts = [table.text, grid(first, notes) if table.rows else ""]
    parts += [details("More columns", "\n\n".join(grid(one, notes) for one in more))] if more else []
    parts.append(made.left_out)
    below = "\n".join(f"- [{i}] {escape(note)}" for i, note in enumerate(notes, 1))
    parts.append(details(f"{len(notes)} notes", below) if len(notes) > FEW_NOTES else below)
    return "\n\n".join(part for part in parts if part)


def grid(table: Table, notes: Sequence[str] = ()) -> str:
    """Return the rows of a table, notes by number; a value and its interval stay on one line."""
    words = [bool(cell.look == "word") for cell in table.rows[0]]
    lines = [
        "| " + " | ".join(escape(head) for head in table.header) + " |",
        "|" + "|".join("---" if word else "---:" for word in words) + "|",
    ]
    lines += ["| " + " | ".join(_cell(cell, notes) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines)


def _cell(cell: TableCell, notes: Sequence[str]) -> str:
    text = escape(cell.marked(notes))
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
