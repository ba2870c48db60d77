"""Techniques in pairs, on every suite that trains: each pair is right and measured, or refused in one line.

`tests/benchmarks/every_pair.py` starts each once and writes a record. The gate builds all of them, compares
which are refused with the record, and starts each technique once on one suite, with a neighbour in the list.
"""

import pytest
import technique_pairs as pairs

from harness.config.techniques import names

FOUND = pairs.recorded()


def test_nothing_of_the_record_crashed_and_each_refusal_is_one_line():
    assert {suite for suite, _ in FOUND} == set(pairs.SUITES)
    assert {chosen for _, chosen in FOUND} <= set(pairs.combined())
    assert {one.status for one in FOUND.values()} == {pairs.OK, pairs.REFUSED}
    assert all("\n" not in one.reason and len(one.reason) <= 300 for one in FOUND.values())


@pytest.mark.slow
@pytest.mark.parametrize("suite", pairs.SUITES)
def test_those_are_refused_that_the_record_has(suite):
    fields = pairs.workload_of(suite)
    here = [chosen for chosen in pairs.combined() if not pairs.unavailable(chosen)]
    found = {chosen for chosen in here if pairs.tried(suite, fields, chosen, start=False).status != pairs.OK}
    before = {chosen for (of, chosen), one in FOUND.items() if of == suite and not one.started}
    assert found == before & set(here)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pair_is_right_and_measured_or_refused_as_the_record_has_it(monkeypatch):
    pairs.compile_by_aot_eager(monkeypatch)
    fields, known = pairs.workload_of("memory"), names()
    for pair in zip(known[::2], [*known[1::2], known[0]], strict=False):
        chosen = tuple(sorted(pair, key=known.index))
        if not pairs.unavailable(chosen):
            found, before = pairs.tried("memory", fields, chosen), FOUND.get(("memory", chosen))
            assert (chosen, found.status) == (chosen, before.status if before else pairs.OK)
