"""Render the answers on the paper's claims, in the paper's order, as index.md and index.html.

The tables of the paper and of the article, row by row, are tables.md and tables.html.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.claims.answers import ANSWERS, MISQUOTED, PARTLY, AnsweredClaim
from harness.claims.paper import PaperClaims, Sentence
from harness.report.figure import Figure
from harness.report.index.answers_text import (
    accepted_text,
    found,
    in_words,
    place,
    range_text,
    shares_text,
    suite_title,
    unbroken,
)
from harness.report.index.forest import NARROW, forest
from harness.report.index.suite_index import HEADER as RUNS_HEADER
from harness.report.index.suite_index import IndexRow, report_links, runs_table
from harness.report.markdown import details, escape, grid
from harness.report.page import render
from harness.report.tables import Table, TableCell, word
from harness.units import LEGEND, PUBLISHED, counted

TITLE = "Do the paper's claims hold?"
RUNS = "Results by question"
STATEMENTS = "Sentences that state nothing to test"
HEADER = ("Claim", "Answer", "Found", "Accepted")
STATEMENTS_HEADER = ("By", "Words", "Why")
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
    "Each claim has one word, the strength of its evidence, and the range that decides or comes nearest, "
    "intervals included.",
    "A: values measured on the claim's class of device, here or in public, its source's own formula, or "
    "words that no version of the source known to us has.",
    "B: predicted by a method whose error on others' measurements, out of sample, stands next to it. A value "
    "counts where it is three times as far from the accepted band as the largest of these errors.",
    "C: emulated, simulated or calculated without such a record, or another class of device. Such a claim is "
    "plausible where most of three or more values under its own conditions agree, implausible where nine in "
    "ten do not, else undecided, with what would decide.",
    "D: no evidence, with what it would take.",
    "One counterexample contradicts what is said to be always so. One example confirms what is said to be "
    "possible; that none is known contradicts nothing.",
    "A word that one half of a run's processes turns is undecided. A value within 1 % of an edge counts for "
    "neither side.",
    "An illustration is fixed by the set-up beforehand and never counted.",
    "Published values are whatever their authors published: often best cases, under unequal conditions.",
    f"Marks of values: {LEGEND} · {PUBLISHED}.",
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
        parts.append(f"![{answers.figure.alt}](figures/answers.svg)")
    for title, rows in by_part(answers):
        cells = tuple(tuple(map(word, _cells(row))) for row in rows)
        parts += [f"## {title}", grid(Table("answers", title, "", HEADER, cells))]
    parts += [
        "## Each claim with its source and all evidence",
        *(details(row.claim.claim, _in_full(row, answers.runs)) for row in answers.rows),
    ]
    how = "\n".join(f"- {escape(text)}" for text in _how_to_read(answers.figure))
    parts += ["## How to read this page", details("Words and strengths", how)]
    told = [(f"{one.by}, {one.section}", one.quoted, one.why) for one in answers.asked.statements]
    statements = tuple(tuple(map(word, row)) for row in told)
    parts += [f"## {STATEMENTS}", grid(Table("statements", "", "", STATEMENTS_HEADER, statements))]
    parts += [f"## {RUNS}", grid(runs_table(answers.runs))] if answers.runs else []
    return "\n\n".join(filter(None, parts)) + "\n"


def index_page(answers: Answers) -> str:
    """Return index.html."""
    return render(
        "index.html.j2",
        title=TITLE if answers.rows else RUNS,
        runs_title=RUNS,
        header=HEADER[:-1],
        counts=counts_line(answers.rows) if answers.rows else "",
        sentences=sentences(answers),
        figures={"wide": answers.figure, "narrow": forest(answers.rows, NARROW)} if answers.figure else {},
        how_to_read_answers=_how_to_read(answers.figure),
        parts=[(title, [_shown(row, answers.runs) for row in rows]) for title, rows in by_part(answers)],
        statements_title=STATEMENTS,
        statements_header=STATEMENTS_HEADER,
        statements=answers.asked.statements if answers.rows else (),
        runs_header=RUNS_HEADER[:-1],
        runs=answers.runs,
        unbroken=unbroken,
    )


def _how_to_read(figure: Figure | None) -> list[str]:
    return [*HOW_TO_READ, *([figure.text] if figure else [])]


def counts_line(rows: Sequence[AnsweredClaim]) -> str:
    """Return `36 claims: 3 confirmed, 4 partly, …`, and of which suites there are no results."""
    words = Counter(row.answer for row in rows)
    counts = ", ".join(f"{words[one]} {one}" for one in ANSWERS if words[one])
    text = f"{counted(len(rows), 'claim')}: {counts}."
    missing = sorted({name.partition("/")[0] for row in rows for name in row.missing})
    return f"{text} Without results of: {', '.join(map(suite_title, missing))}." if missing else text


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
    ranges = {
        f"{one.claim} | {one.group} | {one.verdicts[0].origin}": range_text(one, row.claim)
        for row in rows
        for one in row.evidence
    }
    if not sentence.answers.items() <= words.items() or not {*sentence.values} <= ranges.keys():
        return ""
    return sentence.text.format(*(ranges[value] for value in sentence.values))


def _cells(row: AnsweredClaim) -> tuple[str, ...]:
    value, of, accepted = _best(row)
    answer = f"**{row.answer}**, {row.strength}"
    answer = f"{answer}: {_why(row)}" if row.answer == PARTLY else answer
    return row.claim.claim, answer, f"{value} ({of})" if value else of, accepted


def _best(row: AnsweredClaim) -> tuple[str, str, str]:
    """Return the best evidence's range, what it is of, and what is accepted; else the words that decide."""
    if row.answer == MISQUOTED:
        return "", row.claim.misquoted, ""
    best = next(iter(found(row)), None)
    if best is None:
        return "", _why(row), ""
    return best.range, best.of, best.accepted if best.range else ""


def _why(row: AnsweredClaim) -> str:
    """Return why the answer is what it is, and of one without evidence why there is none."""
    lacking = row.lacking if row.lacking and row.strength == "D" else ""
    return in_words("; ".join(filter(None, [row.why, lacking])), row.claim)


def _shown(row: AnsweredClaim, runs: Sequence[IndexRow]) -> dict[str, object]:
    value, of, accepted = _best(row)
    return {
        "row": row,
        "place": place(row.claim),
        "accepted": accepted,
        "look": LOOKS[row.answer],
        "value": value,
        "of": of,
        "found": [(one, report_links(one.folders, runs)) for one in found(row)],
        "why": _why(row),
        "would_decide": in_words(row.would_decide, row.claim),
        "do": in_words(row.claim.do, row.claim),
    }


def _in_full(row: AnsweredClaim, runs: Sequence[IndexRow]) -> str:
    claim = row.claim
    source = f" — {claim.source}" if claim.source else ""
    evidence = []
    for one in found(row):
        links = ", ".join(f"[{text}]({run}/report.md)" for run, text in report_links(one.folders, runs))
        where = f"— {escape(one.source)}" if one.source else links
        evidence.append(f"- {one.strength}: {escape(one.detail)} {where}".rstrip())
    lines = [
        f"“{escape(claim.quoted)}” — {place(claim)}",
        f"**Its source:** {escape(claim.source_says + source)}",
        "\n".join(evidence) or "**Evidence:** none.",
        f"**Answer:** {row.answer}, {row.strength}: {escape(_why(row))}",
        f"**Would decide:** {escape(in_words(row.would_decide, claim))}" if row.would_decide else "",
        f"**Accepted:** {accepted_text(row)}",
        f"**What to do:** {escape(in_words(claim.do, claim))}",
    ]
    return "\n\n".join(filter(None, lines))


TABLES_TITLE = "The paper's tables, row by row"
TABLES_HEADER = (
    "Row",
    "Claimed",
    "What its source supports",
    "Published by others",
    "Here",
    "Answer",
    "Strength",
)
HOW_TO_READ_TABLES = (
    "Claimed are the words of the table. What its source supports is what the primary source states. "
    "Published are measurements of others, or formulas of theirs. Here are the values of these results, the "
    "best first, or why there is none. The strength of the evidence is A to D, as on the page of all answers."
)
MOST_FOUND = 2  # pieces of our evidence that a row shows

NONE = word("–")


def paper_tables(asked: PaperClaims, rows: Sequence[AnsweredClaim]) -> list[Table]:
    """Return each table, with a line for every claim of a row."""
    answered = {row.claim.id: row for row in rows}
    tables = []
    for number, table in enumerate(asked.tables, 1):
        lines = tuple(
            line
            for words, claims in table.rows.items()
            for line in _lines(words.split(" | "), table.named_by, claims, answered)
        )
        tables.append(Table(f"table_{number}", table.title, "", TABLES_HEADER, lines))
    return tables


def _lines(
    cells: Sequence[str], named_by: int, claims: Sequence[str], answered: dict[str, AnsweredClaim]
) -> Iterator[tuple[TableCell, ...]]:
    """Yield a line for each claim of a row: the cells that name the row, then those that claim something."""
    for number, name in enumerate(claims):
        one = answered[name]
        row = ": ".join(cells[:named_by]), "; ".join(cells[named_by:])
        head = row if not number else ("", one.claim.claim)
        published = [shares_text(record, one.claim) for record in one.claim.public]
        here = [evidence.detail for evidence in found(one) if not evidence.source][:MOST_FOUND]
        without = one.claim.not_built or one.claim.untestable or one.lacking
        why = "" if one.claim.misquoted else in_words(one.why, one.claim)
        texts = (
            *head,
            f"{one.claim.source_says} {one.claim.misquoted}".strip(),
            "; ".join(published),
            "; ".join(here) or in_words(without, one.claim),
            f"{one.answer}: {why}" if why else one.answer,
            one.strength,
        )
        yield tuple(word(text) if text else NONE for text in texts)


def tables_markdown(tables: Sequence[Table]) -> str:
    """Return tables.md."""
    parts = [f"# {TABLES_TITLE}", HOW_TO_READ_TABLES, "All answers: [index.md](index.md)."]
    for table in tables:
        parts += [f"## {table.title}", grid(table)]
    return "\n\n".join(parts) + "\n"


def tables_page(tables: Sequence[Table]) -> str:
    """Return tables.html."""
    return render(
        "tables.html.j2",
        title=TABLES_TITLE,
        text=HOW_TO_READ_TABLES,
        tables=tables,
        answer_looks=LOOKS,
        unbroken=unbroken,
    )
