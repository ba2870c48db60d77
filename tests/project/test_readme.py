"""README is short, and says of claims what the committed answers say."""

import csv
import re

from harness.config.code_fingerprint import ROOT

README = (ROOT / "README.md").read_text()
ANSWERS = {
    row["claim"]: row
    for row in csv.DictReader((ROOT / "results/reference/answers.csv").open(encoding="utf-8", newline=""))
}
NUMBER = re.compile(r"(?<![A-Z])(?<![A-Z]\d)(?<![A-Z]\d\d)(?:\d[\d.,]*\d|\d)")  # none of H100
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def table(header):
    """Return the rows of the table under this header line, as cells."""
    _, _, rest = README.partition(header)
    lines = rest.strip().splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows
    return rows


FOUND = table("| of | claim | answer | found | more |")


def numbers(text):
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def test_it_is_read_in_two_minutes():
    cells = [cell for line in README.splitlines() if line.startswith("| ") for cell in line.split("|")]
    assert max(len(LINK.sub(r"\1", cell).split()) for cell in cells) <= 15
    assert all(len(found.split()) <= 12 for _, _, _, found, _ in FOUND)


def test_each_answer_is_the_committed_one():
    for _, claim, answer, _, _ in FOUND:
        row = ANSWERS[claim]
        assert answer == f"{row['answer']}, {row['strength']}", claim


def test_each_number_stands_in_the_committed_answer():
    for _, claim, _, found, _ in FOUND:
        known = numbers(" ".join(ANSWERS[claim].values()))
        assert numbers(found) <= known, f"{claim}: {numbers(found) - known}"


def test_each_table_of_the_paper_and_the_articles_has_a_row():
    tables = {place for place, *_ in FOUND}
    assert tables == {"Table I", "Table II", "Table III", "Table IV", "article"}
    for place, claim, *_ in FOUND:
        row = ANSWERS[claim]
        assert place in row["section"] or place == row["by"] or claim.startswith("Training takes"), claim


def test_what_commands_print_is_what_was_recorded():
    """The answers on a file and on speed: each line of output stands in the committed run's."""
    own_file, kernels = (
        (ROOT / "results/reference" / name).read_text()
        for name in ("fit/llama3_70b.txt", "kernels/report.md")
    )
    blocks = re.findall(r"```\n(\$ .*?)```", README, re.S)
    printed = [
        [line for line in block.splitlines() if line[0] not in "$ ." or line.startswith("  ")]
        for block in blocks
    ]
    lines = [line for line in printed[0] if not line.startswith("    ")]
    assert len(lines) == 4
    assert set(lines) <= set(own_file.splitlines())
    assert " ".join(printed[1]) in kernels
