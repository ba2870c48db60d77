"""A traced update stepped through time: against sums and bounds had by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.interconnect.emulated_cluster import (
    Collective,
    alone_s,
    collectives,
    computed_s,
    merged,
    service,
    step_seconds,
)

SIZE = ("all_reduce", 8, "float32")


def blocking(stretches):
    """Return events in which each collective is waited for as soon as it has started."""
    events = []
    for number, stretch in enumerate(stretches):
        events += [["compute", stretch], ["begin", number, *SIZE], ["compute", 0.0], ["wait", number]]
    return events


def overlapping(stretches):
    """Return events in which all collectives are waited for at the end."""
    events = []
    for number, stretch in enumerate(stretches):
        events += [["compute", stretch], ["begin", number, *SIZE]]
    return [*events, *(["wait", number] for number in range(len(stretches)))]


seconds = st.floats(0, 10)
stretches = st.lists(seconds, min_size=1, max_size=6)


@given(stretches, seconds)
def test_what_blocks_adds_up(parts, service):
    expected = sum(parts) + len(parts) * service
    assert step_seconds(blocking(parts), lambda _: service) == pytest.approx(expected)


@given(stretches, seconds)
def test_what_overlaps_lies_between_the_longer_and_the_sum(parts, service):
    found = step_seconds(overlapping(parts), lambda _: service)
    compute, communicate = sum(parts), len(parts) * service
    assert max(compute, communicate) - 1e-9 <= found <= compute + communicate + 1e-9
    assert found >= parts[0] + communicate - 1e-9  # the link cannot begin earlier


def test_a_link_carries_one_collective_after_the_other():
    events = overlapping([1.0, 1.0])
    assert step_seconds(events, lambda _: 0.5) == 2.5
    assert step_seconds(events, lambda _: 3.0) == 7.0
    assert step_seconds([*events, ["compute", 2.0]], lambda _: 3.0) == 9.0


def test_what_nobody_waits_for_still_ends_the_update():
    assert step_seconds([["compute", 1.0], ["begin", 0, *SIZE]], lambda _: 2.0) == 3.0


decades = st.lists(st.floats(1e5, 1e9), min_size=1, max_size=5, unique=True)


@given(st.floats(1e3, 1e7), decades, st.floats(1e4, 1e9))
def test_where_bytes_alone_count_so_they_do_between_and_below(bytes_B, rates, asked):
    found = service({rate: [bytes_B / rate] for rate in rates})
    assert found.seconds(min(asked, max(rates))) == pytest.approx(bytes_B / min(asked, max(rates)))
    assert found.seconds(2 * max(rates)) == pytest.approx(bytes_B / max(rates))


@given(st.floats(1e-6, 1e-2), st.floats(1, 1e7), decades, st.floats(1e5, 1e9))
def test_with_latency_what_lies_between_is_no_less_than_on_a_line_and_no_more_than_the_slower(
    latency_s, bytes_B, rates, asked
):
    def law(rate):
        return latency_s + bytes_B / rate

    found = service({rate: [law(rate)] for rate in rates})
    for rate in rates:
        assert found.seconds(rate) == pytest.approx(law(rate))
    if min(rates) <= asked <= max(rates):
        slower, faster = max(r for r in rates if r <= asked), min(r for r in rates if r >= asked)
        assert law(faster) * (1 - 1e-9) <= found.seconds(asked) <= law(slower) * (1 + 1e-9)


def test_several_tries_are_averaged_and_none_takes_nothing():
    assert service({1e6: [1.0, 3.0]}).seconds(1e6) == pytest.approx(2.0)
    assert 0 < service({1e6: [0.0]}).seconds(1e6) < 1e-6
    with pytest.raises(ValueError, match="one rate at least"):
        service({})


def test_traces_are_merged_by_the_median_of_the_slowest_rank():
    one, two = [blocking([t]) for t in (1.0, 2.0, 9.0)], [blocking([t]) for t in (3.0, 1.0, 1.0)]
    merged_ = merged([one, two])
    assert computed_s(merged_) == 2.0
    assert collectives(merged_) == [Collective(*SIZE)]
    with pytest.raises(ValueError, match="differ"):
        merged([one, [overlapping([1.0, 1.0])]])


def played(events, taken_s, late_s=0.0):
    """Return when each collective starts and ends on a rank that is `late_s` behind, stepped by hand."""
    now_s, free_s, begun, over = late_s, 0.0, [], []
    for kind, number, *_ in events:
        if kind == "begin":
            begun.append(now_s)
            free_s = max(free_s, now_s) + taken_s[number]
            over.append(free_s)
        elif kind == "wait":
            now_s = max(now_s, over[number])
    return [[b, e] for b, e in zip(begun, over, strict=True)]


@given(st.lists(seconds, min_size=1, max_size=6), st.sampled_from([blocking, overlapping]))
def test_collectives_alone_add_up_to_what_they_took_together(taken_s, order):
    events = order([0.0] * len(taken_s))
    times = played(events, taken_s)
    (found,) = alone_s(events, [times, times]).values()
    assert sum(found) == pytest.approx(sum(taken_s), abs=1e-9)


def test_a_collective_is_timed_from_when_the_last_rank_began_it():
    events = blocking([1.0])
    ranks = [played(events, [2.5]), played(events, [2.0], late_s=0.5)]
    assert alone_s(events, ranks) == {Collective(*SIZE): [2.0]}


def test_one_that_overtakes_another_leaves_it_the_rest():
    events = [["begin", 0, *SIZE], ["begin", 1, "all_gather", 4, "float32"], ["wait", 1], ["wait", 0]]
    found = alone_s(events, [[[0.0, 5.0], [1.0, 4.0]]])
    assert found == {Collective(*SIZE): [1.0], Collective("all_gather", 4, "float32"): [3.0]}


def test_a_collective_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="of 8 elements cannot be timed by itself"):
        collectives([["begin", 0, "other", 8, "float32"], ["wait", 0]])
