"""The profiling page and report: values are those of the committed records, and no block is left empty."""

from statistics import median

import pytest

from harness.config.code_fingerprint import ROOT
from harness.records import measurement
from harness.sweep.store import read_records

FOLDER = ROOT / "results/reference/profiling"
RECORDS = read_records(FOLDER)
CELLS = {(one.cell.workload, one.cell.optimization): one for one in RECORDS}
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
    def every(metric, method="", among=lambda optimization: True):
        cells = [one for one in RECORDS if among(one.cell.optimization)]
        return [value for one in cells for value in samples(one, metric, method)]

    named = [value for one in INJECTED for value in samples(one, "named")]
    in_error = every("named_in_error")
    quiet = every("named_in_error", among=WITHOUT.__contains__)
    assert len(INJECTED) == 12
    assert not any(in_error)
    errors = {
        (one.cell.workload, one.cell.optimization): abs(median(samples(one, "recovery_error")))
        for one in INJECTED
    }
    link = errors.pop(("fsdp2_2_ranks_linked", "slow_link"))
    computing, exposed, gaps = (
        100 * median(samples(CELLS["ddp_2_ranks", "baseline"], "share", state))
        for state in ("computing", "exposed_communication", "launch_gap_prepare")
    )
    chains = [s for rank in range(4) for s in every("relative_clock", f"dependent chain, rank {rank}")]
    factors = every("factor", "frequency", lambda name: name.startswith("baseline"))
    others = every("frequency_to_largest_other")
    counts = every("counted_of_held_back")
    stated = [
        f"{sum(named):.0f} of {len(named)} recordings",
        f"nothing at all in {len(quiet)} recordings",
        f"within {100 * max(errors.values()):.1f} % of the step in the median",
        f"{100 * link:.0f} % of the step is missing",
        f"{computing:.0f} % of the time is computing, {exposed:.1f} % exposed",
        f"{gaps:.1f} % launch gaps",
        f"ran at {100 * min(chains):.0f} to {100 * max(chains):.0f} % of its fastest",
        f"takes {min(factors):.2f} to {max(factors):.2f} times the time",
        f"costs {min(others):.2f} to {max(others):.2f} times as much",
        f"count is {min(counts):.2f} and {max(counts):.2f} of that process's time",
    ]
    for workload in STEPS:
        costs = [cost for one in WITHOUT for cost in samples(CELLS[workload, one], "profiler_overhead")]
        assert len(costs) == 8
        stated += [f"{percent(median(costs)).removeprefix('+')} %"]
        stated += [f"{percent(min(costs))} to {percent(max(costs))} %"]
    assert not [one for one in stated if one not in PAGE]


@pytest.mark.parametrize("record", INJECTED, ids=lambda one: f"{one.cell.workload}-{one.cell.optimization}")
def test_a_row_of_the_page_is_what_its_record_has(record):
    injected_s, longer_s, found_s = (samples(record, one) for one in ("injected", "time_rise", "recovered"))
    errors = [there / given - 1 for given, there in zip(injected_s, found_s, strict=True)]
    longer = f"{ms(longer_s)} ({1e3 * min(longer_s):.1f} … {1e3 * max(longer_s):.1f})"
    amounts = (one.replace("-", "−") for one in (ms(injected_s), longer, ms(found_s)))
    shares = (spread(errors), spread(samples(record, "recovery_error")))
    assert f"| {' | '.join((STEPS[record.cell.workload], *amounts, *shares))} |" in TEXT


GPUS = [
    {one.cell.optimization: one for one in read_records(FOLDER.parent / name)}
    for name in ("profiling_h100", "profiling_h200")
]


def on_gpu(variant, metric, method=""):
    """Return the samples on the H100 and on the H200."""
    return [samples(one[variant], metric, method) for one in GPUS]


def test_the_values_on_gpus_are_those_of_the_records():
    def shares(state):
        return [f"{100 * median(one):.1f} %" for one in on_gpu("baseline", "share", state)]

    def factors(method):
        return [f"{median(one):.2f}" for one in on_gpu("baseline", "factor", method)]

    def amounts(variant, *metrics):
        middles = [[ms(one) for one in on_gpu(variant, metric)] for metric in metrics]
        return [f"{'; '.join(one)} ms" for one in zip(*middles, strict=True)]

    calls = zip(shares("launch_gap_prepare"), shares("launch_gap_call"), strict=True)
    rest = "not separated: instruction, utilisation"
    assert all(set(one) == {1.98e9} for one in on_gpu("baseline", "peak_clock", "rank 0"))
    errors = {one: on_gpu(one, "recovery_error") for one in ("data_wait", "launch_sleep")}
    rows = [
        ("time of a step, without the profiler", amounts("baseline", "time")),
        ("time of a step, under the profiler", amounts("baseline", "profiled_time")),
        ("computing", shares("computing")),
        ("waiting for launches: being prepared, being called", [", ".join(one) for one in calls]),
        ("waiting for data", shares("waiting_for_data")),
        ("clock, of at most 1.98 GHz",
         [f"{median(one) / 1e9:.2f} GHz" for one in on_gpu("baseline", "device_clock", "rank 0")]),
        ("factor of the clock", factors("frequency")),
        (f"factor of what is {rest}", factors(rest)),
        ("the profiler adds",
         [f"{percent(median(one))} %" for one in on_gpu("baseline", "profiler_overhead")]),
        ("wait of 20.1 ms for data: step longer; recovered", amounts("data_wait", "time_rise", "recovered")),
        ("sleeps of 2 ms before launches: in all; step longer; recovered",
         amounts("launch_sleep", "injected", "time_rise", "recovered")),
        *(("error, share of the step", [spread(one) for one in both]) for both in errors.values()),
    ]  # fmt: skip
    assert not [one for one in rows if f"| {one[0]} | {' | '.join(one[1])} |" not in TEXT]
    middle = {name: [f"{100 * abs(median(one)):.1f}" for one in both] for name, both in errors.items()}
    lead = " ".join(TEXT.split("|")[0].split())
    assert f"{max(middle['data_wait'])} % (waits), {' and '.join(middle['launch_sleep'])} % (sleeps" in lead


def test_what_was_named_on_gpus_is_that_of_the_records():
    def count(variant, metric):
        every = [value for one in on_gpu(variant, metric) for value in one]
        return f"{sum(every):.0f} of {len(every)}"

    assert f"the sleeps in {count('launch_sleep', 'named')} recordings" in PAGE
    assert f"the wait in {count('data_wait', 'named')}" in PAGE
    unnamed = [value for name in WITHOUT for one in on_gpu(name, "named_in_error") for value in one]
    assert sum(unnamed) == 0
    assert f"nothing was named in {len(unnamed)} recordings" in PAGE
