"""Tables: every figure as recorded and marked, none where there is none."""

import json

import pytest
from synthetic import made

from harness.report.comparison import compared
from harness.report.results import ResultIndex
from harness.report.spec import Pairing
from harness.report.summary import wrong_results
from harness.report.write import benchmark_json


def test_what_was_wrong_in_one_process_of_three_shows_no_value_and_says_in_how_many():
    figures = {("time", "warm"): ("s", "measured", (1.0, 2.0))}
    records = [
        made("small", "racy", figures, repeat=i, status=status, reason="a race" if status != "ok" else "")
        for i, status in enumerate(("ok", "wrong_result", "ok"))
    ]
    index = ResultIndex([made("small", "baseline", figures), *records], {})
    assert [one.optimization for one in index.table.values()] == ["baseline"]
    told = index.reason("small", "racy", "time", "warm")
    assert told == ("wrong result", "racy on small: wrong result: a race")
    names = [one["name"] for one in json.loads(benchmark_json("made", index, {}))["benchmarks"]]
    assert names == ["small[baseline]"]
    again = records[2]._replace(status="wrong_result", reason="another")
    runs = (records, records[1:2], [*records[:2], again])
    assert [wrong_results(some, lambda _, name: name) for some in runs] == [
        ["racy on small (1 of 3 processes): a race"],
        ["racy on small: a race"],
        ["racy on small (2 of 3 processes): a race (and 1 other reason)"],
    ]


def test_what_is_calculated_of_code_stays_where_another_process_was_wrong():
    figures = {
        ("registers", "sm_90"): ("1", "calculated", (32.0,)),
        ("time", "warm"): ("s", "measured", (1.0,)),
    }
    records = [
        made("small", "racy", figures, repeat=i, status=status)
        for i, status in enumerate(("ok", "wrong_result"))
    ]
    kept = [(one.metric, one.median) for one in ResultIndex(records, {}).table.values()]
    assert kept == [("registers", 32.0)]
    assert ResultIndex(records[1:], {}).table == {}


@pytest.mark.parametrize(
    ("ours", "base", "expected"),
    [
        ((0.5,), (1.0,), ("pays", "single")),
        ((1.004,), (1.0,), ("no difference", "single")),
        ((1.006,), (1.0,), ("costs", "single")),
        ((0.8, 0.9), (1.0, 1.1, 1.2), ("pays", "ranges")),
        ((0.8, 1.3), (1.0, 1.1, 1.2), ("undecided", "ranges")),
    ],
)
def test_what_an_optimization_does_to_bytes(ours, base, expected):
    """Samples that do not pair are judged by their ends; of what is better higher, more pays."""
    runs = {"baseline": base, "other": ours}
    records = [made("w", one, {("peak", ""): ("B", "measured", values)}) for one, values in runs.items()]
    pairing = Pairing("peak", "", "baseline", equal_within=0.005)
    found = [
        compared(ResultIndex(records, {}), "w", "other", pairing._replace(better=b))
        for b in ("lower", "higher")
    ]
    assert (found[0].effect, found[0].ratio.basis) == expected
    assert found[1].effect == {"pays": "costs", "costs": "pays"}.get(expected[0], expected[0])
