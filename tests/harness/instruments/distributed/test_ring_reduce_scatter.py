"""The ring in place of gloo's reduce-scatter: exact shares, and half of the bytes, as interfaces count."""

import pytest
import torch
from moved import needs_namespaces
from ring_on_rank import given

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
from suites.interconnect.emulated_cluster import started

ON_RANK = "ring_on_rank"
ELEMENTS, TIMES = 1 << 18, 4
HEADS = 0.05
"""Share of a frame that is head, acknowledgement or store traffic, at most."""


def expected(ranks, elements, dtype, op):
    """Return the shares in float64; the summands are small integers, exact in every type."""
    total = sum(given(rank, elements, dtype).double() for rank in ranks)
    total = total / len(ranks) if op == "AVG" else total
    return [chunk.tolist() for chunk in total.to(getattr(torch, dtype)).chunk(len(ranks))]


PLACE = RankLocation(environment={"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module", params=[2, 3, 4])
def pool(request):
    with RankPool([PLACE] * request.param, "127.0.0.1") as ranks:
        ranks.call(f"{ON_RANK}:ring")
        yield ranks


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("dtype", "op"), [("float32", "SUM"), ("float32", "AVG"), ("bfloat16", "SUM")])
def test_each_rank_gets_its_share_of_the_sum(pool, dtype, op, asynchronous):
    elements = 12 * 7
    shares = pool.call(
        f"{ON_RANK}:reduce_to_shares", elements=elements, dtype=dtype, op=op, asynchronous=asynchronous
    )
    assert shares == expected(range(len(pool)), elements, dtype, op)


def test_the_share_may_be_a_part_of_what_is_reduced(pool):
    shares = pool.call(f"{ON_RANK}:reduce_to_shares", elements=84, in_place=True)
    assert shares == expected(range(len(pool)), 84, "float32", "SUM")


def test_its_temporary_bytes_are_those_that_the_dry_run_counts(pool):
    for real_B, counted_B in pool.call(f"{ON_RANK}:temporary_B", elements=12_000):
        assert counted_B == (0 if len(pool) == 2 else 4 * 12_000 // len(pool))
        assert real_B == counted_B


def test_the_deprecated_name_and_a_group_of_some_ranks(pool):
    shares = pool.call(f"{ON_RANK}:reduce_to_shares", elements=24, deprecated=True, ranks=[0, len(pool) - 1])
    first, last = expected([0, len(pool) - 1], 24, "float32", "SUM")
    assert (shares[0], shares[-1]) == (first, last)


@pytest.mark.parametrize(
    ("elements", "share", "op", "said"),
    [
        (7, 3, "SUM", "reduce-scatter of 7 numbers to shares of 3"),
        (12, 12, "SUM", "reduce-scatter of 12 numbers to shares of 12"),
        (12, 6, "MAX", "expected SUM or AVG"),
    ],
)
def test_other_sizes_and_operations_are_refused(pool, elements, share, op, said):
    raised = pool.call(f"{ON_RANK}:refused", elements=elements, share=share, op=op)
    assert all(said in one for one in raised)


def test_a_ring_that_failed_is_not_summed_again(pool):
    assert pool.call(f"{ON_RANK}:failed_twice") == [
        ["the peer is gone", "this reduce-scatter has failed before"]
    ] * len(pool)


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_it_sends_half_of_the_bytes_of_gloos_own(ranks_per_node):
    """Node 0 sends (ranks - 1) / ranks of it, as gloo's all-gather does; gloo's own sends twice that."""
    needs_namespaces()
    with Network(two_nodes(None)) as network, started(network, ranks_per_node) as ranks:

        def sent_B(call):
            ranks.call(f"{ON_RANK}:{call}", elements=ELEMENTS, count=1)  # connections
            before_B = network.sent()[0][0]
            ranks.call(f"{ON_RANK}:{call}", elements=ELEMENTS, count=TIMES)
            return (network.sent()[0][0] - before_B) / TIMES

        ring_B = 4 * ELEMENTS * (len(ranks) - 1) / len(ranks)
        gloo_B = sent_B("reduce_often")
        ranks.call(f"{ON_RANK}:ring")
        assert ring_B <= sent_B("reduce_often") <= (1 + HEADS) * ring_B
        assert ring_B <= sent_B("gather_often") <= (1 + HEADS) * ring_B
        assert 2 * ring_B <= gloo_B <= (1 + HEADS) * 2 * ring_B
