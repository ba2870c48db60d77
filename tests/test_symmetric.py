"""Kernels on symmetric memory: interpreted by four processes, against float64."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from symmetric_on_rank import CASES

from harness.code_fingerprint import ROOT
from harness.instruments.distributed.rank_pool import RankFailed, RankLocation, RankPool

ENVIRONMENT = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
RANKS = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool([RankLocation((), ENVIRONMENT)] * RANKS, "127.0.0.1") as pool:
        yield pool


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_pytorch_gives_whichever_rank_is_late(name: str, ranks: RankPool) -> None:
    for late_s in (0.0, 0.05):
        for errors in ranks.call("symmetric_on_rank:run", name=name, late_s=late_s):
            assert len(errors) >= 2
            assert max(errors) < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_never_signals_is_named_with_the_signal_and_the_values(name: str) -> None:
    with RankPool([RankLocation((), ENVIRONMENT)] * 2, "127.0.0.1") as pool:
        said = r"rank 0.*waited 0.5 s for its signal \d+ of \w+ to be \d+; it is \d+"
        with pytest.raises(RankFailed, match=said):
            pool.call("symmetric_on_rank:run", name=name, absent=1, timeout_s=0.5)
