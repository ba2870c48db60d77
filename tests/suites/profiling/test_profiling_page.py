"""The table of the profiling page has the values of the committed records."""

from statistics import median

import pytest

from harness.config.code_fingerprint import ROOT
from harness.records import measurement
from harness.sweep.store import read_records

RECORDS = read_records(ROOT / "results/reference/profiling")
TEXT = (ROOT / "docs/suites/profiling.md").read_text()
STEPS = {
    "ddp_2_ranks": "DDP",
    "fsdp2_2_ranks": "FSDP2",
    "ddp_2_ranks_linked": "DDP",
    "fsdp2_2_ranks_linked": "FSDP2",
    "fsdp2_4_ranks": "FSDP2, 4 ranks",
}
INJECTED = [one for one in RECORDS if measurement(one, "injected", "")]


def samples(record, metric, method=""):
    found = measurement(record, metric, method)
    return list(found.samples) if found else []


def percent(value):
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def spread(values):
    return f"{percent(median(values))} % ({percent(min(values))} … {percent(max(values))})"


def ms(values):
    return f"{1e3 * median(values):.1f}"


@pytest.mark.parametrize("record", INJECTED, ids=lambda one: f"{one.cell.workload}-{one.cell.optimization}")
def test_a_row_of_the_page_is_what_its_record_has(record):
    injected_s, longer_s, found_s = (samples(record, one) for one in ("injected", "time_rise", "recovered"))
    errors = [there / given - 1 for given, there in zip(injected_s, found_s, strict=True)]
    longer = f"{ms(longer_s)} ({1e3 * min(longer_s):.1f} … {1e3 * max(longer_s):.1f})"
    amounts = (one.replace("-", "−") for one in (ms(injected_s), longer, ms(found_s)))
    shares = (spread(errors), spread(samples(record, "recovery_error")))
    assert f"| {' | '.join((STEPS[record.cell.workload], *amounts, *shares))} |" in TEXT
