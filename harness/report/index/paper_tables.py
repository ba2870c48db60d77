"""Set the tables of the paper and of the article row by row: what is claimed, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.claims.answers import AnsweredClaim
from harness.claims.paper import PaperClaims, PaperRow
from harness.report.index.answers_page import LOOKS
from harness.report.index.answers_text import found, in_words, shares_text, unbroken
from harness.report.markdown import grid
from harness.report.page import render
from harness.report.tables import Table, TableCell

TITLE = "The paper's tables, row by row"
HEADER = ("Row", "Claimed", "What its source supports", "Published by others", "Here", "Answer", "Strength")
HOW_TO_READ = (
    "Claimed are the words of the table. What its source supports is what the primary source states. "
    "Published are measurements of others, or formulas of theirs. Here are the values of these results, the "
    "best first, or why there is none. The strength of the evidence is A to D, as on the page of all answers."
)
MOST_FOUND = 2
"""Pieces of our evidence that a row shows."""

NONE = TableCell("–", look="word")


def paper_tables(asked: PaperClaims, rows: Sequence[AnsweredClaim]) -> list[Table]:
    """Return each table, with a line for every claim of a row."""
    answered = {row.claim.id: row for row in rows}
    return [
        Table(
            f"table_{number}",
            table.title,
            "",
            HEADER,
            tuple(line for row in table.rows for line in _lines(row, answered)),
        )
        for number, table in enumerate(asked.tables, 1)
    ]


def _lines(row: PaperRow, answered: dict[str, AnsweredClaim]) -> Iterator[tuple[TableCell, ...]]:
    for number, name in enumerate(row.claims):
        one = answered[name]
        head = (row.name, row.claimed) if not number else ("", one.claim.claim)
        published = [shares_text(record, one.claim) for record in one.claim.public]
        here = [evidence.detail for evidence in found(one) if not evidence.source][:MOST_FOUND]
        without = one.claim.not_built or one.claim.untestable or one.lacking
        texts = (
            *head,
            f"{one.claim.source_says} {one.claim.misquoted}".strip(),
            "; ".join(published),
            "; ".join(here) or in_words(without, one.claim),
            one.answer
            if one.claim.misquoted or not one.why
            else f"{one.answer}: {in_words(one.why, one.claim)}",
            one.strength,
        )
        yield tuple(TableCell(text, look="word") if text else NONE for text in texts)


def tables_markdown(tables: Sequence[Table]) -> str:
    """Return tables.md."""
    parts = [f"# {TITLE}", HOW_TO_READ, "All answers: [index.md](index.md)."]
    for table in tables:
        parts += [f"## {table.title}", grid(table)]
    return "\n\n".join(parts) + "\n"


def tables_page(tables: Sequence[Table]) -> str:
    """Return tables.html."""
    return render(
        "tables.html.j2", title=TITLE, text=HOW_TO_READ, tables=tables, answer_looks=LOOKS, unbroken=unbroken
    )
