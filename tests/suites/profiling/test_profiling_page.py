"""The profiling page and report: values are those of the committed records, and no block is left empty."""

from statistics import median

import pytest

from harness.config.code_fingerprint import ROOT
from harness.records import measurement
from harness.report import gather
from harness.sweep.store import read_records

FOLDER = ROOT / "results/reference/profiling"
RECORDS = read_records(FOLDER)
PAGE = (ROOT / "docs/suites/profiling.md").read_text()
STEPS = {
    "ddp_2_ranks": "DDP",
    "fsdp2_2_ranks": "FSDP2",
    "ddp_2_ranks_linked": "DDP",
    "fsdp2_2_ranks_linked": "FSDP2",
    "fsdp2_4_ranks": "FSDP2, 4 ranks",
}
ON_GPUS = ("profiling_h100", "profiling_h200")
INJECTED = [one for one in RECORDS if measurement(one, "injected", "")]


def samples(record, metric):
    return measurement(record, metric, "").samples


def percent(value):
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def spread(values):
    return f"{percent(median(values))} % ({percent(min(values))} … {percent(max(values))})"


def test_every_injected_loss_is_named_as_often_as_the_page_says():
    every = [value for one in INJECTED for value in samples(one, "named")]
    assert len(INJECTED) == 12
    assert f"{sum(every):.0f} of {len(every)} recordings" in " ".join(PAGE.split())
    assert not any(value for one in RECORDS for value in samples(one, "named_in_error"))


def test_the_largest_median_errors_are_those_of_the_page():
    errors = {
        (one.cell.workload, one.cell.optimization): abs(median(samples(one, "recovery_error")))
        for one in INJECTED
    }
    link = errors.pop(("fsdp2_2_ranks_linked", "slow_link"))
    page = " ".join(PAGE.split())
    assert f"within {100 * max(errors.values()):.1f} % of the step in the median" in page
    assert f"{100 * link:.0f} % of the step is missing" in page


def test_the_shares_of_the_first_lines_are_those_of_the_records():
    (record,) = (
        one for one in RECORDS if (one.cell.workload, one.cell.optimization) == ("ddp_2_ranks", "baseline")
    )
    computing, exposed, gaps = (
        100 * median(measurement(record, "share", state).samples)
        for state in ("computing", "exposed_communication", "launch_gap_prepare")
    )
    page = " ".join(PAGE.split())
    assert f"{computing:.0f} % of the time is computing, {exposed:.1f} % exposed" in page
    assert f"{gaps:.1f} % launch gaps" in page


def test_the_range_of_the_clock_is_that_of_the_records():
    def every(metric, method="", prefix=""):
        return [
            value
            for one in RECORDS
            if one.cell.optimization.startswith(prefix)
            for found in one.measurements
            if (found.metric, found.method) == (metric, method)
            for value in found.samples
        ]

    chains = [
        value for rank in range(4) for value in every("relative_clock", f"dependent chain, rank {rank}")
    ]
    factors = every("factor", "frequency", "baseline")
    others = every("frequency_to_largest_other")
    page = " ".join(PAGE.split())
    assert f"ran at {100 * min(chains):.0f} to {100 * max(chains):.0f} % of its fastest" in page
    assert f"takes {min(factors):.2f} to {max(factors):.2f} times the time" in page
    assert f"costs {min(others):.2f} to {max(others):.2f} times as much" in page
    counts = [value for one in RECORDS for value in samples_or_none(one, "counted_of_held_back")]
    assert f"count is {min(counts):.2f} and {max(counts):.2f} of that process's time" in page


def samples_or_none(record, metric):
    return [v for one in record.measurements if one.metric == metric for v in one.samples]


def test_nothing_is_named_in_any_recording_with_nothing_injected():
    without = [
        value
        for one in RECORDS
        if one.cell.optimization in ("baseline", "baseline_again")
        for value in samples(one, "named_in_error")
    ]
    assert sum(without) == 0
    assert f"nothing at all in {len(without)} recordings" in " ".join(PAGE.split())


@pytest.mark.parametrize("record", INJECTED, ids=lambda one: f"{one.cell.workload}-{one.cell.optimization}")
def test_a_row_of_the_page_is_what_its_record_has(record):
    injected_s, longer_s, recovered_s = (
        samples(record, metric) for metric in ("injected", "time_rise", "recovered")
    )
    errors = [there / given - 1 for given, there in zip(injected_s, recovered_s, strict=True)]
    given, longer, found = (f"{1e3 * median(one):.1f}" for one in (injected_s, longer_s, recovered_s))
    amounts = (given, f"{longer} ({1e3 * min(longer_s):.1f} … {1e3 * max(longer_s):.1f})", found)
    amounts = tuple(one.replace("-", "−") for one in amounts)
    shares = (spread(errors), spread(samples(record, "recovery_error")))
    assert f"| {' | '.join((STEPS[record.cell.workload], *amounts, *shares))} |" in PAGE


@pytest.mark.parametrize("workload", STEPS)
def test_the_profilers_cost_is_that_of_all_recordings_with_nothing_injected(workload):
    costs = [
        cost
        for one in RECORDS
        if one.cell.workload == workload and one.cell.optimization in ("baseline", "baseline_again")
        for cost in samples(one, "profiler_overhead")
    ]
    assert len(costs) == 8
    page = " ".join(PAGE.split())
    assert f"{percent(median(costs)).removeprefix('+')} %" in page
    assert f"{percent(min(costs))} to {percent(max(costs))} %" in page


@pytest.mark.parametrize(
    ("id", "workload"),
    [
        ("recovered", "ddp_2_ranks"),
        ("recovered_fsdp2", "fsdp2_2_ranks"),
        ("recovered_link", "ddp_2_ranks_linked"),
        ("recovered_link_fsdp2", "fsdp2_2_ranks_linked"),
        ("recovered_4_ranks", "fsdp2_4_ranks"),
    ],
)
def test_a_table_of_one_workload_has_the_values_of_its_records(id, workload):
    data = gather("profiling", RECORDS, [], FOLDER)
    table = data.table(next(one for one in data.blocks if one.id == id))
    assert len(table.rows) == sum(one.cell.workload == workload for one in INJECTED)
    for _, *cells in table.rows:
        assert all(cell.cell for cell in cells)


def test_a_table_of_a_workload_that_was_not_run_is_empty():
    data = gather("profiling", RECORDS, [], FOLDER)
    assert not data.table(next(one for one in data.blocks if one.id == "device")).rows


GPUS = {name: {one.cell.optimization: one for one in read_records(FOLDER.parent / name)} for name in ON_GPUS}


def on_gpu(variant, metric, method=""):
    """Return the samples on the H100 and on the H200."""
    return [measurement(GPUS[name][variant], metric, method).samples for name in ON_GPUS]


def row(*, title, cells):
    return f"| {title} | {' | '.join(cells)} |"


def test_the_states_on_gpus_are_those_of_the_records():
    def shares(state):
        return [f"{100 * median(one):.1f} %" for one in on_gpu("baseline", "share", state)]

    calls = zip(shares("launch_gap_prepare"), shares("launch_gap_call"), strict=True)
    clocks = [f"{median(one) / 1e9:.2f} GHz" for one in on_gpu("baseline", "device_clock", "rank 0")]
    rest = "not separated: instruction, utilisation"
    for title, cells in {
        "time of a step, without the profiler": [
            f"{1e3 * median(one):.1f} ms" for one in on_gpu("baseline", "time")
        ],
        "time of a step, under the profiler": [
            f"{1e3 * median(one):.1f} ms" for one in on_gpu("baseline", "profiled_time")
        ],
        "computing": shares("computing"),
        "waiting for launches: being prepared, being called": [", ".join(one) for one in calls],
        "waiting for data": shares("waiting_for_data"),
        "clock, of at most 1.98 GHz": clocks,
        "factor of the clock": [f"{median(one):.2f}" for one in on_gpu("baseline", "factor", "frequency")],
        "factor of what is not separated: instruction, utilisation": [
            f"{median(one):.2f}" for one in on_gpu("baseline", "factor", rest)
        ],
        "the profiler adds": [f"{percent(median(one))} %" for one in on_gpu("baseline", "profiler_overhead")],
    }.items():
        assert row(title=title, cells=cells) in PAGE
    assert all(set(one) == {1.98e9} for one in on_gpu("baseline", "peak_clock", "rank 0"))


@pytest.mark.parametrize("variant", ["data_wait", "launch_sleep"])
def test_what_is_recovered_on_gpus_is_that_of_the_records(variant):
    middles = [
        [f"{1e3 * median(one):.1f}" for one in on_gpu(variant, metric)]
        for metric in ("injected", "time_rise", "recovered")
    ]
    rows = list(zip(*middles, strict=True))
    if variant == "data_wait":
        cells = [f"{longer}; {found} ms" for _, longer, found in rows]
        assert row(title="wait of 20.1 ms for data: step longer; recovered", cells=cells) in PAGE
    else:
        cells = [f"{'; '.join(one)} ms" for one in rows]
        title = "sleeps of 2 ms before launches: in all; step longer; recovered"
        assert row(title=title, cells=cells) in PAGE
    middle_errors = [f"{100 * abs(median(one)):.1f}" for one in on_gpu(variant, "recovery_error")]
    lead = {"data_wait": f"{max(middle_errors)} % (waits)", "launch_sleep": " and ".join(middle_errors)}
    assert lead[variant] in " ".join(PAGE.split("|")[0].split())
    errors = [
        f"{percent(median(one))} % ({percent(min(one))} … {percent(max(one))})"
        for one in on_gpu(variant, "recovery_error")
    ]
    assert row(title="error, share of the step", cells=errors) in PAGE


def test_what_was_named_on_gpus_is_that_of_the_records():
    def count(variant, metric):
        every = [value for one in on_gpu(variant, metric) for value in one]
        return f"{sum(every):.0f} of {len(every)}"

    page = " ".join(PAGE.split())
    assert f"the sleeps in {count('launch_sleep', 'named')} recordings" in page
    assert f"the wait in {count('data_wait', 'named')}" in page
    unnamed = [value for one in ("baseline", "baseline_again") for value in on_gpu(one, "named_in_error")]
    assert sum(map(sum, unnamed)) == 0
    assert f"nothing was named in {sum(map(len, unnamed))} recordings" in page
