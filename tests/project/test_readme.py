"""README is short, and says of claims what the committed answers say."""

import csv
import re

import numpy as np

from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records

README = (ROOT / "README.md").read_text()
ANSWERS = {
    row["claim"]: row
    for row in csv.DictReader((ROOT / "results/reference/answers.csv").open(encoding="utf-8", newline=""))
}
NUMBER = re.compile(r"(?<![A-Z])(?<![A-Z]\d)(?<![A-Z]\d\d)(?:\d[\d.,]*\d|\d)")  # none of H100
OF_PEAKS = ("fake_step", "megatron")
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


def test_how_far_predictions_are_off_is_that_of_the_records():
    """Of memory and of seconds, out of sample, the worst included."""
    text = " ".join(README.partition("Can predictions be believed?")[2].partition("##")[0].split())
    memory, seconds = (
        {
            record.cell.workload: [abs(e) for one in record.measurements if of(one) for e in one.samples]
            for record in read_records(ROOT / "results/reference" / suite)
        }
        for suite, of in (
            ("memory_published", lambda one: one.metric == "relative_error" and one.method in OF_PEAKS),
            ("step_time", lambda one: (one.metric, one.method) == ("relative_error", "left_out")),
        )
    )
    held_out = [e for name, errors in memory.items() if "_adapter" in name for e in errors]
    every = [e for errors in memory.values() for e in errors]
    assert f"{len(held_out)} [published peaks of memory]" in text
    assert f"are within {100 * max(held_out):.2f} %; of all {len(every)}" in text
    assert f"the worst is {100 * max(every):.1f} % off" in text
    tuned, left_out = seconds["dgxc"], seconds["every"]
    nine = 100 * np.percentile(tuned, 90)
    assert f"Seconds of {len(tuned)} [published steps]" in text
    assert f"median {100 * np.median(tuned):.1f} %, nine in ten within {nine:.1f} %" in text
    assert f"worst {100 * max(tuned):.1f} %; of {len(left_out)} left out" in text
    assert text.endswith(f"worst {100 * max(left_out):.0f} %.")


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
