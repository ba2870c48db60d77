"""A traced update stepped through time: against sums and bounds had by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.interconnect.replay import (
    Collective,
    Service,
    collectives,
    computed_s,
    fitted,
    merged,
    shared,
    step_seconds,
    without_computation,
)

SIZE = ("all_reduce", 8, "float32")


def blocking(stretches):
    """Each collective is waited for as soon as it has begun."""
    events = []
    for number, stretch in enumerate(stretches):
        events += [["compute", stretch], ["begin", number, *SIZE], ["compute", 0.0], ["wait", number]]
    return events


def overlapping(stretches):
    """All are waited for at the end."""
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


@given(
    st.floats(0, 1e-2), st.floats(1, 1e7), st.lists(st.floats(1e5, 1e9), min_size=2, max_size=5, unique=True)
)
def test_a_law_is_found_again_from_its_own_figures(latency, size, rates):
    law = Service(latency, size)
    if max(rates) / min(rates) < 2:
        rates = [*rates, 4 * max(rates)]
    found = fitted({rate: law.seconds(rate) for rate in rates})
    for rate in (min(rates), 2 * min(rates), max(rates)):
        assert found.seconds(rate) == pytest.approx(law.seconds(rate), rel=1e-4)


def test_neither_latency_nor_bytes_fall_below_zero():
    assert fitted({1e6: 1.0, 2e6: 0.4}).latency_s == 0
    assert fitted({1e6: 1.0, 2e6: 1.2}).bytes_B == 0
    with pytest.raises(ValueError, match="two rates"):
        fitted({1e6: 1.0})


def test_traces_are_merged_by_the_median_of_the_slowest_rank():
    one, two = [blocking([t]) for t in (1.0, 2.0, 9.0)], [blocking([t]) for t in (3.0, 1.0, 1.0)]
    merged_ = merged([one, two])
    assert computed_s(merged_) == 2.0
    assert collectives(merged_) == [Collective(*SIZE)]
    with pytest.raises(ValueError, match="differ"):
        merged([one, [overlapping([1.0, 1.0])]])


@given(
    st.lists(st.tuples(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), st.integers(1, 99))),
    st.sampled_from(["float32", "bfloat16"]),
    seconds,
    st.floats(0, 1e6),
)
def test_parts_are_of_bytes_and_add_up_to_what_all_take_together(sizes, dtype, latency_s, bytes_B):
    events = [["begin", number, *size, dtype] for number, size in enumerate(sizes)]
    events += [["wait", number] for number in range(len(sizes))]
    together = Service(latency_s, bytes_B)
    parts = shared(events, together)
    if sizes:
        total_s = sum(parts[Collective(*size, dtype)].seconds(1e3) for size in sizes)
        assert total_s == pytest.approx(together.seconds(1e3))
        assert step_seconds(events, lambda one: parts[one].seconds(1e3)) == pytest.approx(total_s)
    for one, part in parts.items():
        alike = one.elements * (1 if one.name == "all_gather" else 2)
        for other, theirs in parts.items():
            as_many = other.elements * (1 if other.name == "all_gather" else 2)
            assert part.bytes_B * as_many == pytest.approx(theirs.bytes_B * alike)


def test_a_collective_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="of 8 float32 is none that is foretold"):
        without_computation([["begin", 0, "other", 8, "float32"], ["wait", 0]])
    with pytest.raises(ValueError, match="of 8 int64 is none"):
        without_computation([["begin", 0, "all_reduce", 8, "int64"], ["wait", 0]])
    assert without_computation(blocking([1.0])) == [["begin", 0, *SIZE], ["wait", 0]]
