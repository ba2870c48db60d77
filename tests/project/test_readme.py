"""README says of claims and predictions what the committed answers and records say."""

import csv
import re

import numpy as np

from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
README = (ROOT / "README.md").read_text()
ANSWERS = {
    row["claim"]: row
    for row in csv.DictReader((REFERENCE / "answers.csv").open(encoding="utf-8", newline=""))
}
NUMBER = re.compile(r"(?<![A-Z])(?<![A-Z]\d)(?<![A-Z]\d\d)(?:\d[\d.,]*\d|\d)")  # none of H100
OF_PEAKS = ("fake_step", "megatron")


def numbers(text):
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def test_each_answer_and_its_numbers_are_the_committed_ones_and_each_table_has_a_row():
    _, _, rest = README.partition("| of | claim | answer | found | more |")
    rows = [line.strip("|").split("|") for line in rest.partition("\n\n")[0].strip().splitlines()[1:]]
    assert {row[0].strip() for row in rows} == {"Table I", "Table II", "Table III", "Table IV", "article"}
    for row in rows:
        place, claim, answer, found, _ = (cell.strip() for cell in row)
        known = ANSWERS[claim]
        assert answer == f"{known['answer']}, {known['strength']}", claim
        assert numbers(found) <= numbers(" ".join(known.values())), claim
        assert place in known["section"] or place == known["by"] or claim.startswith("Training takes"), claim


def errors_of(suite, metric_is):
    return {
        record.cell.workload: [abs(e) for one in record.measurements if metric_is(one) for e in one.samples]
        for record in read_records(REFERENCE / suite)
    }


def test_how_far_predictions_are_off_is_that_of_the_records():
    """Of memory and of seconds, out of sample, the worst included."""
    text = " ".join(README.partition("Can predictions be believed?")[2].partition("##")[0].split())
    memory = errors_of(
        "memory_published", lambda one: one.metric == "relative_error" and one.method in OF_PEAKS
    )
    seconds = errors_of("step_time", lambda one: (one.metric, one.method) == ("relative_error", "left_out"))
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
    assert f"worst {100 * max(left_out):.0f} %." in text


def test_what_commands_print_is_what_was_recorded():
    """The answers on a file and on speed: each line of output stands in the committed run's."""
    own_file, kernels = (
        (REFERENCE / name).read_text() for name in ("fit/llama3_70b.txt", "kernels/report.md")
    )
    printed = [
        [line for line in block.splitlines() if line[0] not in "$ ." or line.startswith("  ")]
        for block in re.findall(r"```\n(\$ .*?)```", README, re.S)
    ]
    lines = [line for line in printed[0] if not line.startswith("    ")]
    assert len(lines) == 5
    assert set(lines) <= set(own_file.splitlines())
    assert " ".join(printed[1]) in kernels


def of_runs(metric):
    """Return a metric of every public run that has it."""
    found = (one for record in read_records(REFERENCE / "published") for one in record.measurements)
    return [error for one in found if one.metric == metric for error in one.samples]


def test_how_far_public_runs_are_off_is_that_of_the_records():
    readme = " ".join(README.partition("Can predictions be believed?")[2].partition("##")[0].split())
    said = []
    for asked in ("bytes", "seconds"):
        errors = np.abs(of_runs(f"{asked}/error"))
        half, nine = (100 * np.quantile(errors, share) for share in (0.5, 0.9))
        refused = 100 * np.mean(of_runs(f"{asked}/refused"))
        said.append(f"{refused:.0f} % refused, half within {half:.0f} %, nine in ten within {nine:.0f} %")
    assert f"{len(of_runs('bytes/refused'))} [public runs](docs/suites/published.md)" in readme
    assert all(one in readme for one in said)
    wrong = of_runs("bytes/wrong")
    assert f"{100 * np.mean(wrong):.1f} % of {len(wrong)} firm verdicts are wrong" in readme
