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


def test_the_table_has_the_values_of_files_and_as_many_agree_as_the_page_reports():
    """Computing by ours and by HTA, then exposed communication and copies, in ms."""
    ours = {one["sha256"]: one for one in recorded("agreement.jsonl")}
    found, agree = [], []
    for digest, one in {one["sha256"]: one for one in recorded("hta.jsonl")}.items():
        if digest in ours:
            times_ns = ours[digest]["breakdown_ns"]
            computing, other = times_ns["computing"] / 1e6, (times_ns["exposed"] + times_ns["copies"]) / 1e6
            hta, hta_other = one["computing_us"] / 1e3, one["exposed_and_copies_us"] / 1e3
            found.append((computing, hta, other, hta_other))
            span_ms = ours[digest]["count_ns"]["span"] / 1e6
            agree.append(max(abs(computing - hta), abs(other - hta_other)) <= 5e-5 * span_ms)
    assert len(TABLE) > 4
    for name, values in TABLE:
        assert any(one == pytest.approx(values, abs=1.1e-3) for one in found), name
    page = " ".join((ROOT / "docs/commands/traces.md").read_text().split())
    assert f"In {sum(agree)} of the {len(agree)} files it agrees with ours within 0.005 % of the span" in page
