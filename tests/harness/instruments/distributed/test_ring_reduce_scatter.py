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
HEADS = 0.05  # share of a frame that is head, acknowledgement or store traffic, at most
PLACE = RankLocation(environment={"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module", params=[2, 3])
def pool(request):
    with RankPool([PLACE] * request.param, "127.0.0.1") as ranks:
        ranks.call(f"{ON_RANK}:ring")
        yield ranks


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"op": "AVG", "asynchronous": True},
        {"dtype": "bfloat16"},
        {"in_place": True},
        {"deprecated": True, "ranks": [0, -1]},
    ],
)
def test_each_rank_gets_its_share_of_the_sum(pool, how):
    """In float64; the summands are small integers, exact in every type."""
    ranks = sorted({rank % len(pool) for rank in how.get("ranks", range(len(pool)))})
    given_ = how | ({"ranks": ranks} if "ranks" in how else {})
    shares = pool.call(f"{ON_RANK}:reduce_to_shares", elements=84, **given_)
    total = sum(given(rank, 84, "float32").double() for rank in ranks)
    total = total / len(ranks) if how.get("op") == "AVG" else total
    rounded = total.to(getattr(torch, how.get("dtype", "float32")))
    expected = [chunk.tolist() for chunk in rounded.chunk(len(ranks))]
    assert [shares[rank] for rank in ranks] == expected


def test_its_temporary_bytes_are_those_that_the_dry_run_counts(pool):
    for real_B, counted_B in pool.call(f"{ON_RANK}:temporary_B", elements=12_000):
        assert counted_B == (0 if len(pool) == 2 else 4 * 12_000 // len(pool))
        assert real_B == counted_B


def test_it_sends_half_of_the_bytes_of_gloos_own():
    """Node 0 sends (ranks - 1) / ranks of it, as gloo's all-gather does; gloo's own sends twice that."""
    needs_namespaces()
    with Network(two_nodes(None)) as network, started(network, 2) as ranks:

        def sent_B(**how):
            ranks.call(f"{ON_RANK}:often", elements=ELEMENTS, count=1, **how)  # connections
            before_B = network.sent()[0][0]
            ranks.call(f"{ON_RANK}:often", elements=ELEMENTS, count=TIMES, **how)
            return (network.sent()[0][0] - before_B) / TIMES

        ring_B = 4 * ELEMENTS * (len(ranks) - 1) / len(ranks)
        gloo_B = sent_B()
        ranks.call(f"{ON_RANK}:ring")
        assert ring_B <= sent_B() <= (1 + HEADS) * ring_B
        assert ring_B <= sent_B(gather=True) <= (1 + HEADS) * ring_B
        assert 2 * ring_B <= gloo_B <= (1 + HEADS) * 2 * ring_B


def test_what_cannot_be_summed_is_refused_and_what_failed_is_not_summed_again(pool):
    for elements, share, op, said in (
        (7, 3, "SUM", "reduce-scatter of 7 numbers to shares of 3"),
        (12, 12, "SUM", "reduce-scatter of 12 numbers to shares of 12"),
        (12, 12 // len(pool), "MAX", "expected SUM or AVG"),
    ):
        raised = pool.call(f"{ON_RANK}:refused", elements=elements, share=share, op=op)
        assert all(said in one for one in raised)
    failed = ["the peer is gone", "this reduce-scatter has failed before"]
    assert pool.call(f"{ON_RANK}:failed_twice") == [failed] * len(pool)
