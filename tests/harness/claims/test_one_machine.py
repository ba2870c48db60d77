"""Values of unlike machines are never pooled: in ratios, tables and whole reports."""

import json

import pytest
from synthetic import made

from harness.claims.values import NoPairsError, compare, of_one_machine
from harness.records import Limits
from harness.report.results import summarize
from harness.sweep.environment import describe
from harness.sweep.store import Store, read_records

HERE = describe()
OTHER_CPU = HERE._replace(cpu="another")
OTHER_TORCH = HERE._replace(versions={**HERE.versions, "torch": "0.1"})
ALIKE = HERE._replace(system="Linux 9.9", commit="0" * 40, dirty=not HERE.dirty)


def record(variant, samples, repeat, host):
    figures = {("time", "warm"): ("s", "measured", samples)}
    return made("small", variant, figures, repeat=repeat)._replace(host=host)


def pair(repeat, host, share):
    return [
        record("baseline", (1.0, 1.5, 1.2), repeat, host),
        record("fast", (share, 1.5 * share, 1.2 * share), repeat, host),
    ]


def test_the_same_repeat_of_two_machines_is_no_pair():
    ours = [record("fast", (0.5, 0.6, 0.7), 0, "a")]
    base = [record("baseline", (1.0, 1.1, 1.2), 0, "b")]
    with pytest.raises(NoPairsError, match="the two variants ran on unlike machines or libraries"):
        compare(ours, base, "time", "warm")


def test_a_workload_counts_on_the_machine_with_most_values_and_the_rest_is_named():
    records = [*pair(0, "a", 0.5), *pair(1, "b", 0.5), *pair(2, "b", 0.6)]
    failed = made("small", "slow", status="crashed")._replace(host="a")
    kept, sentences = of_one_machine([*records, failed])
    assert [(one.cell.repeat, one.machine) for one in kept] == [*[(1, "b")] * 2, *[(2, "b")] * 2, (0, "a")]
    table = summarize([record("fast", (1.0, 2.0), 0, "a"), record("fast", (9.0, 9.0), 1, "b")])
    assert list(table[["min", "max"]].iloc[0]) == [1.0, 2.0]
    assert [one.partition(" of other machines")[0] for one in sentences] == ["small: left out 2 cells"]
    assert of_one_machine(kept) == (kept, ())


@pytest.mark.parametrize(("other", "alike"), [(OTHER_CPU, False), (OTHER_TORCH, False), (ALIKE, True)])
def test_machines_are_alike_by_hardware_and_libraries_as_the_folder_keeps_them(tmp_path, other, alike):
    with Store(tmp_path) as store:
        for repeat, environment in enumerate((HERE, other)):
            store.write_environment(environment)
            one = made(repeat=repeat)._replace(environment=environment.digest, limits=Limits(1.0))
            store.append(one)
        kept = list(store.records.values())
    first, second = read_records(tmp_path)
    assert [first, second] == kept
    assert first.environment != second.environment
    assert (first.machine == second.machine) == alike
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert all("host" not in json.loads(line) for line in lines)
