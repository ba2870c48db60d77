"""The terminal, a suite without a report of its own, the tidy table."""

from __future__ import annotations

import io
from pathlib import Path

from reporting import read_page
from synthetic import made
from timed import timed_records

from harness.report import gather, write_report
from harness.report.findings import what_pays
from harness.report.terminal import show


def test_a_suite_without_its_own_report_shows_every_metric_with_its_speed_up_and_a_figure(tmp_path):
    records = timed_records(("small", "large"))
    page = write_report(tmp_path, gather("unheard_of", records, [], tmp_path)).read_text()
    text = (tmp_path / "report.md").read_text().replace("\u00a0", " ")
    assert text.startswith("# unheard_of\n")
    for sentence in ("Bytes moved: no variant pays.", "Peak memory: fast, large −50 %, and 1 more pays."):
        assert f"\n{sentence}\n" in text
    assert "\nTime (warm): fast, large 2.00×, and 1 more pays.\n" in text
    assert "<summary>Time (warm)</summary>\n" in text
    assert "| small | fast |" in text
    assert "2.00× (2.00 … 2.00) ᵐ" in text
    assert "<summary>Peak memory</summary>\n" in text
    assert "−50 % ᵐ" in text
    assert "warm_up" not in text.replace("warm up", "")
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert drawn == {f"metrics_{name}_plot" for name in ("time_warm", "peak_memory", "bytes_moved", "flops")}
    assert read_page(page).open == []
    out = io.StringIO()
    show(gather("unheard_of", records, [], tmp_path), Path("page"), out, everything=True)
    assert "2.00× (2.00 … 2.00)" in out.getvalue()


def test_the_first_answer_of_such_a_report_names_each_metric_that_it_judges(tmp_path):
    values = {"baseline": (100.0, 0.5), "fast": (120.0, 0.1), "faster": (150.0, 0.2), "slow": (80.0, 0.6)}
    records = [
        made(
            "w",
            variant,
            {("rate", ""): ("token/s", "measured", (rate,)), ("pad", ""): ("1", "measured", (pad,))},
        )
        for variant, (rate, pad) in values.items()
    ]
    told = [what_pays(gather("unheard_of", some, [], tmp_path)) for some in (records, records[:1])]
    assert told == [
        [
            "Rate: faster +50 %, and 1 more pays.",
            "Pad: up to −80 % (fast), not judged, since its unit does not say whether less is better.",
        ],
        ["Rate: No variant could be compared with the baseline."],
    ]
