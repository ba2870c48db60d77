"""How long plans of 100,000 documents for 4,096 groups take: shown, never asserted."""

import numpy as np
import pytest

from suites.training.balance import assign, cost, loads, lower_bound

GROUPS, DOCUMENTS = 4096, 100_000


@pytest.mark.benchmark(group="plan of 4,096 groups and 100,000 documents")
@pytest.mark.parametrize("sigma", [0.5, 1.5])
@pytest.mark.parametrize("method", ["in_order", "random", "greedy", "karmarkar_karp"])
def test_plan(benchmark, method, sigma):
    tokens = np.minimum(np.random.default_rng(0).lognormal(6, sigma, DOCUMENTS), 16384)
    costs = cost(tokens, 4.5e10, 7.9e5)
    group_of = benchmark(assign, costs, GROUPS, method)
    benchmark.extra_info["over_bound"] = loads(costs, group_of, GROUPS).max() / lower_bound(costs, GROUPS)


@pytest.mark.benchmark(group="plan of 4,096 groups and 100,000 documents")
def test_plan_with_room(benchmark):
    tokens = np.minimum(np.random.default_rng(0).lognormal(6, 1.5, DOCUMENTS), 16384).astype(np.int64)
    most = int(1.2 * max(tokens.sum() / GROUPS, 16384))
    benchmark(assign, cost(tokens, 4.5e10, 7.9e5), GROUPS, "greedy", tokens=tokens, most_tokens=most)
