"""The profiling page and report: values are those of the committed records, and no block is left empty."""

from statistics import median

import pytest

from harness.config.code_fingerprint import ROOT
from harness.records import measurement
from harness.sweep.store import read_records

RECORDS = read_records(ROOT / "results/reference/profiling")
TEXT = (ROOT / "docs/suites/profiling.md").read_text()
PAGE = " ".join(TEXT.split())
STEPS = {
    "ddp_2_ranks": "DDP",
    "fsdp2_2_ranks": "FSDP2",
    "ddp_2_ranks_linked": "DDP",
    "fsdp2_2_ranks_linked": "FSDP2",
    "fsdp2_4_ranks": "FSDP2, 4 ranks",
}
INJECTED = [one for one in RECORDS if measurement(one, "injected", "")]
WITHOUT = ("baseline", "baseline_again")


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


def test_the_page_states_what_the_records_have():
    def every(metric, among=lambda optimization: True):
        cells = [one for one in RECORDS if among(one.cell.optimization)]
        return [value for one in cells for value in samples(one, metric)]

    named = [value for one in INJECTED for value in samples(one, "named")]
    quiet = every("named_in_error", WITHOUT.__contains__)
    assert len(INJECTED) == 12
    assert not any(every("named_in_error"))
    counts = every("counted_of_held_back")
    for stated in (
        f"{sum(named):.0f} of {len(named)} recordings",
        f"nothing at all in {len(quiet)} recordings",
        f"count is {min(counts):.2f} and {max(counts):.2f} of that process's time",
    ):
        assert stated in PAGE


@pytest.mark.parametrize("record", INJECTED, ids=lambda one: f"{one.cell.workload}-{one.cell.optimization}")
def test_a_row_of_the_page_is_what_its_record_has(record):
    injected_s, longer_s, found_s = (samples(record, one) for one in ("injected", "time_rise", "recovered"))
    errors = [there / given - 1 for given, there in zip(injected_s, found_s, strict=True)]
    longer = f"{ms(longer_s)} ({1e3 * min(longer_s):.1f} … {1e3 * max(longer_s):.1f})"
    amounts = (one.replace("-", "−") for one in (ms(injected_s), longer, ms(found_s)))
    shares = (spread(errors), spread(samples(record, "recovery_error")))
    assert f"| {' | '.join((STEPS[record.cell.workload], *amounts, *shares))} |" in TEXT
