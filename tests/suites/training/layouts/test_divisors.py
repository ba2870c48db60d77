"""Divisors of a number, of which refusals and searches make lists."""

from suites.training.layouts.search import divisors


def test_divisors_are_those_of_trying_every_number():
    for whole in (*range(1, 200), 4096, 3600, 9973):
        assert divisors(whole) == [one for one in range(1, whole + 1) if whole % one == 0]
    assert divisors(10**9 - 1)[-2:] == [(10**9 - 1) // 3, 10**9 - 1]
