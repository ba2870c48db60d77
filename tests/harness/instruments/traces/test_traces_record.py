"""The table of docs/commands/traces.md has the values of its two records: the breakdown and HTA."""

import json
import re

import pytest

from harness.config.code_fingerprint import ROOT

RECORDS = ROOT / "results/reference/traces"
ROW = re.compile(r"^\| (.+?) \| ([\d,]+) \|((?: [\d,.]+ \|){4})", re.MULTILINE)
TABLE = [
    (name, tuple(float(one.replace(",", "")) for one in values.strip(" |").split(" | ")))
    for name, _, values in ROW.findall((ROOT / "docs/commands/traces.md").read_text())
]


def recorded(name: str) -> list[dict]:
    return [json.loads(line) for line in (RECORDS / name).read_text().splitlines()]


def compared() -> dict[str, tuple[float, ...]]:
    """Return ms of computing by ours and by HTA, then of exposed communication and copies, of each file."""
    ours = {one["sha256"]: one["breakdown_ns"] for one in recorded("agreement.jsonl")}
    return {
        one["sha256"]: (
            ours[one["sha256"]]["computing"] / 1e6,
            one["computing_us"] / 1e3,
            (ours[one["sha256"]]["exposed"] + ours[one["sha256"]]["copies"]) / 1e6,
            one["exposed_and_copies_us"] / 1e3,
        )
        for one in recorded("hta.jsonl")
        if one["sha256"] in ours
    }


@pytest.mark.parametrize(("name", "values"), TABLE, ids=[name for name, _ in TABLE])
def test_a_row_is_that_of_a_file(name, values):
    assert any(found == pytest.approx(values, abs=1.1e-3) for found in compared().values())


def test_as_many_files_agree_as_the_page_reports():
    spans = {one["sha256"]: one["count_ns"]["span"] / 1e6 for one in recorded("agreement.jsonl")}
    found = compared()
    agree = [
        max(abs(computing - hta), abs(other - hta_other)) <= 5e-5 * spans[digest]
        for digest, (computing, hta, other, hta_other) in found.items()
    ]
    page = " ".join((ROOT / "docs/commands/traces.md").read_text().split())
    assert f"In {sum(agree)} of the {len(agree)} files it agrees with ours within 0.005 % of the span" in page
