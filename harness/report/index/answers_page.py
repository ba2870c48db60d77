"""Render the answers on the paper's claims, in the paper's order, as index.md and index.html.

Sentences to repeat and a picture come first, then a table per part of the paper, then the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.claims.answers import ANSWERS, AnsweredClaim
from harness.claims.paper import PaperClaim, PaperClaims, Sentence
from harness.report.figures.figure import Figure
from harness.report.index.answers_text import accepted_text, answer_text, found, links, place, range_text
from harness.report.index.suite_index import IndexRow, runs_table
from harness.report.output.markdown import details, escape, grid
from harness.report.output.page import render
from harness.report.tables.tables import Table, TableCell
from harness.units import counted

TITLE = "Do the paper's claims hold?"
RUNS = "Results by question"
HEADER = ("Claim", "Answer", "Found", "Accepted", "What to do")
LOOKS = {
    "confirmed": "good",
    "partly": "info",
    "contradicted": "bad",
    "misquoted": "warn",
    "plausible": "info",
    "implausible": "warn",
    "undecided": "muted",
    "no evidence": "muted",
}
HOW_TO_READ = (
    "One row per claim: one word, how strong the evidence is, and the range that decides or comes nearest. A: "
    "values measured on the claim's class of device, here or in public, its source's own formula, or words "
    "that no version of the source known to us has. B: predicted by a method whose error on others' "
    "measurements, out of sample, stands next to it; a value counts where it is three times as far from the "
    "accepted band as the largest of these errors. C: emulated, simulated or calculated without such a record, "
    "or another class of device: plausible where most values under the claim's own conditions agree, "
    "implausible where nine in ten do not, else undecided, with what would decide. D: none, with what it would "
    "take. One counterexample contradicts what is said to be always so, one example confirms what is said to "
    "be possible. A word that one half of a run's processes turns is undecided, and a value within 1 % of an "
    "edge counts for neither side. Published values are whatever their authors published: often best cases, "
    "under unequal conditions."
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the page shows: the file of claims, their answers, the figure, and the results folders."""

    asked: PaperClaims
    rows: Sequence[AnsweredClaim]  # none where results do not go together
    figure: Figure | None
    runs: Sequence[IndexRow]


def index_markdown(answers: Answers) -> str:
    """Return index.md."""
    if not answers.rows:
        return f"# {RUNS}\n\n{grid(runs_table(answers.runs))}\n"
    parts = [f"# {TITLE}", counts_line(answers.rows)]
    parts += ["\n".join(f"{i}. {text}" for i, text in enumerate(sentences(answers), 1))]
    if answers.figure:
        parts += [f"![{answers.figure.alt}](figures/answers.svg)", answers.figure.text]
    parts.append(HOW_TO_READ)
    for title, rows in by_part(answers):
        cells = tuple(tuple(TableCell(text, look="word") for text in _cells(row)) for row in rows)
        parts += [f"## {title}", grid(Table("answers", title, "", HEADER, cells))]
    parts += ["## Sentences that state nothing to test", grid(_statements(answers.asked))]
    parts += [
        "## Each claim with its source",
        *(details(row.claim.claim, _in_full(row)) for row in answers.rows),
    ]
    parts += [f"## {RUNS}", grid(runs_table(answers.runs))] if answers.runs else []
    return "\n\n".join(filter(None, parts)) + "\n"


def index_page(answers: Answers) -> str:
    """Return index.html."""
    return render(
        "index.html.j2",
        title=TITLE if answers.rows else RUNS,
        runs_title=RUNS,
        header=HEADER,
        counts=counts_line(answers.rows) if answers.rows else "",
        sentences=sentences(answers),
        figure=answers.figure,
        text=HOW_TO_READ,
        parts=[(title, [_shown(row) for row in rows]) for title, rows in by_part(answers) if answers.rows],
        statements=answers.asked.statements if answers.rows else (),
        runs=answers.runs,
    )


def counts_line(rows: Sequence[AnsweredClaim]) -> str:
    """Return `36 claims: 3 confirmed, 4 partly, …`, and of which suites there are no results."""
    words = Counter(row.answer for row in rows)
    counts = ", ".join(f"{words[one]} {one}" for one in ANSWERS if words[one])
    text = f"{counted(len(rows), 'claim')}: {counts}."
    missing = sorted({name.partition("/")[0] for row in rows for name in row.missing})
    return f"{text} Without results of: {', '.join(missing)}." if missing else text


def sentences(answers: Answers) -> list[str]:
    """Return the sentences whose answers and values these results have."""
    return [text for one in answers.asked.sentences if (text := _filled(one, answers.rows))]


def by_part(answers: Answers) -> Iterator[tuple[str, list[AnsweredClaim]]]:
    """Yield the title of each part of the paper with its claims."""
    for part, title in answers.asked.parts.items():
        if rows := [row for row in answers.rows if row.claim.part == part]:
            yield title, rows


def _filled(sentence: Sentence, rows: Sequence[AnsweredClaim]) -> str:
    """Return the sentence with its values; "" where an answer is another or a value is missing."""
    words = {row.claim.id: row.answer for row in rows}
    if any(words.get(claim) != answer for claim, answer in sentence.answers.items()):
        return ""
    ranges = {
        f"{one.claim} | {one.group} | {one.verdicts[0].origin}": range_text(one, row.claim)
        for row in rows
        for one in row.evidence
    }
    if any(value not in ranges for value in sentence.values):
        return ""
    return sentence.text.format(*(ranges[value] for value in sentence.values))


def _cells(row: AnsweredClaim) -> tuple[str, ...]:
    claim = row.claim
    return claim.claim, answer_text(row), _best(row), accepted_text(row), claim.do


def _best(row: AnsweredClaim) -> str:
    """Return the range of the best evidence, with a link to its run."""
    best = next(iter(found(row)), None)
    return f"{escape(best.short)} {links(best.folders)}".strip() if best else ""


def _shown(row: AnsweredClaim) -> dict[str, object]:
    """Return what the template shows of a row."""
    return {
        "row": row,
        "place": place(row.claim),
        "accepted": accepted_text(row),
        "look": LOOKS[row.answer],
        "found": found(row),
    }


def _statements(asked: PaperClaims) -> Table:
    header = ("By", "Words", "Why")
    rows = tuple(
        tuple(TableCell(text, look="word") for text in (f"{one.by}, {one.section}", one.quoted, one.why))
        for one in asked.statements
    )
    return Table("statements", "", "", header, rows)


def _in_full(row: AnsweredClaim) -> str:
    claim: PaperClaim = row.claim
    lines = [f"“{escape(claim.quoted)}” — {place(claim)}", f"Accepted: {accepted_text(row)}."]
    lines.append(
        f"Its source: {escape(claim.source_says)}{f' — {escape(claim.source)}' if claim.source else ''}"
    )
    for one in found(row):
        where = f"— {escape(one.source)}" if one.source else links(one.folders)
        lines.append(f"{one.strength}: {escape(one.detail)} {where}".strip())
    lines.append(answer_text(row).replace(row.why, escape(row.why)) if row.why else answer_text(row))
    return "\n\n".join(lines)
